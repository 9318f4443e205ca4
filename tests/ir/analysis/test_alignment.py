"""Matching nodes of two graphs, whatever their names."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings

import pimflow_zoo
from pimflow.frontend import load_model
from pimflow.ir import Builder, Elementwise, Graph
from pimflow.ir.analysis.alignment import align
from pimflow.ir.ops.contraction import PRODUCT
from support.drawn_graphs import moving_graphs


def renamed(graph: Graph) -> Graph:
    """The same graph with all names changed."""
    names = {name: f"v{index}" for index, name in enumerate(graph.values)} | {"": ""}
    nodes = [
        replace(
            node,
            name=f"node{index}",
            inputs=tuple(names[name] for name in node.inputs),
            outputs=tuple(names[name] for name in node.outputs),
        )
        for index, node in enumerate(graph.nodes)
    ]
    return graph.replace(
        inputs=tuple(names[name] for name in graph.inputs),
        outputs=tuple(names[name] for name in graph.outputs),
        nodes=nodes,
        values={
            names[name]: type(value)(names[name], value.shape, value.dtype) for name, value in graph.values.items()
        },
        constants={names[name]: array for name, array in graph.constants.items()},
    )


@settings(max_examples=30)
@given(moving_graphs())
def test_all_nodes_of_a_renamed_graph_are_found(graph: Graph) -> None:
    found = align(graph, renamed(graph))
    assert not found.only_first
    assert not found.only_second
    other = renamed(graph)
    for first, second in found.pairs.items():
        assert graph.node(first).op == other.node(second).op


def test_a_network_and_its_renamed_twin() -> None:
    graph = load_model(pimflow_zoo.build("mobilenet-v2"))
    found = align(graph, renamed(graph))
    assert list(found.pairs.values()) == [f"node{index}" for index in range(len(graph.nodes))]


def chain(rows: int, products: int, *, relu: bool = True, prefix: str = "") -> Graph:
    build = Builder("chain")
    value = build.input(rows, 4)
    for index in range(products):
        weights = build.constant(np.full((4, 4), index, np.float32))
        value = build.op(PRODUCT, value, weights, name=f"{prefix}product{index}")
        if relu or index != 1:
            value = build.op(Elementwise("Relu"), value, name=f"{prefix}relu{index}")
    return build.graph(value)


def test_nodes_of_only_one_graph_stay_unmatched() -> None:
    found = align(chain(8, 3, prefix="a."), chain(8, 3, relu=False, prefix="b."))
    assert found.only_first == ("a.relu1",)
    assert not found.only_second
    assert found.pairs["a.product2"] == "b.product2"
    assert found.pairs["a.relu2"] == "b.relu2"


def test_another_batch_is_the_same_network() -> None:
    found = align(chain(8, 3, prefix="a."), chain(16, 3, prefix="b."))
    assert [(a[2:], b[2:]) for a, b in found.pairs.items()] == [(name, name) for name in (
        "product0", "relu0", "product1", "relu1", "product2", "relu2")]  # fmt: skip


def test_one_name_for_another_op_is_no_match() -> None:
    build = Builder("other")
    other = build.graph(build.op(Elementwise("Neg"), build.input(8, 4), name="relu0"))
    found = align(chain(8, 1), other)
    assert "relu0" not in found.pairs
    assert found.only_second == ("relu0",)
