"""Plans applied: every node is placed once, and decisions that do not fit are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pimflow.errors import PlanError
from pimflow.ir import Builder, Concat, Decision, Graph, OnDevice, Parallel, Placement, Slice, SplitRows
from pimflow.runtime.timeline import build_timeline
from support.costs import FakeCosts
from support.passes import applied
from support.values import assert_same_values


def squeeze_and_excite() -> Graph:
    """conv -> clip -> Mul by a gate from elsewhere -> Add of a residual -> sigmoid."""
    build = Builder()
    x = build.input(2, 4, 9, 5)
    gate = build.sigmoid(build.conv(build.global_average(x), 4, name="squeeze"), name="gate")
    out = build.clip(build.conv(x, 4, 3, 1, 1, name="conv"), name="clip")
    out = build.mul(out, gate, name="excite")
    return build.graph(build.sigmoid(build.add(out, x, name="residual"), name="last"))


def test_tags() -> None:
    build = Builder()
    conv = build.conv(build.input(1, 4, 8, 8), 4, name="conv")
    graph = build.graph(build.conv(build.clip(conv, name="clip"), 2, name="next"))
    clip = graph.node("clip").placed(fused_into="conv")
    clip = replace(clip, tags=(("note", "kept"),))
    graph = graph.replace(nodes=[clip if node.name == "clip" else node for node in graph.nodes])
    split = applied(graph, SplitRows("conv", 3, "newton++", ("clip",)), OnDevice("next", "pim", "auto"))
    assert split.node("conv_pim").placement == Placement("pim", 0, choice="newton++", origin="conv")
    assert split.node("conv_gpu").placement == Placement("gpu", 0, origin="conv")
    assert split.node("clip_pim").device == "gpu"
    assert split.node("clip_pim").placement.fused_into == "conv_pim"
    assert split.node("clip_gpu").placement.fused_into == "conv_gpu"
    assert split.node("clip_gpu").tags == (("note", "kept"),)
    assert split.node("next").placement == Placement("pim", 1, choice="auto")
    assert {node.placement.origin for node in split.nodes if isinstance(node.op, Slice | Concat)} == {"conv", "clip"}
    assert all(node.device and node.placement.region is not None for node in split.nodes)


def test_decisions_that_read_the_same_rows_of_a_value_share_their_slices() -> None:
    build = Builder()
    x = build.clip(build.input(1, 4, 8, 8), name="clip")
    convs = [build.conv(x, 4, name=name) for name in ("first", "same", "other")]
    graph = build.graph(build.concat(1, *convs, name="join"))
    splits = [SplitRows(name, rows, "newton++") for name, rows in (("first", 3), ("same", 3), ("other", 2))]
    split = applied(graph, OnDevice("clip", "gpu"), *splits, OnDevice("join", "gpu"))
    slices = {node.output: node for node in split.nodes if isinstance(node.op, Slice)}
    assert [(node.op, node.placement.region) for node in slices.values()] == [
        (Slice(2, 0, 3), 1), (Slice(2, 3, 8), 1), (Slice(2, 0, 2), 3), (Slice(2, 2, 8), 3),
    ]  # fmt: skip
    for device in ("gpu", "pim"):
        first, same, other = (split.node(f"{name}_{device}") for name in ("first", "same", "other"))
        assert first.inputs[0] == same.inputs[0] != other.inputs[0]
        assert {first.inputs[0], other.inputs[0]} < set(slices)
    assert_same_values(graph, split)


def test_parallel_branches_get_devices_in_one_region() -> None:
    build = Builder()
    x = build.input(1, 4, 8, 8)
    left, right = build.conv(x, 4, name="left"), build.conv(x, 4, 3, 1, 1, name="right")
    graph = build.graph(build.add(left, right, name="join"))
    placed = applied(
        graph, Parallel(((OnDevice("left", "pim", "auto"),), (OnDevice("right", "gpu"),))), OnDevice("join", "gpu")
    )
    assert [(node.name, node.device, node.placement.region) for node in placed.nodes] == [
        ("left", "pim", 0), ("right", "gpu", 0), ("join", "gpu", 1),
    ]  # fmt: skip
    assert_same_values(graph, placed)


def test_joined_decisions_wait_only_for_their_operands() -> None:
    build = Builder()
    x = build.input(1, 4, 8, 8)
    left, right = build.conv(x, 4, name="left"), build.conv(x, 4, 3, 1, 1, name="right")
    behind = build.conv(right, 4, name="behind")
    graph = build.graph(build.add(left, behind, name="join"))
    each = [OnDevice("left", "pim", "auto"), OnDevice("right", "gpu"), OnDevice("behind", "pim", "auto")]
    together = applied(graph, Parallel((tuple(each),)), OnDevice("join", "gpu"))
    assert {node.name: node.placement.region for node in together.nodes} == {
        "left": 0, "right": 0, "behind": 0, "join": 1,
    }  # fmt: skip
    assert_same_values(graph, together)
    costs = FakeCosts()
    us = {node.name: costs.node_cost(together, node).time_us for node in together.nodes}
    timeline = build_timeline(together, costs.target, costs)
    starts = {event.node: event.start_us for event in timeline.events}
    assert starts["left"] == starts["right"] == 0, "on two devices"
    assert starts["behind"] == max(us["left"], us["right"]), "its device is free, and its operands are ready"
    assert starts["join"] == starts["behind"] + us["behind"]


def one_conv(*shape: int) -> Graph:
    build = Builder()
    relu = build.relu(build.conv(build.input(*shape), 4, name="conv"), name="relu")
    return build.graph(build.place(relu, fused_into="conv"))


@pytest.mark.parametrize(
    ("decisions", "message"),
    [
        ([OnDevice("conv", "gpu")], "no decision of the plan covers node 'relu'"),
        (
            [OnDevice("conv", "gpu"), OnDevice("relu", "gpu"), OnDevice("conv", "pim", "auto")],
            "'conv' is in decision 0 and again in decision 2",
        ),
        ([OnDevice("conv", "gpu"), OnDevice("rely", "gpu")], "did you mean 'relu'"),
        ([OnDevice("relu", "gpu"), OnDevice("conv", "gpu")], "makes later"),
        ([OnDevice("conv", "gpu"), OnDevice("relu", "pim", "auto")], "Relu is fused into conv and cannot run on PIM"),
        ([SplitRows("conv", 0, "auto"), OnDevice("relu", "gpu")], "leave a part empty"),
        ([SplitRows("conv", 8, "auto"), OnDevice("relu", "gpu")], "leave a part empty"),
        ([OnDevice("conv", "gpu"), SplitRows("relu", 4, "auto")], "Relu is fused into conv"),
        ([SplitRows("conv", 4, "auto", ("relu", "relu"))], "again"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(decisions: list[Decision], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        applied(one_conv(1, 4, 8, 8), *decisions)


def test_the_same_plan_gives_the_same_graph() -> None:
    graph = squeeze_and_excite()
    before, after = ([OnDevice(node.name, "gpu") for node in nodes] for nodes in (graph.nodes[:3], graph.nodes[5:]))
    decisions: list[Decision] = [*before, SplitRows("conv", 4, "auto", ("clip",)), *after]
    assert applied(graph, *decisions).nodes == applied(graph, *decisions).nodes
