"""Queries on parts of graphs: cutting them out, their cost in nodes, and chains of elementwise nodes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import pimflow
from pimflow.errors import GraphError
from pimflow.frontend import load_model
from pimflow.ir import Builder, Graph, OnDevice, SplitRows
from pimflow.ir.analysis.regions import cut_subgraph, node_rows, pipeline_refusal
from pimflow.ir.verify import verify_graph
from pimflow.runtime.execute.ort import random_inputs
from support.onnx_models import model_of
from support.passes import applied
from support.values import assert_close, run_in_ort


def residual_block() -> Graph:
    build = Builder()
    x = build.input(1, 4, 8, 8)
    a = build.conv(x, 4, 3, 1, 1, name="a")
    c = build.conv(build.relu(a, name="b"), 4, name="c")
    return build.graph(build.sigmoid(build.add(c, x, name="d"), name="e"), build.global_average(a))


def test_a_region_is_a_graph_of_its_own() -> None:
    graph = residual_block()
    region = cut_subgraph(graph, ["c", "d", "b"])
    verify_graph(region)
    assert [node.name for node in region.nodes] == ["b", "c", "d"], "in the graph's order"
    assert region.inputs == ("a_out", "x")
    assert region.outputs == ("d_out",)
    assert all(region.constants[name] is graph.constants[name] for name in region.constants)
    assert set(region.constants) == set(graph.node("c").inputs[1:])


def test_values_read_outside_or_by_the_caller_leave_a_region() -> None:
    graph = residual_block()
    assert cut_subgraph(graph, ["a", "b"]).outputs == ("a_out", "b_out")
    assert cut_subgraph(graph, ["e"]).outputs == ("e_out",)
    dead = graph.replace(outputs=graph.outputs[1:])
    assert cut_subgraph(dead, ["d", "e"]).outputs == ("e_out",)


def test_an_unknown_node_cannot_be_cut_out() -> None:
    with pytest.raises(GraphError, match="no node 'z'"):
        cut_subgraph(residual_block(), ["a", "z"])


def test_a_region_computes_the_same_as_in_the_whole_graph() -> None:
    graph = residual_block()
    split = SplitRows("c", 3, "auto", ("d", "e"))
    region = applied(cut_subgraph(graph, ["c", "d", "e"]), split)
    inputs = random_inputs(graph, seed=0)
    whole = run_in_ort(graph.replace(outputs=("b_out", "e_out")), inputs)
    part = run_in_ort(region, {"b_out": whole["b_out"], "x": inputs["x"]})
    assert_close(part["e_out"], whole["e_out"])


def test_a_region_is_rewritten_alone_as_in_the_whole_graph() -> None:
    graph = residual_block()
    split = SplitRows("c", 3, "auto", ("d", "e"))
    order = [node.name for node in graph.nodes]
    others = [OnDevice(name, "gpu") for name in order if name not in split.nodes]
    whole = applied(graph, *others, split)
    alone = applied(cut_subgraph(graph, split.nodes), split)
    region = [node for node in whole.nodes if node.placement.region == len(others)]
    assert [(n.op, n.inputs, n.outputs, n.device) for n in region] == [
        (n.op, n.inputs, n.outputs, n.device) for n in alone.nodes
    ]


def long_chain(length: int) -> Graph:
    build = Builder()
    x = build.input(1, 2, 8, 4)
    for _ in range(length):
        x = build.relu(build.conv(x, 2, 3, 1, 1))
    return build.graph(x)


def test_a_long_chain_of_nodes_is_split_and_sound() -> None:
    graph = long_chain(500)
    nodes = list(graph.nodes)
    decisions = [SplitRows(nodes[i].name, 4, "auto", (nodes[i + 1].name,)) for i in range(0, len(nodes), 2)]
    split = applied(graph, *decisions)
    assert len(split.nodes) == 500 * 7
    assert pipeline_refusal(graph, [node.name for node in nodes]) is None


def test_a_far_operand_is_taken_to_depend_on_the_node() -> None:
    build = Builder()
    x = build.conv(build.input(1, 2, 8, 4), 2, name="first")
    other = build.input(1, 2, 8, 4, name="y")
    for _ in range(300):
        other = build.relu(other)
    far = build.graph(build.add(x, other, name="far"))
    refusal = pipeline_refusal(far, ("first", "far"))
    assert refusal is not None, "not proven within the limit"
    assert "may depend on the region" in refusal.reason


def test_a_first_output_that_is_left_out_has_no_rows() -> None:
    """An LSTM of which only the last state is read."""
    weights = {"w": np.ones((1, 32, 16), np.float32), "r": np.ones((1, 32, 8), np.float32)}
    nodes = [helper.make_node("LSTM", ["x", "w", "r"], ["", "y"], hidden_size=8)]
    graph = load_model(model_of(nodes, {"x": (4, 1, 16)}, constants=weights))
    assert [node_rows(graph, node) for node in graph.nodes if not node.outputs[0]] == [0]
    compiled = pimflow.compile(model_of(nodes, {"x": (4, 1, 16)}, constants=weights), use_cache=False)
    assert compiled.verify().passed
