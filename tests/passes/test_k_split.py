"""Split-K computes the model's values, in the arena too, and costs nothing but its parts and their sum."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.ir import Builder, Decision, Elementwise, Graph, MatMul, OnDevice, Plan, Refusal, SplitK
from pimflow.ir.analysis.movement import place
from pimflow.ir.analysis.regions import node_k
from pimflow.passes import ApplyPlan, ExplicitPadding, FuseEpilogues, MovementElimination, PassManager, why_not
from pimflow.runtime.execute.arena import run_in_arena
from pimflow.runtime.execute.ort import random_inputs
from pimflow.runtime.memory import plan_memory
from support.values import relative_error, run_in_ort


def split_graph(graph: Graph, split: SplitK) -> Graph:
    decisions: list[Decision] = [
        split if node.name == split.node else OnDevice(node.name, "gpu") for node in graph.nodes
    ]
    plan = Plan("test", tuple(decisions), 0.0, 0.0)
    return PassManager((MovementElimination(), ApplyPlan(plan), ExplicitPadding())).run(graph).graph


def check_values(graph: Graph, after: Graph) -> None:
    inputs = random_inputs(graph, 0)
    expected, plan = run_in_ort(graph, inputs), plan_memory(after)
    plan.check()
    for actual in (run_in_ort(after, inputs), run_in_arena(after, plan, inputs).outputs):
        assert all(relative_error(actual[name], array) < 1e-5 for name, array in expected.items())


@st.composite
def products(draw: st.DrawFn) -> tuple[Graph, int]:
    """A product or convolution named "product", with or without a bias, an elementwise node after it, and a K."""
    build = Builder(seed=draw(st.integers(0, 99)))
    inner = draw(st.integers(2, 9))
    kind = draw(st.sampled_from(["conv", "gemm", "matmul", "batched"]))
    if kind == "conv":
        x = build.relu(build.input(draw(st.integers(1, 2)), inner, 5, 4))
        kernel = draw(st.sampled_from([1, 3]))
        y = build.conv(x, 3, kernel, draw(st.sampled_from([1, 2])), pad=kernel // 2, name="product")
    elif kind == "gemm":
        y = build.gemm(build.relu(build.input(3, inner)), 4, name="product")
    else:
        x = build.input(2, 3, inner) if kind == "batched" else build.input(3, inner)
        y = build.matmul(build.relu(x), 4, name="product")
    if draw(st.booleans()):
        y = build.tanh(y, name="behind")
    return build.graph(build.add(y, y)), draw(st.integers(1, inner - 1))


@given(products())
@settings(max_examples=80)
def test_values_stay(drawn: tuple[Graph, int]) -> None:
    graph, gpu_k = drawn
    graph = FuseEpilogues().run(graph).graph
    split = SplitK("product", gpu_k, "")
    assert why_not(graph, split) is None
    after = split_graph(graph, split)
    (pim,) = [node for node in after.nodes if node.device == "pim"]
    assert node_k(after, pim) == node_k(graph, graph.node("product")) - gpu_k
    assert all(found.free for found in place(after).actual.values())
    check_values(graph, after)


def test_ops_fused_into_the_product_are_fused_into_the_sum() -> None:
    build = Builder()
    conv = build.relu(build.conv(build.input(1, 8, 4, 4), 3, name="conv"), name="act")
    after = split_graph(FuseEpilogues().run(build.graph(conv)).graph, SplitK("conv", 4, ""))
    added = after.producer(after.node("act").inputs[0])
    assert added is not None
    assert added.op == Elementwise("Add")
    assert after.node("act").placement.fused_into == added.name
    assert [len(after.node(name).inputs) for name in ("conv_gpu", "conv_pim")] == [3, 2], "one part has the bias"


def refused() -> Graph:
    build = Builder()
    x = build.depthwise(build.conv(build.input(1, 8, 6, 6), 8, name="conv"), name="wise")
    x = build.reshape(build.conv(x, 8, 3, 2, pad=(0, 0, 1, 1), name="uneven"), 8, 9)
    return build.graph(build.op(MatMul(), x, build.transpose(x, 1, 0), name="computed"))


@pytest.mark.parametrize(
    ("node", "gpu_k", "reason"),
    [
        ("conv", 8, "8 of K = 8 on the host leave a part empty"),
        ("wise", 4, "8 groups"),
        ("uneven", 4, "padded more"),
        ("computed", 4, "must be a constant"),
        ("nothing", 4, "nothing"),
    ],
)
def test_refusals_say_why(node: str, gpu_k: int, reason: str) -> None:
    refusal = why_not(refused(), SplitK(node, gpu_k, ""))
    assert isinstance(refusal, Refusal)
    assert reason in refusal.reason
