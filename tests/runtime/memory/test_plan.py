"""Places, lifetimes and peaks: closed forms, soundness by a simple oracle, and size."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings

from pimflow.data import decode
from pimflow.errors import MemoryPlanError
from pimflow.ir import Builder, Conv2d, Graph, OnDevice, SplitRows
from pimflow.ir.analysis.movement import movement
from pimflow.runtime.memory import ALIGNMENT, MemoryPlan, plan_memory
from support.drawn_graphs import moving_graphs
from support.passes import applied


def conv_chain(length: int, channels: Sequence[int] | None = None) -> Graph:
    build = Builder()
    x = build.input(1, 4, 8, 8)
    for index in range(length):
        x = build.conv(x, channels[index] if channels else 4, bias=False)
    return build.graph(x)


SIZE = 4 * 8 * 8 * 4


def test_a_chain_of_equal_values_needs_two_of_them() -> None:
    plan = plan_memory(conv_chain(10))
    assert plan.arena_bytes == plan.live_bytes == 2 * SIZE
    assert plan.bytes_without_reuse == 11 * SIZE
    assert plan.weight_bytes == 10 * 4 * 4 * 4


def test_a_chain_needs_its_largest_pair_of_neighbours() -> None:
    plan = plan_memory(conv_chain(6, [1, 7, 2, 3, 6, 1]))
    assert plan.arena_bytes == 9 * SIZE // 4
    assert plan.bytes_without_reuse == (4 + 1 + 7 + 2 + 3 + 6 + 1) * SIZE // 4


def test_a_residual_value_stays_while_the_branch_runs() -> None:
    build = Builder()
    a = build.conv(build.input(1, 4, 8, 8), 4)
    b = build.conv(build.conv(build.conv(a, 4), 4), 4)
    plan = plan_memory(build.graph(build.conv(build.add(a, b), 4)))
    assert plan.arena_bytes == 3 * SIZE


def test_elementwise_nodes_write_over_an_input_that_nobody_else_reads() -> None:
    build = Builder()
    x = build.input(1, 4, 8, 8)
    values = [build.conv(x, 4)]
    for _ in range(5):
        values.append(build.tanh(values[-1]))
    plan = plan_memory(build.graph(values[-1]))
    assert plan.arena_bytes == plan.bytes_without_reuse == 2 * SIZE
    assert len({plan.places[name].offset for name in values}) == 1


def test_a_value_that_others_read_or_that_goes_out_is_not_written_over() -> None:
    build = Builder()
    a = build.conv(build.input(1, 4, 8, 8), 4)
    b, c = build.tanh(a), build.relu(a)
    d = build.tanh(b)
    plan = plan_memory(build.graph(c, d, b))
    assert len({plan.places[name].region for name in (a, b, c, d)}) == 4


def test_nodes_of_one_region_of_the_program_share_no_space() -> None:
    """A chain in four regions of two nodes; as one region it takes the memory of all, as any two may run at once."""
    build = Builder()
    x = build.input(1, 4, 8, 8)
    for index in range(8):
        x = build.place(build.conv(x, 4), region=index // 2)
    stepped = build.graph(x)
    plan = plan_memory(stepped)
    assert plan.steps == 4
    assert plan.arena_bytes == 3 * SIZE
    together = stepped.replace(nodes=[node.placed(region=0) for node in stepped.nodes])
    assert plan_memory(together).arena_bytes == 9 * SIZE


def test_offsets_are_aligned() -> None:
    build = Builder()
    x = build.input(1, 3, 3, 3)
    y = build.conv(build.conv(x, 1), 5)
    plan = plan_memory(build.graph(y))
    assert all(region.offset % ALIGNMENT == 0 for region in plan.regions)
    assert [region.bytes for region in plan.regions] == [108, 36, 180]
    assert plan.bytes_without_reuse == 128 + 64 + 192


def test_places_are_nhwc_and_nested() -> None:
    build = Builder()
    x = build.input(2, 3, 4, 5)
    a, b = build.relu(x), build.tanh(x)
    joined = build.concat(1, a, b)
    rows = build.slice(joined, 2, 1, 3)
    plan = plan_memory(build.graph(rows))
    whole, first, second, view = (plan.places[name] for name in (joined, a, b, rows))
    assert whole.strides == (4 * 5 * 6 * 4, 4, 5 * 6 * 4, 6 * 4)
    assert first.strides == second.strides == view.strides == whole.strides
    assert (first.offset, second.offset) == (whole.offset, whole.offset + 3 * 4)
    assert view.offset == whole.offset + 5 * 6 * 4
    assert view.shape == (2, 6, 2, 5)


def cells(plan: MemoryPlan, name: str) -> np.ndarray:
    """Byte addresses of a value's elements."""
    spot = plan.places[name]
    grids = np.indices(spot.shape).reshape(len(spot.shape), -1)
    return spot.offset + np.array(spot.strides, np.int64) @ grids


@given(moving_graphs())
@settings(max_examples=100)
def test_regions_alive_at_once_are_apart(graph: Graph) -> None:
    plan = plan_memory(graph)
    plan.check()
    for one, other in combinations(plan.regions, 2):
        if one.first <= other.last and other.first <= one.last and one.bytes and other.bytes:
            assert one.offset + one.bytes <= other.offset or other.offset + other.bytes <= one.offset
    assert plan.live_bytes <= plan.arena_bytes <= plan.bytes_without_reuse
    for name, spot in plan.places.items():
        region = plan.regions[spot.region]
        addresses = cells(plan, name)
        assert addresses.min() >= region.offset
        assert addresses.max() < region.offset + region.bytes
        assert len(set(addresses.tolist())) == addresses.size
    assert decode(MemoryPlan, json.loads(json.dumps(plan.as_json()))) == plan


@pytest.mark.parametrize("padding", [0.5, float("inf"), float("-inf")])
def test_non_finite_padding_survives_json(padding: float) -> None:
    build = Builder()
    x = build.relu(build.input(1, 4, 6, 5))
    plan = plan_memory(build.graph(build.pad(x, (0, 0, 1, 1), (0, 0, 1, 1), padding)))
    assert [box.value for region in plan.regions for box in region.filled] == 4 * [padding]
    assert decode(MemoryPlan, json.loads(json.dumps(plan.as_json(), allow_nan=False))) == plan


@given(moving_graphs())
@settings(max_examples=20)
def test_plans_are_deterministic(graph: Graph) -> None:
    again = graph.replace(name=graph.name)
    assert json.dumps(plan_memory(graph).as_json()) == json.dumps(plan_memory(again).as_json())


def test_check_names_the_error() -> None:
    plan = plan_memory(conv_chain(3))
    first, second, *rest = plan.regions
    with pytest.raises(MemoryPlanError, match="regions 0 and 1 overlap at step 0"):
        replace(plan, regions=(first, replace(second, offset=first.offset), *rest), places={}).check()
    with pytest.raises(MemoryPlanError, match="misaligned"):
        replace(plan, regions=(replace(first, offset=4), second, *rest), places={}).check()
    with pytest.raises(MemoryPlanError, match="outside the arena"):
        replace(plan, arena_bytes=plan.arena_bytes - 64).check()
    with pytest.raises(MemoryPlanError, match="outlives"):
        replace(plan, regions=(first, replace(second, last=second.first), *rest)).check()
    spot = plan.places["conv0_out"]
    with pytest.raises(MemoryPlanError, match="reaches outside"):
        replace(plan, places={"conv0_out": replace(spot, offset=spot.offset + 4)}).check()


def test_five_thousand_convolutions_are_split_and_planned() -> None:
    length = 5000
    build = Builder()
    x = build.input(1, 2, 4, 4)
    weights = build.weights(2, 2, 3, 3)
    for _ in range(length):
        x = build.op(Conv2d((3, 3), pads=(1, 1, 1, 1)), x, weights)
    graph = build.graph(x)
    decisions = [
        SplitRows(node.name, 2, "newton++") if index % 2 else OnDevice(node.name, "gpu")
        for index, node in enumerate(graph.nodes)
    ]
    compiled = applied(graph, *decisions)
    assert len(movement(compiled)) == 3 * length // 2
    plan = plan_memory(compiled)
    plan.check()
    assert not plan.kept
    assert plan.arena_bytes == 2 * 128
    assert plan.bytes_without_reuse == (length + 1) * 128


def test_a_region_that_grows_thousands_of_times_is_planned() -> None:
    build = Builder()
    grown = build.relu(build.input(1, 1, 2, 2))
    for _ in range(2000):
        grown = build.concat(1, grown, build.tanh(build.slice(grown, 1, 0, 1)))
    plan = plan_memory(build.graph(grown))
    plan.check()
    assert not plan.kept
    assert plan.places[grown].shape[1] == 2001
