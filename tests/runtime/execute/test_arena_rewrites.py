"""Compiled graphs (splits, pipelines, branches) in the arena: same values, free movements, local verdicts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.ir import (
    Builder,
    Concat,
    Decision,
    Graph,
    OnDevice,
    Parallel,
    Pipeline,
    Slice,
    SplitColumns,
    SplitK,
    SplitRows,
)
from pimflow.ir.analysis.movement import movement
from pimflow.ir.analysis.regions import cut_subgraph
from pimflow.ir.placement import MovementVerdict
from pimflow.passes import MovementElimination
from pimflow.runtime.execute.arena import run_in_arena
from pimflow.runtime.execute.ort import random_inputs
from pimflow.runtime.memory import plan_memory
from support.passes import applied
from support.values import assert_close, run_in_ort


def assert_same_in_arena(original: Graph, compiled: Graph) -> None:
    inputs = random_inputs(original, seed=0)
    plan = plan_memory(compiled)
    plan.check()
    expected, actual = run_in_ort(original, inputs), run_in_arena(compiled, plan, inputs).outputs
    for name, array in expected.items():
        assert_close(actual[name], array, name=name)


def verdicts(graph: Graph, region: int) -> list[tuple[str, bool, int]]:
    found = movement(graph)
    nodes = [node for node in graph.nodes if node.name in found and node.placement.region == region]
    return [(repr(node.op), found[node.name].free, found[node.name].bytes) for node in nodes]


def assert_local(clean: Graph, compiled: Graph, decisions: Sequence[Decision]) -> None:
    """Assert that every decision, cut out and applied alone, gives the verdicts that hold in the whole graph."""
    for index, decision in enumerate(decisions):
        alone = applied(cut_subgraph(clean, decision.nodes), decision)
        assert verdicts(alone, 0) == verdicts(compiled, index)


@st.composite
def compiled_chains(draw: st.DrawFn) -> tuple[Graph, list[Decision]]:
    """A chain of convolutions, activations and residual adds, with decisions that cover it."""
    build = Builder(seed=draw(st.integers(0, 99)))
    x = build.conv(build.input(draw(st.integers(1, 2)), 3, 16, 8), 4, name="first")
    decisions: list[Decision] = [OnDevice("first", "gpu")]
    outputs: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        shape = draw(st.sampled_from(["split", "split", "followed", "pipeline", "residual", "pim", "concat", "dense"]))
        start = len(build.nodes)
        x = _block(draw, build, decisions, shape, x)
        decisions.extend(
            OnDevice(node.name, "gpu") for node in build.nodes[start:] if not _covered(decisions, node.name)
        )
        if draw(st.booleans()):
            outputs.append(x)
    return build.graph(*dict.fromkeys([*outputs, build.tanh(x)])), [*decisions, OnDevice(build.nodes[-1].name, "gpu")]


def _covered(decisions: Sequence[Decision], name: str) -> bool:
    return any(name in decision.nodes for decision in decisions)


def _block(draw: st.DrawFn, build: Builder, decisions: list[Decision], shape: str, x: str) -> str:
    start = len(build.nodes)
    rows = build.shape(x)[2]
    kernel = draw(st.sampled_from([1, 3]))
    if shape in ("split", "followed"):
        y = build.conv(x, 4, kernel, pad=kernel // 2)
        y = build.add(build.tanh(y), x) if shape == "followed" else y
        names = [node.name for node in build.nodes[start:]]
        decisions.append(SplitRows(names[0], draw(st.integers(1, rows - 1)), "newton++", tuple(names[1:])))
        return y
    if shape in ("pipeline", "residual"):
        y = build.conv(build.conv(x, 4, 1), 4, 3, pad=1)
        y = build.add(build.conv(build.tanh(y), 4, kernel, pad=kernel // 2), x) if shape == "residual" else y
        names = [node.name for node in build.nodes[start:]]
        devices = tuple("pim" if node.kind == "Conv" and draw(st.booleans()) else "gpu" for node in build.nodes[start:])
        stages = draw(st.integers(2, 3))
        cut = sorted(draw(st.lists(st.integers(1, rows - 1), min_size=stages - 1, max_size=stages - 1, unique=True)))
        sizes = tuple(b - a for a, b in zip([0, *cut], [*cut, rows], strict=True))
        decisions.append(Pipeline(tuple(names), devices, sizes, "newton++", draw(st.booleans())))
        return y
    if shape == "dense":
        return _dense_block(draw, build, decisions, x)
    if shape == "pim":
        y = build.conv(x, 4, kernel, pad=kernel // 2)
        decisions.append(OnDevice(build.producer(y).name, "pim", "newton++"))
        return y
    a, b = build.conv(x, 2), build.conv(x, 2)
    decisions.append(
        Parallel(((OnDevice(build.nodes[-2].name, "gpu"),), (OnDevice(build.nodes[-1].name, "pim", "newton++"),)))
    )
    return build.concat(1, a, b)


def _dense_block(draw: st.DrawFn, build: Builder, decisions: list[Decision], x: str) -> str:
    """A run that begins with a Concat along channels, whose parts are written into the rows of one region."""
    y = build.conv(x, 2)
    decisions.append(OnDevice(build.nodes[-1].name, "gpu"))
    start, rows = len(build.nodes), build.shape(x)[2]
    joined = build.concat(1, x, y)
    out = build.conv(build.tanh(joined), 4, 3, pad=1)
    names = tuple(node.name for node in build.nodes[start:])
    first = draw(st.integers(1, rows - 1))
    decisions.append(Pipeline(names, ("gpu", "gpu", "pim"), (first, rows - first), "newton++", draw(st.booleans())))
    return build.conv(build.concat(1, joined, out), 4) if draw(st.booleans()) else out


@given(compiled_chains())
@settings(max_examples=40)
def test_compiled_graphs_give_the_original_values_in_the_arena(case: tuple[Graph, list[Decision]]) -> None:
    graph, decisions = case
    assert_same_in_arena(graph, applied(graph, *decisions))
    annotated = MovementElimination().run(graph).graph
    assert_same_in_arena(graph, applied(annotated, *decisions))


@given(compiled_chains())
@settings(max_examples=60)
def test_verdicts_are_local_and_all_added_movements_are_free(case: tuple[Graph, list[Decision]]) -> None:
    graph, decisions = case
    for clean in (graph, MovementElimination().run(graph).graph):
        compiled = applied(clean, *decisions)
        assert_local(clean, compiled, decisions)
        found = movement(compiled)
        added = [node for node in compiled.nodes if node.name not in clean.node_by_name and node.name in found]
        assert all(isinstance(node.op, Slice | Concat) for node in added)
        for node in added:
            cut_up = clean.node(node.placement.origin or "")
            told = movement(clean).get(cut_up.name)
            assert found[node.name].free or cut_up.kind == "Concat"
            assert found[node.name].free or (clean is graph or (told is not None and not told.free))
        plan = plan_memory(compiled)
        assert {name: (v.free, v.bytes) for name, v in plan.movements.items()} == {
            name: (v.free, v.bytes) for name, v in found.items()
        }


def test_a_concat_of_other_regions_values_stays_a_copy_until_annotated() -> None:
    build = Builder()
    x = build.input(1, 3, 4, 4)
    joined = build.concat(1, build.conv(x, 2), build.conv(x, 3))
    graph = build.graph(build.conv(joined, 2))
    decisions = [OnDevice(node.name, "gpu") for node in graph.nodes]
    assert movement(graph)["concat2"].free
    assert not movement(applied(graph, *decisions))["concat2"].free
    assert movement(applied(graph, *decisions))["concat2"].bytes == 2 * 4 * 5 * 16
    annotated = applied(MovementElimination().run(graph).graph, *decisions)
    assert movement(annotated)["concat2"].free
    assert not plan_memory(annotated).kept


@pytest.mark.parametrize(
    "split",
    [
        SplitColumns("product", 3, "newton++"),
        SplitRows("product", 1, "newton++"),
        SplitK("product", 2, "newton++"),
        OnDevice("product", "pim", "newton++"),
    ],
    ids=lambda split: type(split).__name__,
)
def test_a_split_product_writes_its_result_transposed(split: Decision) -> None:
    build = Builder()
    turned = build.transpose(build.matmul(build.relu(build.input(2, 3, 5)), 8, name="product"), 1, 0, 2)
    graph = MovementElimination().run(build.graph(build.tanh(turned))).graph
    rest = [OnDevice(node.name, "gpu") for node in graph.nodes if node.name not in split.nodes]
    compiled = applied(graph, rest[0], split, *rest[1:])
    assert not plan_memory(compiled).kept
    assert_same_in_arena(graph, compiled)


def test_an_unjustified_verdict_is_planned_as_a_copy() -> None:
    build = Builder()
    a = build.conv(build.input(1, 3, 4, 4), 2)
    twice = build.place(build.concat(1, a, a), movement=MovementVerdict(True, "so it was said"))
    graph = build.graph(build.conv(twice, 2))
    assert movement(graph)["concat1"].free
    assert plan_memory(graph).kept["concat1"].copied == (1,)
    assert_same_in_arena(graph, graph)
