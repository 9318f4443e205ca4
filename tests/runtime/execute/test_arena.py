"""The arena executor gives the model's own result, and a wrong plan does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from pimflow.errors import InputDataError, MemoryPlanError
from pimflow.ir import Array, Builder, Graph, Node, OnnxOp, Slice
from pimflow.passes import MovementElimination
from pimflow.runtime.execute.arena import run_in_arena
from pimflow.runtime.execute.ort import NodeKernels, random_inputs, run_graph
from pimflow.runtime.memory import MemoryPlan, plan_memory
from support.drawn_graphs import moving_graphs
from support.graphs import attention
from support.values import assert_close, relative_error, run_in_ort


def error_of(graph: Graph, plan: MemoryPlan, seed: int = 0) -> float:
    """The largest relative error of any output against ONNX Runtime on the whole graph; inf for a NaN.

    The graph runs as written: ONNX Runtime folds a Pad wider than the window into a pool, and then rejects the result.
    """
    inputs = random_inputs(graph, seed)
    expected, actual = run_in_ort(graph, inputs), run_in_arena(graph, plan, inputs).outputs
    assert all(actual[name].dtype == array.dtype for name, array in expected.items())
    return max(relative_error(actual[name], array) for name, array in expected.items())


def assert_runs(graph: Graph) -> MemoryPlan:
    plan = plan_memory(graph)
    plan.check()
    assert error_of(graph, plan) < 1e-5
    return plan


@given(moving_graphs())
@settings(max_examples=100)
def test_random_graphs_give_the_same_values_in_the_arena(graph: Graph) -> None:
    assert_runs(graph)
    assert_runs(MovementElimination().run(graph).graph)


def padded_branches() -> Graph:
    """Two readers with different pads, a split along rows, and a Concat along channels."""
    build = Builder()
    a = build.conv(build.input(1, 3, 6, 5), 4, 3, pad=1)
    small = build.conv(build.pad(a, (0, 0, 1, 1), (0, 0, 1, 1)), 2, 3)
    large = build.conv(build.pad(a, (0, 0, 2, 2), (0, 0, 2, 2)), 3, 5)
    top, bottom = build.slice(a, 2, 0, 3), build.slice(a, 2, 2, 6)
    halves = build.concat(2, build.conv(top, 5), build.conv(bottom, 5))
    joined = build.concat(1, build.tanh(small), build.tanh(large))
    return build.graph(build.conv(joined, 2), halves)


def test_movements_of_padded_branches_are_all_free() -> None:
    graph = padded_branches()
    plan = assert_runs(graph)
    assert not plan.kept
    assert len(plan.eliminated) == 6
    assert plan.filled_bytes > 0


def test_padded_values_side_by_side_keep_their_padding() -> None:
    build = Builder()
    x = build.input(1, 3, 6, 5)
    padded = [build.pad(value, (0, 0, 1, 1), (0, 0, 1, 1)) for value in (build.conv(x, 2), build.conv(x, 3))]
    graph = build.graph(build.conv(build.concat(1, *padded), 2, 3))
    assert not assert_runs(graph).kept


@pytest.mark.parametrize("fused", [False, True])
def test_attention_in_the_arena(fused: bool) -> None:
    assert not assert_runs(attention(fused=fused)).kept


def test_operands_of_a_composed_copy_live_until_it_runs() -> None:
    """A Concat; operations in the memory of its operands, if these end with it; then the shuffle of its channels."""
    build = Builder()
    x = build.conv(build.input(1, 3, 4, 4), 3)
    joined = build.concat(1, x, x)
    other = build.tanh(build.conv(build.tanh(build.input(1, 3, 4, 4, name="z")), 3))
    turned = build.transpose(build.reshape(joined, 1, 2, 3, 4, 4), 0, 2, 1, 3, 4)
    graph = build.graph(build.conv(build.reshape(turned, 1, 6, 4, 4), 2), build.conv(other, 2))
    plan = assert_runs(graph)
    assert plan.composed[joined] == (x,)
    assert plan.places[x].last > plan.places[other].first


class Spy:
    """Runs nodes with ONNX Runtime and records which."""

    def __init__(self, graph: Graph) -> None:
        self.kernels = NodeKernels(graph)
        self.names: list[str] = []

    def run(self, node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
        self.names.append(node.name)
        return self.kernels.run(node, inputs)


def test_free_movements_run_no_kernel_and_copy_nothing() -> None:
    graph = padded_branches()
    plan = plan_memory(graph)
    spy = Spy(graph)
    run = run_in_arena(graph, plan, random_inputs(graph, seed=0), kernels=spy)
    assert set(spy.names) == {node.name for node in graph.nodes} - set(plan.eliminated)
    assert run.stats.free_movements == len(plan.eliminated)
    assert run.stats.kernels == len(spy.names)
    assert run.stats.moved_bytes == 0


def test_nodes_of_units_go_to_their_executor() -> None:
    build = Builder()
    x = build.place(build.conv(build.input(1, 3, 4, 4), 4, name="first"), device="pim")
    y = build.place(build.conv(x, 2), device="gpu")
    graph = build.graph(y)
    on_pim: list[str] = []

    class OnPim:
        def runs(self, node: Node) -> bool:
            return node.device == "pim"

        def __call__(self, node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
            on_pim.append(node.name)
            return NodeKernels(graph).run(node, inputs)

    run = run_in_arena(graph, plan_memory(graph), random_inputs(graph, seed=0), unit_execute=OnPim())
    assert on_pim == ["first"]
    assert (run.stats.unit_kernels, run.stats.kernels) == (1, 1)
    assert_close(run.outputs[y], run_graph(graph, random_inputs(graph, seed=0))[y])


def residual_chain() -> Graph:
    build = Builder()
    a = build.conv(build.input(1, 4, 5, 5), 4, 3, pad=1, name="a")
    b = build.conv(a, 4, 3, pad=1, name="b")
    c = build.conv(b, 4, 3, pad=1, name="c")
    return build.graph(build.conv(build.add(a, c, name="sum"), 4, 3, pad=1, name="last"))


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
    """`a`, live across `b`, gets `b`'s memory."""
    here, there = plan.places["a_out"].region, plan.places["b_out"].region
    return moved_region(plan, here, plan.regions[there].offset)


def half_overlapping(plan: MemoryPlan) -> MemoryPlan:
    here, there = plan.places["a_out"].region, plan.places["b_out"].region
    return moved_region(plan, here, abs(plan.regions[there].offset - 64))


def shrunk(plan: MemoryPlan) -> MemoryPlan:
    """The lifetime of `a` ends with its first reader."""
    index = plan.places["a_out"].region
    regions = list(plan.regions)
    regions[index] = replace(regions[index], last=plan.places["a_out"].first + 1)
    return replace(plan, regions=tuple(regions))


def on_its_input(plan: MemoryPlan) -> MemoryPlan:
    """The last convolution overwrites its own input: harmless while kernels stage operands, but invalid."""
    here, there = plan.places["last_out"].region, plan.places["sum_out"].region
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
    view = next(node.output for node in graph.nodes if isinstance(node.op, Slice) and node.op.start)
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
    build = Builder()
    x = build.input(2, 3, 4, 4, dtype=dtype)
    copied = build.onnx("Identity", x)
    kept = build.concat(1, build.slice(copied, 2, 1, 3), build.slice(x, 2, 0, 2))
    graph = build.graph(build.concat(3, kept, kept))
    plan = plan_memory(graph)
    assert not plan.outside
    assert error_of(graph, plan) == 0
    outputs = run_in_arena(graph, plan, random_inputs(graph, seed=0)).outputs
    assert all(float(array.std()) > 0 for array in outputs.values())


def test_values_without_static_shape_live_outside() -> None:
    build = Builder()
    x = build.input(6)
    (picked,) = build.node(OnnxOp("NonZero"), (build.relu(x),), [(None, "int64")])
    count = build.onnx("Shape", picked, shape=(2,))
    graph = build.graph(count, picked)
    plan = plan_memory(graph)
    plan.check()
    assert plan.outside == (picked,)
    inputs = {"x": np.array([1, -1, 2, 0, 3, 4], np.float32)}
    run = run_in_arena(graph, plan, inputs)
    assert run.outputs[count].tolist() == [1, 4]
    assert run.outputs[picked].tolist() == [[0, 2, 4, 5]]


def test_outputs_do_not_alias_the_arena_and_may_be_inputs_or_constants() -> None:
    build = Builder()
    x = build.input(1, 3, 4, 4)
    weight = build.weights(2, 3)
    y = build.slice(build.relu(x), 2, 1, 3)
    graph = build.graph(y, x, weight)
    inputs = random_inputs(graph, seed=0)
    run = run_in_arena(graph, plan_memory(graph), inputs)
    np.testing.assert_array_equal(run.outputs[x], inputs[x])
    np.testing.assert_array_equal(run.outputs[weight], graph.constants[weight])
    np.testing.assert_array_equal(run.outputs[y], np.maximum(inputs[x], 0)[:, :, 1:3])
    assert run.outputs[y].flags.c_contiguous


def test_wrong_inputs_are_refused() -> None:
    graph = residual_chain()
    plan = plan_memory(graph)
    with pytest.raises(InputDataError, match="x"):
        run_in_arena(graph, plan, {})
    with pytest.raises(InputDataError, match="x"):
        run_in_arena(graph, plan, {"x": np.zeros((1, 4, 5, 6), np.float32)})
