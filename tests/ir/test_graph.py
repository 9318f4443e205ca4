"""The graph: users and producers, order, and immutability."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.errors import GraphError
from pimflow.ir import Elementwise, Graph, Node, Value, topological_order
from pimflow.ir.placement import Placement
from support.vector_graphs import assert_sound, graph_of, identity, op


def test_users_producers_and_positions() -> None:
    graph = graph_of([op("A", ["x", "x"], "a"), op("B", ["x", "a", ""], "b", "c"), op("C", ["c", "w"], "d")], ["d"])
    assert [node.name for node in graph.users("x")] == ["n_a", "n_b"]
    assert graph.users("nobody") == ()
    assert graph.producer("c") is graph.node("n_b")
    assert graph.producer("x") is None
    assert graph.position == {"n_a": 0, "n_b": 1, "n_d": 2}
    with pytest.raises(GraphError, match="no node 'nope'"):
        graph.node("nope")


def test_values_around_a_node() -> None:
    weight = np.ones(4, np.float32)
    graph = graph_of([Node(Elementwise("K"), ("x", "", "w"), ("y", ""), "n")], ["y"], constants={"w": weight})
    node = graph.node("n")
    assert [value and value.name for value in graph.in_values(node)] == ["x", None, "w"]
    assert [value.name for value in graph.out_values(node)] == ["y"]
    assert list(graph.activations(node)) == ["x"]
    unknown = graph.replace(values=dict(graph.values) | {"y": Value("y", None)})
    with pytest.raises(GraphError, match="'y' has no static shape"):
        unknown.shape("y")
    assert unknown.value("y").elements == 0
    assert graph.value("x").elements == 4


def test_a_graph_is_immutable() -> None:
    values = {"x": Value("x", (4,))}
    graph = Graph("g", ("x",), ("x",), (), values, {})
    values["y"] = Value("y", (4,))
    assert list(graph.values) == ["x"]
    with pytest.raises(TypeError):
        graph.values["y"] = Value("y", (4,))  # type: ignore[index]  # which is the point


def test_a_node_is_placed_field_by_field() -> None:
    node = identity("x", "y").placed(device="pim", region=3).placed(region=4)
    assert node.placement == Placement("pim", 4)
    assert node.device == "pim"
    assert identity("x", "y").device is None


@settings(max_examples=60)
@given(st.data(), st.integers(1, 12))
def test_order_is_topological_for_any_shuffle(data: st.DataObject, count: int) -> None:
    made = ["x"]
    nodes = []
    for index in range(count):
        read = data.draw(st.lists(st.sampled_from(["", *made]), min_size=1, max_size=4))
        made.append(f"v{index}")
        nodes.append(op("K", read, made[-1]))
    assert topological_order(nodes) == tuple(nodes)
    shuffled = data.draw(st.permutations(nodes))
    ordered = topological_order(shuffled)
    assert sorted(node.name for node in ordered) == sorted(node.name for node in nodes)
    assert_sound(graph_of(ordered, made[-1:]))
    assert topological_order(ordered) == ordered


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_cycle_is_found(length: int) -> None:
    nodes = [op("K", [f"v{(index + 1) % length}", "x"], f"v{index}") for index in range(length)]
    with pytest.raises(GraphError, match="cycle through 'n_v"):
        topological_order([identity("x", "y"), *nodes])


def test_a_long_chain_given_backwards_is_sorted_without_recursion() -> None:
    nodes = [identity(f"v{index}", f"v{index + 1}") for index in range(20_000)]
    assert topological_order(nodes[::-1]) == tuple(nodes)
