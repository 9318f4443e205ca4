"""The arena executor gives the model's own result, and a plan that is wrong does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from pimflow.errors import InputDataError, MemoryPlanError
from pimflow.ir import Array, Graph, Node, OnnxOp, Value
from pimflow.ir.analysis.movement import annotate_movement
from pimflow.runtime.execute.arena import run_in_arena
from pimflow.runtime.execute.ort import NodeKernels, OrtRunner, run_graph
from pimflow.runtime.memory import MemoryPlan, plan_memory
from support.memory_graphs import Maker, attention, moving_graphs, seeded_inputs


def error_of(graph: Graph, plan: MemoryPlan, seed: int = 0) -> float:
    """Largest difference from ONNX Runtime on the whole graph, relative to the output's magnitude; inf for a NaN.

    The graph runs as written: ONNX Runtime folds a Pad wider than the window into a pool, and then refuses the result.
    """
    inputs = seeded_inputs(graph, seed)
    expected = OrtRunner(graph, threads=1, optimise=False).run(inputs)
    actual = run_in_arena(graph, plan, inputs).outputs
    worst = 0.0
    for name, array in expected.items():
        assert actual[name].shape == array.shape
        assert actual[name].dtype == array.dtype
        difference = np.abs(array.astype(np.float64) - actual[name].astype(np.float64))
        error = float(difference.max(initial=0.0) / max(float(np.abs(array).max(initial=0.0)), 1e-6))
        worst = max(worst, np.inf if np.isnan(error) else error)
    return worst


def assert_runs(graph: Graph) -> MemoryPlan:
    plan = plan_memory(graph)
    plan.check()
    assert error_of(graph, plan) < 1e-5
    return plan


@given(moving_graphs())
@settings(max_examples=150, deadline=None)
def test_random_graphs_give_the_same_values_in_the_arena(graph: Graph) -> None:
    assert_runs(graph)
    assert_runs(annotate_movement(graph))


def padded_branches() -> Graph:
    """Two readers with different pads, a split along rows, and a Concat along channels."""
    make = Maker()
    a = make.conv(make.input(1, 3, 6, 5), 4, 3, p=1)
    small = make.conv(make.pad_hw(a, 1, 1, 1, 1), 2, 3)
    large = make.conv(make.pad_hw(a, 2, 2, 2, 2), 3, 5)
    top, bottom = make.slice(a, 2, 0, 3), make.slice(a, 2, 2, 6)
    halves = make.concat(2, make.conv(top, 5), make.conv(bottom, 5))
    joined = make.concat(1, make.tanh(small), make.tanh(large))
    return make.graph(make.conv(joined, 2), halves)


def test_movements_of_padded_branches_are_all_free() -> None:
    graph = padded_branches()
    plan = assert_runs(graph)
    assert not plan.kept
    assert len(plan.eliminated) == 6
    assert plan.filled_bytes > 0


def test_padded_values_side_by_side_keep_their_padding() -> None:
    make = Maker()
    x = make.input(1, 3, 6, 5)
    padded = [make.pad_hw(value, 1, 1, 1, 1) for value in (make.conv(x, 2), make.conv(x, 3))]
    graph = make.graph(make.conv(make.concat(1, *padded), 2, 3))
    assert not assert_runs(graph).kept


def test_attention_in_the_arena() -> None:
    assert len(assert_runs(attention()).kept) == 1


class Spy:
    """Runs nodes by ONNX Runtime and remembers which."""

    def __init__(self, graph: Graph) -> None:
        self.kernels = NodeKernels(graph)
        self.names: list[str] = []

    def run(self, node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
        self.names.append(node.name)
        return self.kernels.run(node, inputs)


def test_free_movements_run_no_kernel_and_move_no_byte() -> None:
    graph = padded_branches()
    plan = plan_memory(graph)
    spy = Spy(graph)
    run = run_in_arena(graph, plan, seeded_inputs(graph), kernels=spy)
    assert set(spy.names) == {node.name for node in graph.nodes} - set(plan.eliminated)
    assert run.stats.free_movements == len(plan.eliminated)
    assert run.stats.kernels == len(spy.names)
    assert run.stats.moved_bytes == 0


def test_pim_nodes_go_to_the_pim_executor() -> None:
    make = Maker()
    y = make.conv(make.conv(make.input(1, 3, 4, 4), 4, device="pim"), 2, device="gpu")
    graph = make.graph(y)
    on_pim: list[str] = []

    def execute(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
        on_pim.append(node.name)
        return NodeKernels(graph).run(node, inputs)

    run = run_in_arena(graph, plan_memory(graph), seeded_inputs(graph), pim_execute=execute)
    assert on_pim == ["n0"]
    assert (run.stats.pim_kernels, run.stats.kernels) == (1, 1)
    np.testing.assert_allclose(run.outputs[y], run_graph(graph, seeded_inputs(graph))[y], rtol=1e-5)


def residual_chain() -> Graph:
    make = Maker()
    a = make.conv(make.input(1, 4, 5, 5), 4, 3, p=1)
    b = make.conv(a, 4, 3, p=1)
    c = make.conv(b, 4, 3, p=1)
    return make.graph(make.conv(make.add(a, c), 4, 3, p=1))


def moved_region(plan: MemoryPlan, index: int, offset: int) -> MemoryPlan:
    """The plan with one region (and all values in it) at another offset."""
    shift = offset - plan.regions[index].offset
    regions = list(plan.regions)
    regions[index] = replace(regions[index], offset=offset)
    places = {
        name: replace(spot, offset=spot.offset + shift) if spot.region == index else spot
        for name, spot in plan.places.items()
    }
    return replace(plan, regions=tuple(regions), places=places)


def overlapping(plan: MemoryPlan) -> MemoryPlan:
    """`a`, live across `b`, gets `b`'s space."""
    here, there = plan.places["n0_out"].region, plan.places["n1_out"].region
    return moved_region(plan, here, plan.regions[there].offset)


def half_overlapping(plan: MemoryPlan) -> MemoryPlan:
    here, there = plan.places["n0_out"].region, plan.places["n1_out"].region
    return moved_region(plan, here, abs(plan.regions[there].offset - 64))


def shrunk(plan: MemoryPlan) -> MemoryPlan:
    """`a` ends with its first reader."""
    index = plan.places["n0_out"].region
    regions = list(plan.regions)
    regions[index] = replace(regions[index], last=plan.places["n0_out"].first + 1)
    return replace(plan, regions=tuple(regions))


def on_its_input(plan: MemoryPlan) -> MemoryPlan:
    """The last convolution writes over its own input: no harm while kernels stage operands, but unsound."""
    here, there = plan.places["n4_out"].region, plan.places["n3_out"].region
    return moved_region(plan, here, plan.regions[there].offset)


@pytest.mark.parametrize("damage", [overlapping, half_overlapping, shrunk, on_its_input])
def test_unsound_lifetimes_are_caught_by_check_and_by_value(damage: Callable[[MemoryPlan], MemoryPlan]) -> None:
    graph = residual_chain()
    plan = assert_runs(graph)
    broken = damage(plan)
    assert error_of(graph, broken) > 1e-2
    with pytest.raises(MemoryPlanError):
        broken.check()


def test_a_wrong_offset_is_caught_by_value() -> None:
    graph = padded_branches()
    plan = assert_runs(graph)
    view = next(node.output for node in graph.nodes if node.kind == "Slice" and node.op.start)  # type: ignore[union-attr]
    spot = plan.places[view]
    places = {**plan.places, view: replace(spot, offset=spot.offset - spot.strides[2])}
    assert error_of(graph, replace(plan, places=places)) > 1e-2


def test_unfilled_padding_is_caught_by_value() -> None:
    graph = padded_branches()
    plan = assert_runs(graph)
    bare = tuple(replace(region, filled=()) for region in plan.regions)
    assert error_of(graph, replace(plan, regions=bare)) == np.inf


def test_all_regions_at_offset_zero_are_caught_by_value() -> None:
    graph = residual_chain()
    plan = plan_memory(graph)
    for index in range(len(plan.regions)):
        plan = moved_region(plan, index, 0)
    assert error_of(graph, plan) > 1e-2


@pytest.mark.parametrize("dtype", ["float16", "float64", "int64", "int32", "uint8", "bool"])
def test_every_element_type_lives_in_the_arena(dtype: str) -> None:
    make = Maker()
    x = make.input(2, 3, 4, 4, dtype=dtype)
    copied = make.op(OnnxOp("Identity"), x)
    kept = make.concat(1, make.slice(copied, 2, 1, 3), make.slice(x, 2, 0, 2))
    graph = make.graph(make.concat(3, kept, kept))
    plan = plan_memory(graph)
    assert not plan.outside
    assert error_of(graph, plan) == 0
    outputs = run_in_arena(graph, plan, seeded_inputs(graph)).outputs
    assert all(array.std() > 0 for array in outputs.values())


def test_values_without_static_shape_live_outside() -> None:
    make = Maker()
    x = make.input(6)
    make.values["picked"] = Value("picked", None, "int64")
    make.nodes.append(Node(OnnxOp("NonZero"), (make.relu(x),), ("picked",), "nonzero"))
    make.values["count"] = Value("count", (2,), "int64")
    make.nodes.append(Node(OnnxOp("Shape"), ("picked",), ("count",), "shape"))
    graph = make.graph("count", "picked")
    plan = plan_memory(graph)
    plan.check()
    assert plan.outside == ("picked",)
    inputs = {"x0": np.array([1, -1, 2, 0, 3, 4], np.float32)}
    run = run_in_arena(graph, plan, inputs)
    assert run.outputs["count"].tolist() == [1, 4]
    assert run.outputs["picked"].tolist() == [[0, 2, 4, 5]]


def test_outputs_do_not_alias_the_arena_and_may_be_inputs_or_constants() -> None:
    make = Maker()
    x = make.input(1, 3, 4, 4)
    weight = make.constant(2, 3)
    y = make.slice(make.relu(x), 2, 1, 3)
    graph = make.graph(y, x, weight)
    inputs = seeded_inputs(graph)
    run = run_in_arena(graph, plan_memory(graph), inputs)
    np.testing.assert_array_equal(run.outputs[x], inputs[x])
    np.testing.assert_array_equal(run.outputs[weight], graph.constants[weight])
    np.testing.assert_array_equal(run.outputs[y], np.maximum(inputs[x], 0)[:, :, 1:3])
    assert run.outputs[y].flags.c_contiguous


def test_wrong_inputs_are_refused() -> None:
    graph = residual_chain()
    plan = plan_memory(graph)
    with pytest.raises(InputDataError, match="x0"):
        run_in_arena(graph, plan, {})
    with pytest.raises(InputDataError, match="x0"):
        run_in_arena(graph, plan, {"x0": np.zeros((1, 4, 5, 6), np.float32)})
