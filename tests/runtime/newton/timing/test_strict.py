"""Profile `strict`: the engine against the step-by-step rules, closed forms, and each parameter where it is binding."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pimflow.codegen import ConvProblem
from pimflow.codegen.newton import PimProgram
from pimflow.codegen.newton.commands import CommandStream, Item, Loop, count_commands
from pimflow.errors import CommandOrderError
from pimflow.runtime.newton.autotune.choose import MappingSearch
from pimflow.runtime.newton.profiles import timing_profile
from pimflow.runtime.newton.timing.result import CycleParts, StreamTiming
from pimflow.targets import PimSpec
from pimflow.targets.schema.newton import StrictTiming
from support.newton import oracle_strict
from support.newton.streams import COMP, PIM, READRES, SWEEP, comps, gwrite, nests, stream, strict_word, with_timing
from support.newton.timing import time_stream

NO_REFRESH = with_timing("strict", t_refi=10**9)


def timed(program: CommandStream, pim: PimSpec = NO_REFRESH, latency: str = "hidden") -> StreamTiming:
    return time_stream(program, pim, "strict", latency)


def cycles(program: CommandStream, pim: PimSpec = NO_REFRESH, latency: str = "hidden") -> int:
    return timed(program, pim, latency).cycles


def oracle(
    program: CommandStream, pim: PimSpec, latency: str = "hidden"
) -> tuple[int, Counter[str], list[tuple[int, str]]]:
    machine = oracle_strict.Jedec(
        **dataclasses.asdict(pim.timing.strict),
        bank_groups=pim.bank_groups,
        readres_bytes=pim.banks * pim.result_bytes,
        exposed=latency == "exposed",
    )
    return oracle_strict.simulate([strict_word(command) for command, _ in program.expand()], machine)


def assert_equals_oracle(program: CommandStream, pim: PimSpec, latency: str) -> None:
    try:
        want, issued, _ = oracle(program, pim, latency)
    except oracle_strict.Refused as refused:
        with pytest.raises(CommandOrderError, match=f"command {refused.args[0]}:"):
            timed(program, pim, latency)
        return
    timing = timed(program, pim, latency)
    got = (timing.cycles, timing.prea, timing.ref, timing.commands.g_act)
    assert got == (want, issued["PREA"], issued["REF"], issued["G_ACT"])
    assert timing.parts.total == timing.cycles
    assert min(dataclasses.astuple(timing.parts)) >= 0
    assert timing.parts.comp >= (timing.commands.comp - 1) * pim.timing.strict.t_ccd_l  # the stream may end with one
    assert timing.comps_on_closed_rows == 0
    counts = count_commands(program.body)
    assert timing.commands == dataclasses.replace(counts, g_act=issued["G_ACT"])


PARAMETERS = {
    "t_faw": (17, 5, 40), "t_rcd": (11, 1), "t_rp": (11, 1, 30), "t_ras": (25, 60), "t_rtp": (2, 1, 3, 4, 5, 9, 12),
    "t_ccd_s": (2, 1, 3), "t_ccd_l": (3, 1, 2), "t_bl": (2, 5), "t_drain": (2, 0, 5), "t_cl": (11, 0),
    "t_cwl": (7, 0), "t_wtr": (4, 0, 9), "t_rtw": (6, 1, 20), "t_mod": (0, 0, 3, 32),
    "t_refi": (1662, 700), "t_rfc": (105, 20, 200), "max_postponed_refreshes": (8, 0, 1, 3),
}  # fmt: skip
machines = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in PARAMETERS.items()}).map(
    lambda changes: with_timing("strict", **changes)
)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(nests(), st.sampled_from(("hidden", "exposed")))
def test_equals_oracle(program: CommandStream, latency: str) -> None:
    assert_equals_oracle(program, PIM, latency)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(nests(stray=True), st.sampled_from(("hidden", "exposed")))
def test_refuses_what_the_oracle_refuses(program: CommandStream, latency: str) -> None:
    assert_equals_oracle(program, PIM, latency)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(nests(buffers=2), machines, st.sampled_from(("hidden", "exposed")), st.sampled_from((2, 4, 32)))
def test_equals_oracle_on_other_machines(program: CommandStream, pim: PimSpec, latency: str, size: int) -> None:
    assert_equals_oracle(program, dataclasses.replace(pim, buffers_per_channel=2, result_bytes=size), latency)


FEW = st.lists(st.sampled_from([(COMP,), (COMP, READRES), (gwrite(100),), SWEEP, (comps(9),)]), min_size=1, max_size=6)


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(FEW, machines, st.sampled_from(("hidden", "exposed")), st.integers(500, 20_000))
def test_results_that_take_many_refreshes_equal_the_oracle(
    parts: list[tuple[Item, ...]], pim: PimSpec, latency: str, size: int
) -> None:
    program = stream(START, COMP, READRES, *(item for part in parts for item in part))
    assert_equals_oracle(program, dataclasses.replace(pim, result_bytes=size), latency)


@pytest.mark.parametrize("t_mod", [0, 32])
def test_a_long_wait_is_not_walked_through_refresh_by_refresh(t_mod: int) -> None:
    """A READRES of 2^32 bytes a bank, during which a request is made every 1662 cycles; then another command waits."""
    pim = dataclasses.replace(with_timing("strict", t_mod=t_mod), result_bytes=2**32)
    timing = timed(stream(START, Loop("t", 1000, (COMP, READRES))), pim)
    assert timing.cycles > 999 * 2**32
    assert timing.ref == timing.cycles // 1662


@pytest.mark.parametrize(("count", "per_tile"), [(1, 87), (5, 87), (6, 90), (8, 96), (32, 168)])
def test_closed_form_per_tile(count: int, per_tile: int) -> None:
    """3*tFAW + max(tRCD + (n-1)*tCCD_L + tRTP, tRAS) + tRP; beyond n = 5, the first term of the maximum is larger."""
    tile = (*SWEEP, comps(count), READRES)
    first, second = (cycles(stream(gwrite(), Loop("t", tiles, tile))) for tiles in (100, 101))
    assert second - first == per_tile == 3 * 17 + max(11 + (count - 1) * 3 + 2, 25) + 11


@pytest.mark.parametrize(("count", "per_tile"), [(1, 87), (7, 87), (8, 89), (9, 91), (32, 137)])
def test_closed_form_per_tile_at_the_short_delay(count: int, per_tile: int) -> None:
    tile = (*SWEEP, comps(count), READRES)
    pim = with_timing("strict", NO_REFRESH, t_ccd_l=2)
    first, second = (cycles(stream(gwrite(), Loop("t", tiles, tile)), pim) for tiles in (100, 101))
    assert second - first == per_tile


@pytest.mark.parametrize(("bursts", "per_tile"), [(1, 169), (28, 169), (29, 171), (32, 177)])
def test_closed_form_per_tile_and_fill(bursts: int, per_tile: int) -> None:
    """After the last COMP: READRES (tCCD_L + tDRAIN), its second burst, GWRITE (tRTW), its bursts, tCWL + tBL."""
    tile = (gwrite(16 * bursts), *SWEEP, comps(32), READRES)
    first, second = (cycles(stream(Loop("t", tiles, tile))) for tiles in (100, 101))
    fill = 3 + 2 + 2 + 6
    rows = max(2 + 11, fill + 1) + 3 * 17 + 11  # a G_ACT waits for the GWRITE before it
    assert second - first == per_tile == max(rows, fill + (bursts - 1) * 2 + 7 + 2) + 31 * 3


def test_exposed_fill_adds_its_bursts() -> None:
    tile = (gwrite(512), *SWEEP, comps(32), READRES)
    first, second = (cycles(stream(Loop("t", tiles, tile)), latency="exposed") for tiles in (100, 101))
    # READRES at COMP + 5, its second burst and tRTW, 31 bursts, tCWL + tBL; then the sweep and the COMPs.
    assert second - first == (5 + 2 + 6 + 62 + 9) + 3 * 17 + 11 + 31 * 3


START = stream(gwrite(16), SWEEP).body  # GWRITE at 1, G_ACT at 2, 19, 36 and 53, so that a COMP follows at 64
Closed = Callable[[StrictTiming], int]


def result(t: StrictTiming, readres: int) -> int:
    """The end of a READRES of two bursts."""
    return readres + max(t.t_bl, t.t_ccd_s) + t.t_cl + t.t_bl


def write(t: StrictTiming, bursts: int) -> int:
    """From the issue of a GWRITE until its data are in the buffer."""
    return (bursts - 1) * max(t.t_bl, t.t_ccd_s) + t.t_cwl + t.t_bl


# For each parameter: a stream, the closed form of its cycles, and the value above which the parameter determines them,
# with other parameters changed so that such a value exists.
EDGES: dict[str, tuple[CommandStream, Closed, int, dict[str, int]]] = {
    "t_faw": (stream(START, COMP), lambda t: max(2 + 3 * t.t_faw + t.t_rcd, 1 + write(t, 1)), 17, {"t_cwl": 61}),
    "t_rcd": (stream(START, COMP), lambda t: max(2 + 3 * t.t_faw + t.t_rcd, 1 + write(t, 1)), 11, {"t_cwl": 61}),
    "t_cwl": (stream(START, COMP), lambda t: max(2 + 3 * t.t_faw + t.t_rcd, 1 + write(t, 1)), 61, {}),
    "t_ccd_s": (stream(SWEEP, gwrite(512), COMP), lambda t: 53 + write(t, 32), 2, {}),
    "t_bl": (
        stream(START, COMP, READRES, COMP, READRES, comps(10)),
        lambda t: 69 + max(1 + 5, 2 * max(t.t_bl, t.t_ccd_s)) + 1 + 9 * 3,
        3,
        {},
    ),
    "t_ccd_l": (
        stream(START, gwrite(16, 1), COMP, gwrite(16, 1), COMP),
        lambda t: max(64 + max(t.t_ccd_l, 2), 65 + write(t, 1)),
        2,
        {"t_cwl": 0, "t_bl": 1},
    ),
    "t_drain": (
        stream(START, gwrite(16, 1), COMP, gwrite(16, 1), READRES),
        lambda t: result(t, 64 + max(t.t_ccd_l + t.t_drain, 1 + write(t, 1) + t.t_wtr)),
        11,
        {},
    ),
    "t_wtr": (
        stream(START, gwrite(16, 1), COMP, gwrite(16, 1), READRES),
        lambda t: result(t, 64 + max(t.t_ccd_l + t.t_drain, 1 + write(t, 1) + t.t_wtr)),
        4,
        {"t_drain": 11},
    ),
    "t_rtw": (
        stream(START, COMP, READRES, SWEEP[0], gwrite(512)),
        lambda t: max(53 + t.t_ras + t.t_rp + 1, 69 + 2 + t.t_rtw) + write(t, 32),
        19,
        {},
    ),
    "t_cl": (
        stream(START, COMP, READRES, gwrite(16)),
        lambda t: max(result(t, 69), 69 + 2 + t.t_rtw + write(t, 1)),
        13,
        {},
    ),
    "t_ras": (stream(START, COMP, SWEEP[0]), lambda t: max(53 + t.t_ras, 64 + t.t_rtp) + t.t_rp, 13, {}),
    "t_rtp": (stream(START, COMP, SWEEP[0]), lambda t: max(53 + t.t_ras, 64 + t.t_rtp) + t.t_rp, 14, {}),
    "t_rp": (
        stream(START, COMP, READRES, (gwrite(16),) * 4, SWEEP[0]),  # GWRITE at 77, 79, 81 and 83, PREA at 78
        lambda t: max(53 + t.t_ras + t.t_rp, 83 + 1, 83 + write(t, 1)),
        14,
        {},
    ),
}


@pytest.mark.parametrize("name", sorted(EDGES))
def test_each_rule_by_its_closed_form_on_both_sides_of_its_edge(name: str) -> None:
    program, closed, edge, changes = EDGES[name]
    got = []
    for value in (edge - 1, edge, edge + 1):
        pim = with_timing("strict", NO_REFRESH, **{**changes, name: value})
        pim = dataclasses.replace(pim, buffers_per_channel=2)
        got.append(cycles(program, pim))
        assert got[-1] == closed(pim.timing.strict)
    assert got[0] == got[1] < got[2]


@pytest.mark.parametrize(("result_bytes", "bursts"), [(1, 1), (2, 1), (3, 2), (4, 2), (6, 3), (7, 4), (32, 16)])
def test_a_readres_moves_all_its_results(result_bytes: int, bursts: int) -> None:
    """16 banks, 32 bytes per burst: the second READRES waits for the first, as long as draining or longer."""
    pim = dataclasses.replace(NO_REFRESH, result_bytes=result_bytes)
    program = stream(START, COMP, READRES, COMP, READRES)
    assert cycles(program, pim) == 69 + max(1 + 5, 2 * bursts) + 2 * (bursts - 1) + 11 + 2


@pytest.mark.parametrize(("t_ras", "prea"), [(23, 76), (24, 78), (25, 78), (26, 79), (27, 80)])
def test_the_controller_takes_a_free_cycle_of_the_command_bus(t_ras: int, prea: int) -> None:
    """The GWRITE at 77 comes first; 79 follows the last but one."""
    pim = with_timing("strict", NO_REFRESH, t_ras=t_ras)
    program = stream(START, COMP, READRES, gwrite(16), SWEEP[0])
    assert cycles(program, pim) == prea + 11
    assert (prea, "PREA") in oracle(program, pim)[2]


@pytest.mark.parametrize("t_mod", [0, 1, 32])
def test_modes_change_between_registers_and_banks(t_mod: int) -> None:
    """To registers for the GWRITE, to banks for the sweep, to registers for the READRES, to banks after its bursts."""
    pim = with_timing("strict", NO_REFRESH, t_mod=t_mod)
    read = 1 + t_mod + 1 + t_mod + 3 * 17 + 11 + 3 + 2 + t_mod
    assert cycles(stream(START, COMP, READRES), pim) == read + 2 + 11 + 2
    last_act = read - 5 - t_mod - 11
    prea = max(read + 2 + 1, last_act + 25) + t_mod if t_mod else last_act + 25
    assert cycles(stream(START, COMP, READRES, SWEEP[0]), pim) == prea + 11


@pytest.mark.parametrize(("late", "refs"), [(0, 1), (1, 0)])
def test_a_request_made_when_the_sweep_could_start_goes_first(late: int, refs: int) -> None:
    program = stream(START, comps(100), SWEEP[0])
    start = cycles(program)
    for t_rfc in (105, 106):
        timing = timed(program, with_timing("strict", t_refi=start + late, t_rfc=t_rfc))
        assert (timing.cycles, timing.ref) == (start + refs * t_rfc, refs)


def test_issue_times_of_one_tile_step_by_step() -> None:
    """The oracle's own schedule, written out by hand: the reference for both engine and oracle."""
    program = stream(gwrite(32), SWEEP, COMP, COMP, READRES, gwrite(16), SWEEP[0])
    _, _, log = oracle(program, NO_REFRESH)
    assert log == [
        (1, "GWRITE"),
        (2, "G_ACT"), (19, "G_ACT"), (36, "G_ACT"), (53, "G_ACT"),  # tFAW
        (64, "COMP"), (67, "COMP"),  # tRCD, tCCD_L
        (72, "READRES"),  # tCCD_L + tDRAIN
        (78, "PREA"),  # tRAS after the last G_ACT, before the sweep
        (80, "GWRITE"),  # a second burst of results, tRTW
        (89, "G_ACT"),  # tRP
    ]  # fmt: skip
    assert cycles(program) == 89


def test_with_one_buffer_comp_waits_for_the_fill() -> None:
    head = (gwrite(), *SWEEP, comps(5))
    # The fill waits tCCD_L until the last COMP has read the buffer, the COMP for 31 bursts, tCWL and tBL.
    assert cycles(stream(head, gwrite(), COMP)) - cycles(stream(head, COMP)) == 62 + 7 + 2


def test_a_second_buffer_lets_comp_overlap_with_the_fill() -> None:
    pim = dataclasses.replace(NO_REFRESH, buffers_per_channel=2)
    head = (gwrite(), gwrite(16, 1), *SWEEP, comps(5))
    overlapped, alone = stream(head, gwrite(512, 1), comps(40), READRES), stream(head, comps(40), READRES)
    assert cycles(overlapped, pim) == cycles(alone, pim)
    same_buffer = stream(head, gwrite(512, 1), comps(40, buffer=1), READRES)
    assert cycles(same_buffer, pim) == cycles(alone, pim) + 1 + 62 + 9 - 3  # fill at +1; not COMP at +3


def test_refresh_precedes_a_sweep_and_costs_t_rfc() -> None:
    tile = (*SWEEP, comps(8), READRES)
    plain, refreshed = timed(stream(gwrite(), Loop("t", 400, tile))), timed(stream(gwrite(), Loop("t", 400, tile)), PIM)
    assert plain.ref == 0
    assert refreshed.ref == refreshed.cycles // PIM.timing.strict.t_refi
    assert 0 < refreshed.cycles - plain.cycles <= refreshed.ref * PIM.timing.strict.t_rfc
    assert refreshed.commands == plain.commands


@pytest.mark.parametrize(("last_comp", "reopened"), [(9 * 1662 - 1, 0), (9 * 1662, 4)])
def test_the_ninth_request_forces_a_refresh(last_comp: int, reopened: int) -> None:
    """Requests 1 to 8 may be postponed; a COMP that would issue when request 9 is made finds the rows closed."""
    pim = with_timing("strict", t_ccd_l=1)
    head = stream(gwrite(16), SWEEP).body
    first = cycles(stream(head, COMP), pim)
    program = stream(head, comps(last_comp - first + 1))
    timing = timed(program, pim)
    want, issued, log = oracle(program, pim)
    assert (timing.cycles, timing.ref) == (want, issued["REF"])
    assert timing.commands.g_act == 4 + reopened
    comps_before = [clock for clock, name in log if name == "COMP"][-2]
    assert comps_before == last_comp - 1


@pytest.mark.parametrize(("postponed", "forced"), [(8, 9), (3, 4), (0, 1)])
def test_a_forced_refresh_serves_every_request(postponed: int, forced: int) -> None:
    pim = with_timing("strict", max_postponed_refreshes=postponed)
    interval = PIM.timing.strict.t_refi
    timing = timed(stream(gwrite(16), SWEEP, comps((postponed + 1) * interval // 3 + 50)), pim)
    assert (timing.ref, timing.commands.g_act, timing.prea) == (forced, 8, 1)


# At 100 a request is made that may not be postponed. COMPs issue at 64, 67, .. 97, 100.
FORCED = {"t_refi": 100, "t_rfc": 20, "max_postponed_refreshes": 0}


@pytest.mark.parametrize(
    ("t_refi", "prea"),
    [
        (98, 99),  # tRTP after the COMP at 97
        (99, 99),
        (100, 100),  # the COMP that would issue at 100 waits
        (101, 102),  # tRTP after that COMP
    ],
)
def test_a_forced_refresh_closes_rows_and_a_comp_reopens_them(t_refi: int, prea: int) -> None:
    pim = with_timing("strict", **FORCED | {"t_refi": t_refi})
    timing = timed(stream(START, comps(14)), pim)
    left = 14 - (12 if t_refi < 101 else 13)
    assert timing.cycles == prea + 11 + 20 + 3 * 17 + 11 + 3 * (left - 1)
    assert (timing.prea, timing.ref, timing.commands.g_act) == (1, 1, 8)


def test_rows_are_not_reopened_for_a_sweep_or_a_fill() -> None:
    """The READRES would issue at 102. The stream continues after the REF: READRES at 112, a fill, a new sweep."""
    pim = with_timing("strict", **FORCED)
    program = stream(START, comps(12), READRES, gwrite(16), SWEEP, COMP)
    timing = timed(program, pim)
    assert timing.commands.g_act == 8
    _, _, log = oracle(program, pim)
    assert log[-9:] == [
        (100, "PREA"), (111, "REF"), (112, "READRES"), (120, "GWRITE"),
        (131, "G_ACT"), (148, "G_ACT"), (165, "G_ACT"), (182, "G_ACT"), (193, "COMP"),
    ]  # fmt: skip
    assert timing.cycles == 193


def test_no_debt_is_left_at_the_end() -> None:
    program = stream(gwrite(16), SWEEP, comps(3300), READRES)
    timing = timed(program, PIM)
    assert timing.commands.g_act == 4
    assert timing.ref == 6  # requests at 1662, 3324, .. 9972; the last COMP issues at 9961, its result leaves at 9981
    assert timing.cycles > 9981 + 5 * 105


def test_cycles_by_part_of_one_tile() -> None:
    """GWRITE at 1, the COMPs from 64 on, READRES 5 after the last, its results 2 + 13 later."""
    parts = timed(stream(gwrite(16), SWEEP, comps(8), READRES)).parts
    assert parts == CycleParts(comp=1 + 8 * 3, fill=1, activation=62, readout=2 + 15)


def test_cycles_by_part_where_comp_waits() -> None:
    fill = timed(stream(START, COMP, gwrite(512), COMP)).parts
    assert fill == CycleParts(comp=1 + 3 + 1, fill=1 + 62 + 9 - 1, activation=62)
    pim = with_timing("strict", **FORCED)
    forced = timed(stream(START, comps(13)), pim).parts
    assert forced == CycleParts(comp=1 + 12 * 3, fill=1, activation=62, refresh=193 - 100)
    served = timed(stream(START, COMP, SWEEP[0]), with_timing("strict", t_refi=80, t_rfc=20)).parts
    assert served == CycleParts(comp=1 + 3, fill=1, activation=62 + 22, refresh=20)


def test_long_loops_follow_by_arithmetic() -> None:
    tile = (*SWEEP, comps(32), READRES)
    short = stream(gwrite(), Loop("t", 700, tile))
    assert timed(short, PIM).cycles == oracle(short, PIM)[0]
    for count in (10**6, 10**12):
        timing = timed(stream(gwrite(), Loop("t", count, tile)), PIM)
        assert timing.commands.comp == 32 * count
        assert timing.ref == timing.cycles // 1662


def test_gwrite_is_priced_by_its_bytes() -> None:
    lengths = [cycles(stream(gwrite(elements), gwrite(16))) for elements in (1, 16, 17, 32, 33, 512)]
    assert lengths == [1 + 2 * bursts + 9 for bursts in (1, 1, 2, 2, 3, 32)]
    assert timed(stream(Loop("f", 3, (gwrite(17),)))).gwrite_bytes == 102


@pytest.mark.parametrize("changes", [{"buffer_parts": 2}, {"buffer_pool": True}], ids=["halves", "pool"])
def test_alternating_buffer_fills_match_the_oracle(changes: dict[str, Any]) -> None:
    pim = dataclasses.replace(PIM, **changes)
    program = MappingSearch(timing_profile(pim, "strict")).program(ConvProblem(1, 64, 96, 6, 6, (3, 3)), "auto")
    assert isinstance(program, PimProgram)
    assert program.mapping.fills_held > 1
    for entry in program.classes:
        assert_equals_oracle(entry.stream, program.pim, pim.gwrite_latency)
