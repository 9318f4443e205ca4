"""Explicit padding: only where a device needs it, free where that was promised, and with the same values."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pimflow.ir import Builder, Conv2d, Decision, Graph, OnDevice, Pad, Pipeline, Plan, SplitRows
from pimflow.ir.analysis.movement import place
from pimflow.ir.analysis.padding import uneven_padding
from pimflow.passes import ApplyPlan, ExplicitPadding, MovementElimination, PassManager, why_not
from pimflow.runtime.execute.arena import run_in_arena
from pimflow.runtime.execute.ort import random_inputs
from pimflow.runtime.memory import plan_memory
from support.drawn_graphs import moving_graphs
from support.values import assert_same_values, relative_error, run_in_ort


def split_graph(graph: Graph, split: str, gpu_rows: int) -> Graph:
    """The graph with one convolution split and everything else on the GPU, which pads opposite sides equally."""
    decisions: list[Decision] = [OnDevice(node.name, "gpu") for node in graph.nodes]
    at = next(index for index, node in enumerate(graph.nodes) if node.name == split)
    decisions[at] = SplitRows(split, gpu_rows, "")
    return planned(graph, *decisions)


def planned(graph: Graph, *decisions: Decision) -> Graph:
    plan = Plan("test", tuple(decisions), 0.0, 0.0)
    return PassManager((MovementElimination(), ApplyPlan(plan), ExplicitPadding())).run(graph).graph


def kept(graph: Graph) -> list[str]:
    return [name for name, found in place(graph).actual.items() if not found.free]


def assert_promises_hold(graph: Graph) -> None:
    places = place(graph)
    predicted = {name: (found.free, found.copied) for name, found in places.movements.items()}
    assert predicted == {name: (found.free, found.copied) for name, found in places.actual.items()}


def assert_same_in_arena(before: Graph, after: Graph) -> None:
    plan = plan_memory(after)
    plan.check()
    inputs = random_inputs(before, 0)
    actual = run_in_arena(after, plan, inputs).outputs
    for name, array in run_in_ort(before, inputs).items():
        assert relative_error(actual[name], array) < 1e-5, name


def two_convolutions(rows: int = 8) -> Graph:
    build = Builder()
    first = build.relu(build.conv(build.input(1, 2, rows, 5), 3, 3, pad=1, name="first"))
    return build.graph(build.conv(first, 4, 3, pad=1, name="second"))


@pytest.mark.parametrize("gpu_rows", [1, 4, 7])
def test_only_the_half_on_the_gpu_is_padded_by_a_pad(gpu_rows: int) -> None:
    graph = two_convolutions()
    after = split_graph(graph, "second", gpu_rows)
    (pad,) = [node for node in after.nodes if isinstance(node.op, Pad)]
    assert pad.op == Pad((0, 0, 1, 0), (0, 0, 0, 0))
    (reader,) = after.users(pad.output)
    assert (reader.device, reader.op.pads) == ("gpu", (0, 1, 0, 1))  # type: ignore[attr-defined]
    assert [node.op.pads for node in after.nodes if node.device == "pim"] == [(0, 1, 1, 1)]  # type: ignore[attr-defined]
    assert kept(after) == []
    assert_promises_hold(after)
    assert_same_values(graph, after)
    assert_same_in_arena(graph, after)


def test_model_inputs_have_no_space_for_padding() -> None:
    after = split_graph(two_convolutions(), "first", 4)
    (pad,) = [node.name for node in after.nodes if isinstance(node.op, Pad)]
    assert kept(after) == [pad]
    assert_promises_hold(after)


def test_a_reshaped_value_stays_dense() -> None:
    """Flattened along rows, a map with rows of zeros around each image is not contiguous, so the Pad is copied."""
    build = Builder()
    first = build.relu(build.conv(build.input(2, 3, 6, 4), 3, 1))
    flat = build.reshape(build.transpose(first, 0, 2, 3, 1), 2 * 6 * 4, 3)
    graph = build.graph(build.conv(first, 4, 3, pad=1, name="conv"), build.tanh(flat))
    after = split_graph(graph, "conv", 3)
    assert [name for name in kept(after) if name.startswith("pad")] == kept(after) != []
    assert_promises_hold(after)
    assert_same_in_arena(graph, after)


def test_stages_are_padded_at_the_edges_of_the_map() -> None:
    graph = two_convolutions(12)
    run = [node.name for node in graph.nodes]
    after = planned(graph, Pipeline(tuple(run), ("pim", "gpu", "gpu"), (4, 4, 4), ""))
    pads = [node for node in after.nodes if isinstance(node.op, Pad)]
    assert [(pad.op.before[2], pad.op.after[2], pad.placement.stage) for pad in pads] == [(1, 0, 0), (0, 1, 2)]  # type: ignore[attr-defined]
    assert kept(after) == []
    assert_promises_hold(after)
    assert_same_in_arena(graph, after)


def test_even_padding_stays_where_it_is() -> None:
    graph = two_convolutions()
    after = planned(graph, *(OnDevice(node.name, "gpu") for node in graph.nodes))
    assert not any(isinstance(node.op, Pad) for node in after.nodes)
    assert all(node.placement.padding is None for node in after.nodes)


def test_devices_with_arbitrary_padding_need_no_pad() -> None:
    graph = MovementElimination().run(two_convolutions()).graph
    decisions = (OnDevice("first", "gpu"), OnDevice(graph.nodes[1].name, "gpu"), SplitRows("second", 4, ""))
    placed = ApplyPlan(Plan("test", decisions, 0.0, 0.0)).run(graph).graph
    assert any(any(uneven_padding(node.op)) for node in placed.nodes if node.device == "gpu")
    after = ExplicitPadding(()).run(placed).graph
    assert not any(isinstance(node.op, Pad) for node in after.nodes)
    assert all(node.placement.padding is None for node in after.nodes)


@given(moving_graphs(), st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.filter_too_much])
def test_promised_padding_survives_a_split(graph: Graph, data: st.DataObject) -> None:
    able = [node for node in graph.nodes if isinstance(node.op, Conv2d) and graph.shape(node.output)[2] > 1]
    assume(able)
    conv = data.draw(st.sampled_from(able))
    rows = data.draw(st.integers(1, graph.shape(conv.output)[2] - 1))
    assume(why_not(graph, SplitRows(conv.name, rows, "")) is None)  # half of it may lie entirely in padding
    after = split_graph(graph, conv.name, rows)
    assert not any(any(uneven_padding(node.op)) for node in after.nodes if node.device == "gpu")
    assert_promises_hold(after)
    assert_same_in_arena(graph, after)


@st.composite
def pipelined_graphs(draw: st.DrawFn) -> tuple[Graph, Pipeline]:
    """A run of convolutions, activations and adds, other readers of its values, and a way to divide it into stages."""
    build = Builder(seed=draw(st.integers(0, 99)))
    before = build.relu(build.input(draw(st.integers(1, 2)), 2, draw(st.integers(6, 14)), 5))
    made = [before]
    for _ in range(draw(st.integers(2, 5))):
        x = made[-1]
        kind = draw(st.sampled_from(["conv", "conv", "relu", "add"]))
        like = [name for name in made if build.shape(name) == build.shape(x)]
        if kind == "add":
            made.append(build.add(x, draw(st.sampled_from(like))))
        elif kind == "relu":
            made.append(build.relu(x))
        else:
            made.append(build.conv(x, 2, draw(st.sampled_from([1, 3])), draw(st.sampled_from([1, 1, 2])), pad=1))
    run = tuple(node.name for node in build.nodes[1:])
    rows = build.shape(made[-1])[2]
    assume(rows > 1)
    cuts = sorted(draw(st.sets(st.integers(1, rows - 1), min_size=1, max_size=3)))
    stage_rows = tuple(b - a for a, b in zip((0, *cuts), (*cuts, rows), strict=True))
    able = {node.name for node in build.nodes if isinstance(node.op, Conv2d)}
    devices = tuple(draw(st.sampled_from(["gpu", "pim"])) if name in able else "gpu" for name in run)
    for name in draw(st.lists(st.sampled_from(made), max_size=2)):
        reader = draw(st.sampled_from(["concat", "flatten", "rows"]))
        if reader == "concat":
            build.concat(draw(st.sampled_from([1, 2])), name, name if draw(st.booleans()) else build.relu(name))
        elif reader == "flatten":
            build.reshape(build.transpose(name, 0, 2, 3, 1), math.prod(build.shape(name)))
        else:
            build.slice(name, 2, 1, build.shape(name)[2])
    read = {name for node in build.nodes for name in node.inputs}
    outputs = [node.output for node in build.nodes if node.output not in read]
    return build.graph(*outputs), Pipeline(run, devices, stage_rows, "", draw(st.booleans()))


@given(pipelined_graphs())
@settings(max_examples=80)
def test_promised_padding_survives_pipelining(drawn: tuple[Graph, Pipeline]) -> None:
    graph, pipeline = drawn
    assume(why_not(graph, pipeline) is None)
    decisions: list[Decision] = [OnDevice(node.name, "gpu") for node in graph.nodes if node.name not in pipeline.run]
    after = planned(graph, decisions[0], pipeline, *decisions[1:])
    assert not any(any(uneven_padding(node.op)) for node in after.nodes if node.device == "gpu")
    assert_promises_hold(after)
    assert_same_in_arena(graph, after)
