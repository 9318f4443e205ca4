"""Graphs of bare nodes over vectors of four elements, for tests that only depend on names and order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pimflow.ir import Elementwise, Graph, Node, OnnxOp, Value


def identity(source: str, made: str, name: str = "") -> Node:
    return Node(OnnxOp("Identity"), (source,), (made,), name or f"n_{made}")


def op(kind: str, sources: Sequence[str], *made: str) -> Node:
    return Node(Elementwise(kind), tuple(sources), made, f"n_{made[0]}")


def graph_of(
    nodes: Sequence[Node],
    outputs: Sequence[str],
    inputs: Sequence[str] = ("x",),
    constants: dict[str, np.ndarray] | None = None,
) -> Graph:
    constants = constants or {}
    made = [*inputs, *constants, *(name for node in nodes for name in node.outputs if name)]
    values = {name: Value(name, (4,)) for name in made}
    return Graph("g", tuple(inputs), tuple(outputs), tuple(nodes), values, constants)


def assert_sound(graph: Graph) -> None:
    """Assert that every name is defined once and before its use, that every value is known, and none is unused."""
    known = [*graph.inputs, *graph.constants]
    for node in graph.nodes:
        assert all(name in known for name in node.inputs if name), node
        known += [name for name in node.outputs if name]
    assert len(set(known)) == len(known)
    assert set(graph.outputs) <= set(known)
    assert set(graph.values) <= set(known)
    assert all(graph.values[name].name == name for name in known if name in graph.values)
    assert set(known) - set(graph.constants) - set(graph.inputs) <= set(graph.values)
    assert len({node.name for node in graph.nodes}) == len(graph.nodes)
