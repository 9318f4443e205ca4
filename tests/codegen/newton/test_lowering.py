"""Structure of lowered programs: limits that are refused, rules that streams follow, layouts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.codegen import ConvProblem, MatmulProblem, MatrixProblem
from pimflow.codegen.newton import (
    ChannelGroup,
    ChunkRun,
    CommandCounts,
    CommandStream,
    Mapping,
    PimProgram,
    Share,
    count_commands,
    lower,
    newton_mappings,
)
from pimflow.codegen.newton.commands import GWrite
from pimflow.codegen.newton.work_split import best_split, deal_units
from pimflow.ir import Refusal
from pimflow.runtime.newton.autotune.space import candidates
from pimflow.runtime.newton.profiles import timing_profile
from pimflow.targets import PimSpec, load_target
from support.newton.problems import published_mapping
from support.newton.timing import choose_mapping

TARGET = load_target("pimflow")
PIM = TARGET.pim
LAYER = ConvProblem(1, 40, 72, 9, 7, (3, 3), (1, 1), (1, 1, 1, 1))


def program(problem: MatrixProblem, mapping: Mapping, pim: PimSpec = PIM) -> PimProgram:
    lowered = lower(problem, mapping, pim)
    assert isinstance(lowered, PimProgram), lowered
    return lowered


def fills(stream: CommandStream) -> list[tuple[int, ...]]:
    return [
        (command.pixel.at(v), command.pixels, command.k.at(v), command.k_count, command.pitch, command.buffer)
        for command, v in stream.expand()
        if isinstance(command, GWrite)
    ]


SMALL = st.builds(
    ConvProblem,
    st.integers(1, 2),
    st.sampled_from([3, 16, 40, 200]),
    st.sampled_from([5, 16, 40, 100, 300]),
    st.integers(3, 7),
    st.integers(3, 7),
    st.sampled_from([(1, 1), (3, 3), (2, 3)]),
)


@settings(max_examples=25)
@given(SMALL, st.integers(1, 6), st.integers(0, 99))
def test_channels_of_a_group_see_the_same_fills(problem: ConvProblem, buffers: int, pick: int) -> None:
    pim = replace(PIM, buffers=buffers)
    space = candidates(problem, timing_profile(pim, "artifact"))
    for mapping in (space[pick % len(space)].mapping, *newton_mappings(problem, pim, "newton++")):
        lowered = program(problem, mapping, pim)
        for channels in lowered.channel_groups:
            seen = [fills(lowered.streams[channel]) for channel in channels]
            assert all(other == seen[0] for other in seen)


@settings(max_examples=25)
@given(SMALL, st.integers(0, 99))
def test_classes_represent_all_channels(problem: ConvProblem, pick: int) -> None:
    space = candidates(problem, timing_profile(PIM, "artifact"))
    lowered = program(problem, space[pick % len(space)].mapping)
    by_class = CommandCounts()
    for entry in lowered.classes:
        assert lowered.streams[entry.channels[0]] == entry.stream
        by_class += count_commands(entry.stream.body).times(len(entry.channels))
    streams = sum((count_commands(stream.body) for stream in lowered.streams), CommandCounts())
    assert by_class == streams
    assert streams.comp >= lowered.shape.least_comps


@pytest.mark.parametrize(
    "problem",
    [ConvProblem(1, 24, 1, 7, 7, (1, 1)), ConvProblem(1, 1, 48, 14, 14, (3, 3), (2, 2), (1, 1, 1, 1))],
)
def test_a_channel_that_would_only_be_filled_has_no_stream(problem: ConvProblem) -> None:
    """The last fill of a group is too short to reach the pixels of some of its channels."""
    busy = 0
    for mapping in (entry.mapping for entry in candidates(problem, timing_profile(PIM, "artifact"))):
        lowered = lower(problem, mapping, PIM)
        if isinstance(lowered, Refusal):
            continue
        busy += 1
        for stream in lowered.streams:
            counts = count_commands(stream.body)
            assert bool(counts.comp) == bool(counts.readres) == bool(stream.body)
    assert busy > 3


def test_lowering_is_deterministic() -> None:
    mapping = published_mapping(LAYER, PIM)
    assert program(LAYER, mapping).streams == program(LAYER, mapping).streams
    assert candidates(LAYER, timing_profile(PIM, "artifact")) == candidates(LAYER, timing_profile(PIM, "artifact"))


def test_a_layer_that_does_not_fit_is_refused_with_the_gap() -> None:
    problem = MatmulProblem(1, 4096, 4096)
    needed = program(problem, published_mapping(problem, PIM)).layout.most_rows
    assert needed == 8 * 16  # eight chunks of K, sixteen tiles per channel
    enough, short = replace(PIM, rows=needed), replace(PIM, rows=needed - 3)
    assert isinstance(lower(problem, published_mapping(problem, enough), enough), PimProgram)
    refusal = lower(problem, published_mapping(problem, short), short)
    assert isinstance(refusal, Refusal)
    assert (refusal.demand, refusal.bound, refusal.gap) == (needed, needed - 3, 3)
    assert (refusal.unit, refusal.remedy) == ("rows of every bank", "a target with a larger pim.rows")
    chosen = choose_mapping(problem, replace(PIM, rows=2), "auto")
    assert isinstance(chosen, Refusal)


def whole(**changes: Any) -> Mapping:
    """A mapping of a 4 x 32 by 32 x 16 product, all in one group."""
    mapping = Mapping("test", (ChunkRun(2, 4),), (ChannelGroup(16, (Share(0, 0, 4),)),))
    return replace(mapping, **changes)


@pytest.mark.parametrize(
    ("mapping", "reason", "gap"),
    [
        (whole(groups=(ChannelGroup(17, (Share(0, 0, 4),)),)), "channels", 1),
        (whole(groups=(*(ChannelGroup(1, (Share(0, i, i + 1),)) for i in range(4)), ChannelGroup(1, ()))),
         "global buffers", 1),
        (whole(fills_held=3), "buffers per channel", 2),
        (whole(runs=(ChunkRun(2, 20),)), "buffer slots", 8),
        (whole(tiles_per_row=17), "columns of a row", 2),
        (whole(tiles_per_row=2), "any slot", None),
        (whole(runs=(ChunkRun(2, 4, pitch=1),)), "any slot", None),
        (whole(runs=(ChunkRun(1, 4),)), "depth of the dot product", None),
        (whole(groups=(ChannelGroup(16, (Share(0, 0, 3),)),)), "every pixel exactly", None),
        (whole(groups=(ChannelGroup(8, (Share(0, 0, 3),)), ChannelGroup(8, (Share(0, 2, 4),)))), "every pixel exactly",
         None),
    ],
)  # fmt: skip
def test_mappings_that_do_not_fit_are_refused(mapping: Mapping, reason: str, gap: int | None) -> None:
    problem = MatmulProblem(4, 32, 16)
    assert isinstance(lower(problem, whole(), PIM), PimProgram)
    refusal = lower(problem, mapping, PIM)
    assert isinstance(refusal, Refusal)
    assert reason in refusal.reason
    assert refusal.gap == gap


def test_an_incomplete_last_chunk_is_separate() -> None:
    problem = MatmulProblem(4, 30, 16)
    runs = (ChunkRun(1, 4, 2),)
    refusal = lower(problem, whole(runs=runs), PIM)
    assert isinstance(refusal, Refusal)
    assert "incomplete" in refusal.reason


def test_depthwise_is_refused() -> None:
    problem = ConvProblem(1, 16, 16, 8, 8, (3, 3), groups=16)
    assert isinstance(choose_mapping(problem, TARGET.pim, "auto"), Refusal)
    assert isinstance(lower(problem, whole(), PIM), Refusal)


@settings(max_examples=15)
@given(SMALL, st.integers(0, 99))
def test_layout_holds_every_weight_where_it_says(problem: ConvProblem, pick: int) -> None:
    space = candidates(problem, timing_profile(PIM, "artifact"))
    lowered = program(problem, space[pick % len(space)].mapping)
    shape, layout = lowered.shape, lowered.layout
    ids = np.arange(1, shape.groups * shape.depth * shape.columns + 1, dtype=np.float64)
    matrix = ids.reshape(shape.groups, shape.depth, shape.columns)
    stored = set()
    for channel in range(PIM.channels):
        banks = layout.fill_banks(channel, matrix, shape, PIM)
        assert banks.shape == (layout.rows(channel), PIM.banks, PIM.columns, PIM.multipliers)
        stored |= set(np.unique(banks))
        assert np.count_nonzero(banks) <= layout.bytes_written(channel, PIM) // PIM.element_bytes
    assert stored - {0.0} == set(ids)
    assert layout.replication(shape) >= 1


@given(
    st.integers(1, 70), st.integers(1, 32), st.integers(1, 32), st.integers(1, 16), st.sampled_from(["units", "tiles"])
)
def test_dealing_covers_every_comp_once(tiles: int, pixels: int, columns: int, channels: int, deal: str) -> None:
    work = np.zeros((tiles, pixels, columns), int)
    for visits in deal_units(tiles, pixels, columns, channels, deal, 1):
        for visit in visits:
            for index in range(visit.count):
                work[visit.tile + index * visit.stride, slice(*visit.pixels), slice(*visit.columns)] += 1
    assert (work == 1).all()


def test_best_split_prefers_pixels() -> None:
    assert best_split(8, 4, 4) == (4, 1)
    assert best_split(1, 21, 8) == (1, 8)
    assert best_split(2, 3, 1) == (1, 1)


def test_the_right_hand_side_costs_its_placement() -> None:
    constant = MatmulProblem(16, 64, 48)
    computed = replace(constant, constant_rhs=False)
    free, paid = choose_mapping(constant, TARGET.pim, "auto"), choose_mapping(computed, TARGET.pim, "auto")
    assert not isinstance(free, Refusal)
    assert not isinstance(paid, Refusal)
    assert free.placement_cycles == 0
    assert free.time_us == free.cycles / PIM.clock_mhz
    # at least 3 tiles x 16 banks of 64 elements in fp16, over 16 channels' buses of 32 bytes every 2 cycles
    assert paid.placement_cycles >= 3 * 16 * 64 * 2 / 32 * 2 / 16
    assert paid.time_us == pytest.approx((paid.cycles + paid.placement_cycles) / PIM.clock_mhz)
    assert paid.energy_mj > free.energy_mj


def test_scarce_rows_are_used_well() -> None:
    """If the fastest mapping replicates more weights than the banks hold, another one is chosen."""
    problem = ConvProblem(1, 64, 96, 28, 28, (3, 3), (1, 1), (1, 1, 1, 1))
    rooms = (TARGET.with_units(pim=replace(PIM, rows=rows)) for rows in range(1, 16))
    costs = [choose_mapping(problem, room.pim, "auto") for room in rooms]
    fits = [cost for cost in costs if not isinstance(cost, Refusal)]
    assert isinstance(costs[0], Refusal)
    assert len(fits) > 5
    assert [cost.cycles for cost in fits] == sorted((cost.cycles for cost in fits), reverse=True)
    assert fits[0].cycles > fits[-1].cycles
