"""Column splits compute the model's values, in the arena too, and cost nothing but their parts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.ir import Builder, Decision, Graph, OnDevice, Plan, Refusal, SplitColumns
from pimflow.ir.analysis.movement import place
from pimflow.passes import ApplyPlan, ExplicitPadding, FuseEpilogues, MovementElimination, PassManager, why_not
from pimflow.runtime.execute.arena import run_in_arena
from pimflow.runtime.execute.ort import random_inputs
from pimflow.runtime.memory import plan_memory
from support.values import assert_close, assert_same_values, relative_error, run_in_ort


def split_graph(graph: Graph, split: SplitColumns) -> Graph:
    decisions: list[Decision] = []
    for node in graph.nodes:
        if node.name == split.node:
            decisions.append(split)
        elif node.name not in split.followers:
            decisions.append(OnDevice(node.name, "gpu"))
    plan = Plan("test", tuple(decisions), 0.0, 0.0)
    return PassManager((MovementElimination(), ApplyPlan(plan), ExplicitPadding())).run(graph).graph


@st.composite
def products(draw: st.DrawFn) -> tuple[Graph, SplitColumns]:
    """A product or convolution, elementwise followers with operands of every shape, and a way to divide it."""
    build = Builder(seed=draw(st.integers(0, 99)))
    columns = draw(st.integers(2, 9))
    kind = draw(st.sampled_from(["conv", "gemm", "matmul", "batched"]))
    if kind == "conv":
        x = build.relu(build.input(draw(st.integers(1, 2)), 3, 5, 4))
        y = build.conv(x, columns, draw(st.sampled_from([1, 3])), pad=1, name="product")
    elif kind == "gemm":
        y = build.gemm(build.relu(build.input(3, 4)), columns, name="product")
    else:
        x = build.input(2, 3, 4) if kind == "batched" else build.input(3, 4)
        y = build.matmul(build.relu(x), columns, name="product")
    followers = []
    for index in range(draw(st.integers(0, 3))):
        shape = build.shape(y)
        follower = draw(st.sampled_from(["tanh", "bias", "scalar", "residual", "self"]))
        if follower == "tanh":
            y = build.tanh(y, name=f"f{index}")
        elif follower == "self":
            y = build.mul(y, y, name=f"f{index}")
        else:
            axis = 1 if kind == "conv" else len(shape) - 1
            narrow = tuple(size if place == axis else 1 for place, size in enumerate(shape))[min(axis, len(shape)) :]
            other = {"bias": narrow, "scalar": (1,), "residual": shape}[follower]
            operand = build.weights(*other) if draw(st.booleans()) else build.input(*other, name=f"operand{index}")
            y = build.add(y, operand, name=f"f{index}")
        followers.append(f"f{index}")
    gpu = draw(st.integers(1, columns - 1))
    return build.graph(build.tanh(y)), SplitColumns("product", gpu, "", tuple(followers))


@given(products())
@settings(max_examples=150)
def test_values_stay(drawn: tuple[Graph, SplitColumns]) -> None:
    graph, split = drawn
    assert why_not(graph, split) is None
    after = split_graph(graph, split)
    (pim,) = [node for node in after.nodes if node.device == "pim"]
    assert after.value(pim.output).elements < graph.value(graph.node("product").output).elements
    inputs = random_inputs(graph, 0)
    expected, plan = run_in_ort(graph, inputs), plan_memory(after)
    plan.check()
    for actual in (run_in_ort(after, inputs), run_in_arena(after, plan, inputs).outputs):
        assert all(relative_error(actual[name], array) < 1e-5 for name, array in expected.items())


def feed_forward() -> Graph:
    build = Builder()
    x = build.input(4, 32)
    hidden = build.tanh(build.add(build.matmul(x, 64, name="up"), build.weights(64), name="bias"), name="act")
    return build.graph(build.tanh(build.add(build.matmul(hidden, 32, name="down"), x, name="residual")))


def test_epilogues_are_fused_part_by_part_and_nothing_is_copied() -> None:
    graph = FuseEpilogues(residual=True).run(feed_forward()).graph
    after = split_graph(graph, SplitColumns("up", 16, "", ("bias", "act")))
    assert after.node("act_gpu").placement.fused_into == "up_gpu"
    assert after.node("act_pim").placement.fused_into == "up_pim"
    assert all(found.free for found in place(after).actual.values())
    assert_same_values(graph, after)
    both = split_graph(graph, SplitColumns("down", 8, "", ("residual",)))
    assert all(found.free for found in place(both).actual.values())
    outputs = run_in_ort(both, random_inputs(graph, 1))
    for name, array in run_in_ort(graph, random_inputs(graph, 1)).items():
        assert_close(outputs[name], array)


@pytest.mark.parametrize(
    ("split", "reason"),
    [
        (SplitColumns("up", 16, "", ("down",)), "not elementwise"),
        (SplitColumns("up", 16, "", ("residual",)), "does not read"),
        (SplitColumns("up", 64, ""), "64 of 64 columns on the host leave a part empty"),
        (SplitColumns("act", 4, ""), "not a convolution or matrix product"),
        (SplitColumns("nothing", 4, ""), "nothing"),
    ],
)
def test_refusals_say_why(split: SplitColumns, reason: str) -> None:
    refusal = why_not(feed_forward(), split)
    assert isinstance(refusal, Refusal)
    assert reason in refusal.reason
