"""Which nodes of two graphs correspond: by name, or by what they compute if names differ."""

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
        pairs: corresponding nodes, in the order of the first graph.
        only_first, only_second: nodes without a counterpart.
    """

    pairs: Mapping[str, str]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]


def align(first: Graph, second: Graph) -> Alignment:
    """Pairs the nodes of two graphs in linear time.

    Nodes with the same name and op type are paired. The others are paired in graph order, by decreasing similarity:
    first if everything that they are computed from is alike; then everything that is computed from them; then their op
    and all their types; last, their op type and the types of their constants (another batch, another image). A node is
    in at most one pair.
    """
    pairs: dict[str, str] = {}
    for first_key, second_key in zip(_keys(first), _keys(second), strict=True):
        taken = set(pairs.values())
        candidates: dict[Hashable, list[str]] = {}
        for node in second.nodes:
            if node.name not in taken:
                candidates.setdefault(second_key(node), []).append(node.name)
        queues = {key: iter(names) for key, names in candidates.items()}
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
    """The keys by which nodes are compared, strictest first."""
    upstream, downstream = _upstream(graph), _downstream(graph)
    yield lambda node: (node.name, node.kind)
    yield lambda node: upstream[node.name]
    yield lambda node: downstream[node.name]
    yield lambda node: (_op(node.op), _types(graph, node.inputs), _types(graph, node.outputs))
    yield lambda node: (node.kind, _types(graph, (name for name in node.inputs if name in graph.constants)))


def _upstream(graph: Graph) -> Mapping[str, str]:
    """For each node, a digest of everything that it is computed from, except names."""
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
    """For each node, a digest of everything that is computed from it, except names."""
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
