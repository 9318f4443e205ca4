"""Which nodes of two graphs are the same: by name, and by what they do where names differ."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

from pimflow.ir.graph import Graph, Node
from pimflow.ir.ops.base import Op
from pimflow.records import dataclass

_Key = Callable[[Node], Hashable]


@dataclass(frozen=True)
class Alignment:
    """Nodes of two graphs, by name.

    Args:
        pairs: what is the same, in the order of the first graph.
        only_first, only_second: what has no counterpart.
    """

    pairs: Mapping[str, str]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]


def align(first: Graph, second: Graph) -> Alignment:
    """Pairs the nodes of two graphs in linear time.

    Nodes of one name and op are the same. The others are paired in the order of their graphs where as much as possible
    is alike: all that they are computed from; all that is computed from them; their op and all their types; last, their
    op and what constants they read (another batch, another image). A node is in one pair at most.
    """
    pairs: dict[str, str] = {}
    for first_key, second_key in zip(_keys(first), _keys(second), strict=True):
        taken = set(pairs.values())
        waiting: dict[Hashable, list[str]] = {}
        for node in second.nodes:
            if node.name not in taken:
                waiting.setdefault(second_key(node), []).append(node.name)
        queues = {key: iter(names) for key, names in waiting.items()}
        for node in first.nodes:
            if node.name not in pairs:
                found = next(queues.get(first_key(node), iter(())), None)
                if found is not None:
                    pairs[node.name] = found
    taken = set(pairs.values())
    return Alignment(
        {node.name: pairs[node.name] for node in first.nodes if node.name in pairs},
        tuple(node.name for node in first.nodes if node.name not in pairs),
        tuple(node.name for node in second.nodes if node.name not in taken),
    )


def _keys(graph: Graph) -> Iterator[_Key]:
    """What nodes are compared by, the strictest first."""
    upstream, downstream = _upstream(graph), _downstream(graph)
    yield lambda node: (node.name, node.kind)
    yield lambda node: upstream[node.name]
    yield lambda node: downstream[node.name]
    yield lambda node: (_op(node.op), _types(graph, node.inputs), _types(graph, node.outputs))
    yield lambda node: (node.kind, _types(graph, (name for name in node.inputs if name in graph.constants)))


def _upstream(graph: Graph) -> Mapping[str, str]:
    """A digest of everything that a node is computed from, names apart, by node."""
    digests: dict[str, str] = {}

    def source(name: str) -> str:
        producer = graph.producer(name) if name else None
        if producer is not None:
            return f"{digests[producer.name]}.{producer.outputs.index(name)}"
        return f"input {graph.inputs.index(name)}" if name in graph.inputs else ""

    for node in graph.nodes:
        parts = (_op(node.op), _types(graph, node.inputs), *map(source, node.inputs))
        digests[node.name] = _digest(parts)
    return digests


def _downstream(graph: Graph) -> Mapping[str, str]:
    """A digest of everything that is computed from a node, names apart, by node."""
    digests: dict[str, str] = {}
    for node in reversed(graph.nodes):
        users = sorted(
            f"{digests[user.name]}.{user.inputs.index(name)}" for name in node.outputs for user in graph.users(name)
        )
        results = [graph.outputs.index(name) for name in node.outputs if name in graph.outputs]
        digests[node.name] = _digest((_op(node.op), _types(graph, node.outputs), *users, results))
    return digests


def _digest(parts: Iterable[object]) -> str:
    return hashlib.sha256(repr(tuple(parts)).encode()).hexdigest()[:24]


def _op(op: Op) -> str:
    return repr(op)


def _types(graph: Graph, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(graph.value(name).type_text if name else "" for name in names)
