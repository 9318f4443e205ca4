"""The gains from a second buffer, freely paired slots or window strips; every shipped machine can be used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from pimflow.codegen import ConvProblem, MatmulProblem, MatrixProblem
from pimflow.codegen.newton import PimProgram, lower
from pimflow.codegen.newton.mapping import Mapping
from pimflow.ir import Refusal
from pimflow.runtime.newton.autotune.choose import MappingSearch
from pimflow.runtime.newton.autotune.space import candidates
from pimflow.runtime.newton.breakdown import cycle_breakdown
from pimflow.runtime.newton.cost import PimCost
from pimflow.runtime.newton.profiles import timing_profile
from pimflow.runtime.newton.timing.streams import StreamTimer
from pimflow.targets import PimSpec, load_target, target_names
from support.newton.problems import chosen
from support.newton.timing import timer, total_cycles

TARGET = load_target("pimflow")
LAYER = ConvProblem(1, 64, 96, 14, 14, (3, 3), (1, 1), (1, 1, 1, 1))


def cycles(timing: str, **changes: Any) -> int:
    return chosen(LAYER, TARGET.with_units(pim=replace(TARGET.pim, **changes)), "auto", timing).cycles


def fewest_cycles(mappings: Sequence[Mapping], timer: StreamTimer) -> int:
    programs = [lower(LAYER, mapping, timer.profile.pim) for mapping in mappings]
    return min(total_cycles(program, timer) for program in programs if isinstance(program, PimProgram))


@pytest.mark.parametrize("timing", ["artifact", "strict"])
def test_more_hardware_is_faster(timing: str) -> None:
    plain = cycles(timing)
    assert cycles(timing, buffers_per_channel=2) < plain
    assert cycles(timing, any_slot_any_column=True) < plain
    assert cycles(timing, buffers=1) > plain
    assert cycles(timing, channels=8) > 1.8 * plain
    assert cycles(timing, gwrite_latency="exposed") >= plain


@pytest.mark.parametrize(
    "changes",
    [{"buffer_parts": 2}, {"buffer_pool": True}, {"buffer_parts": 2, "buffer_pool": True}],
    ids=["halves", "pool", "both"],
)
def test_buffers_filled_concurrently_with_comps(changes: dict[str, Any]) -> None:
    """Changes of hardware: alternate halves of a buffer, or use buffers that other groups of channels do not need."""
    assert cycles("strict", **changes) < 0.9 * cycles("strict")
    for problem in (MatmulProblem(1, 1280, 320), ConvProblem(1, 40, 240, 14, 14, (1, 1))):
        for timing in ("strict", "artifact"):
            plain = chosen(problem, TARGET, "auto", timing)
            machine = TARGET.with_units(pim=replace(TARGET.pim, **changes))
            assert chosen(problem, machine, "auto", timing).cycles <= plain.cycles


@pytest.mark.parametrize("sizes", [(64, 384, 7), (16, 16, 14)], ids=str)
def test_no_option_makes_a_choice_slower(sizes: tuple[int, int, int]) -> None:
    """Nor do several at once: any choice without them is also possible with them."""
    in_channels, out_channels, size = sizes
    layer = ConvProblem(1, in_channels, out_channels, size, size, (1, 1))
    machines = list(product((1, 2), (False, True), (False, True)))
    taken: dict[tuple[int, bool, bool], float] = {}
    for machine in machines:
        parts, pool, freely = machine
        pim = replace(TARGET.pim, buffer_parts=parts, buffer_pool=pool, any_slot_any_column=freely)
        told = MappingSearch(timing_profile(pim, "strict")).time_us(layer, "auto")
        assert not isinstance(told, Refusal)
        taken[machine] = told
    for less, more in product(machines, machines):
        if all(a <= b for a, b in zip(less, more, strict=True)):
            assert taken[more] <= taken[less], (less, more)


def _costs(problem: MatrixProblem, machines: Sequence[PimSpec], timing: str) -> Iterator[PimCost]:
    for pim in machines:
        yield chosen(problem, TARGET.with_units(pim=pim), "auto", timing)


@pytest.mark.parametrize("others", [{}, {"buffer_parts": 2}, {"buffer_pool": True}], ids=["plain", "halves", "pool"])
@pytest.mark.parametrize("timing", ["strict", "artifact"])
def test_no_buffer_makes_a_choice_slower(timing: str, others: dict[str, Any]) -> None:
    for layer in (LAYER, ConvProblem(1, 70, 200, 9, 13, (1, 1)), MatmulProblem(9, 64, 33, 4, True, False)):
        machines = [replace(TARGET.pim, buffers_per_channel=held, **others) for held in range(1, 5)]
        times_us = [cost.time_us for cost in _costs(layer, machines, timing)]
        assert times_us == sorted(times_us, reverse=True)


def test_a_kernel_divides_its_buffers_or_leaves_them_whole() -> None:
    halves = TARGET.with_units(pim=replace(TARGET.pim, buffer_parts=2))
    layer, vector = (
        chosen(problem, halves, "auto", "strict").mapping for problem in (LAYER, MatmulProblem(1, 1280, 320))
    )
    assert (layer.buffer_parts, vector.buffer_parts) == (2, 1)
    assert max(run.slots for run in layer.runs) <= TARGET.pim.buffer_columns // 2
    refused = lower(LAYER, layer, TARGET.pim)
    assert isinstance(refused, Refusal)
    assert "divides buffers into 2 parts" in refused.reason


def test_a_pool_has_as_many_buffers_as_the_device() -> None:
    pool = replace(TARGET.pim, buffer_pool=True)
    assert [pool.fills_held(groups) for groups in (1, 2, 3, 4)] == [4, 2, 1, 1]
    assert [TARGET.pim.fills_held(groups) for groups in (1, 4)] == [1, 1]
    for entry in candidates(LAYER, timer(pool, "strict").profile):
        assert len(entry.mapping.groups) * entry.mapping.fills_held <= TARGET.pim.buffers
    mapping = chosen(LAYER, TARGET.with_units(pim=pool), "auto", "strict").mapping
    assert mapping.fills_held > 1
    refused = lower(LAYER, replace(mapping, fills_held=4 // len(mapping.groups) + 1), pool)
    assert isinstance(refused, Refusal)
    assert refused.unit == "buffers per channel"


def test_window_strips_save_fills_where_comp_pairs_freely() -> None:
    strict = timer(replace(TARGET.pim, any_slot_any_column=True), "strict")
    found = candidates(LAYER, strict.profile)
    strips = [entry for entry in found if entry.mapping.runs[0].pitch]
    assert strips
    strip = fewest_cycles([entry.mapping for entry in strips], strict)
    others = [entry.mapping for entry in found if not entry.mapping.window_block]
    assert strip < fewest_cycles(others[:8], strict)


@pytest.mark.parametrize("name", [name for name in target_names() if "pim" in load_target(name).units])
@pytest.mark.parametrize("timing", ["artifact", "strict"])
def test_every_target_maps_and_explains(name: str, timing: str) -> None:
    target = load_target(name)
    for problem in (LAYER, MatmulProblem(1, 1280, 1000), MatmulProblem(9, 64, 33, 4, True, False)):
        for policy in ("newton+", "newton++", "auto"):
            cost = chosen(problem, target, policy, timing)
            assert isinstance(cost, PimCost)
            assert len(cost.channels) == target.pim.channels
            assert max(channel.cycles for channel in cost.channels) == cost.cycles
            assert 0 < cost.utilisation <= 1
            assert cost.energy_mj > 0
            spent = cycle_breakdown(cost)
            assert sum(spent.as_json().values()) == cost.cycles
            assert min(spent.as_json().values()) >= 0
            assert all(channel.parts.total == channel.cycles for channel in cost.channels)


def test_tiles_share_a_row_where_pixels_are_few() -> None:
    """28 > 672 as 1x1: 42 tiles of two slots, three a row, with the vector three times in the buffer: one row each."""
    cost = chosen(ConvProblem(1, 28, 672, 1, 1, (1, 1)), TARGET, "auto", "artifact")
    assert isinstance(cost, PimCost)
    assert cost.mapping.tiles_per_row == cost.mapping.runs[0].copies == 3
    assert cost.commands.g_act == 14 * TARGET.pim.bank_groups


def test_weight_groups_are_spread_where_that_saves_rows() -> None:
    problem = MatmulProblem(1, 64, 512, 32, batched_rhs=True, constant_rhs=False)
    cost = chosen(problem, TARGET, "auto", "artifact")
    newton = chosen(problem, TARGET, "newton++", "artifact")
    assert isinstance(cost, PimCost)
    assert isinstance(newton, PimCost)
    assert [group.weight_groups for group in cost.mapping.groups] == [(0, 8), (8, 16), (16, 24), (24, 32)]
    assert cost.cycles < newton.cycles / 4
