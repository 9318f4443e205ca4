"""Both parts of a sum over edges add up to the whole, whatever the edges, weights, heads and scales."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pimflow.ir import Builder, Graph, OnDevice, Plan, SplitEdges, Spmm
from pimflow.passes import ApplyPlan, EdgeSplit, FuseEpilogues, PassManager, why_not
from pimflow.runtime.execute.arena import run_in_arena
from pimflow.runtime.execute.ort import random_inputs
from pimflow.runtime.memory import plan_memory
from support.values import assert_close, run_in_ort


def summed(seed: int, heads: int = 0, *, weighted: bool = True, scaled: bool = False) -> Graph:
    """A sum over 90 unsorted edges, some of them duplicates, between other nodes."""
    rng, build = np.random.default_rng(seed), Builder(seed=seed)
    x = build.relu(build.input(*((20, heads, 3) if heads else (20, 6))), name="first")
    dst = np.sort(rng.integers(0, 9, 90))
    rowptr, col = np.searchsorted(dst, np.arange(11)), rng.integers(0, 20, 90).astype(np.int32)
    operands = [x, build.constant(rowptr, "rowptr"), build.constant(col, "col")]
    shape = (90, heads) if heads else (90,)
    operands.append(build.constant(rng.standard_normal(shape).astype(np.float32), "weight") if weighted else "")
    if scaled:
        operands.append(build.constant(rng.standard_normal(10).astype(np.float32), "scale"))
    y = build.tanh(build.op(Spmm(), *operands, name="sum"), name="act")
    return FuseEpilogues().run(build.graph(y)).graph


@settings(max_examples=15)
@given(
    seed=st.integers(0, 999),
    heads=st.sampled_from([0, 2]),
    weighted=st.booleans(),
    scaled=st.booleans(),
    group=st.sampled_from([1, 2, 5, 16]),
    at_least=st.integers(2, 9),
)
def test_the_parts_add_up(seed: int, heads: int, weighted: bool, scaled: bool, group: int, at_least: int) -> None:
    graph = summed(seed, heads, weighted=weighted or bool(heads), scaled=scaled)
    split = SplitEdges("sum", group, at_least, "auto")
    assume(why_not(graph, split) is None)
    others = {node.name: OnDevice(node.name, "gpu") for node in graph.nodes}
    decisions = tuple(split if node.name == "sum" else others[node.name] for node in graph.nodes)
    made = PassManager((ApplyPlan(Plan("test", decisions, 0.0, 0.0)),)).run(graph).graph
    (on_pim,) = (node for node in made.nodes if node.device == "pim")
    assert on_pim.placement.origin == "sum"
    assert 0 < made.value(on_pim.inputs[2]).elements < 90
    feeds = random_inputs(graph, seed)
    (expected,) = run_in_ort(graph, feeds).values()
    for outputs in (run_in_ort(made, feeds), run_in_arena(made, plan_memory(made), feeds).outputs):
        (found,) = outputs.values()
        assert_close(found, expected)


def test_ops_fused_into_a_sum_follow_both_parts() -> None:
    made = EdgeSplit("sum", 16, 3).run(summed(1)).graph
    assert made.node("act").placement.fused_into == "sum_added"
    assert [node.device for node in made.nodes if isinstance(node.op, Spmm)] == ["gpu", "pim"]


@pytest.mark.parametrize(("group", "at_least"), [(0, 2), (16, 0)])
def test_empty_groups_are_refused(group: int, at_least: int) -> None:
    refusal = why_not(summed(1), SplitEdges("sum", group, at_least, "auto"))
    assert refusal is not None
    assert "must be 1 or more" in refusal.reason


def test_only_sums_can_be_split() -> None:
    refusal = why_not(summed(1), SplitEdges("first", 16, 2, "auto"))
    assert refusal is not None
    assert refusal.reason == "first: Relu is not a sum over edges"
