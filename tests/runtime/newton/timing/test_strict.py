"""Profile `strict`: the engine against the step-by-step rules, closed forms, and each parameter where it binds."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pimflow.codegen.newton.commands import CommandStream, Item, Loop, count_commands
from pimflow.errors import CommandOrderError
from pimflow.runtime.newton.timing.result import StreamTiming
from pimflow.targets import PimSpec
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
    machine = oracle_strict.Jedec(**dataclasses.asdict(pim.timing.strict), exposed=latency == "exposed")
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
    counts = count_commands(program.body)
    assert timing.commands == dataclasses.replace(counts, g_act=issued["G_ACT"])


PARAMETERS = {
    "t_faw": (17, 5, 40), "t_rcd": (11, 1), "t_rp": (11, 1, 30), "t_ras": (25, 60), "t_rtp": (2, 1, 9),
    "t_ccd": (2, 1, 3), "t_bl": (2, 5), "t_drain": (2, 0, 5), "t_cl": (11, 1), "t_rtw": (6, 1, 20),
    "t_refi": (1662, 700), "t_rfc": (105, 20, 200), "max_postponed_refreshes": (8, 0, 1, 3),
}  # fmt: skip
machines = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in PARAMETERS.items()}).map(
    lambda changes: with_timing("strict", **changes)
)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(nests(), st.sampled_from(("hidden", "exposed")))
def test_equals_oracle(program: CommandStream, latency: str) -> None:
    assert_equals_oracle(program, PIM, latency)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(nests(stray=True), st.sampled_from(("hidden", "exposed")))
def test_refuses_what_the_oracle_refuses(program: CommandStream, latency: str) -> None:
    assert_equals_oracle(program, PIM, latency)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(nests(buffers=2), machines, st.sampled_from(("hidden", "exposed")))
def test_equals_oracle_on_other_machines(program: CommandStream, pim: PimSpec, latency: str) -> None:
    assert_equals_oracle(program, dataclasses.replace(pim, buffers_per_channel=2), latency)


@pytest.mark.parametrize("fill", [(), (gwrite(1),), (gwrite(512),)])
@pytest.mark.parametrize(("count", "per_tile"), [(1, 87), (6, 87), (7, 87), (8, 89), (9, 91), (32, 137)])
def test_closed_form_per_tile(count: int, per_tile: int, fill: tuple[Item, ...]) -> None:
    """3*tFAW + max(tRCD + (n-1)*tCCD + tRTP, tRAS) + tRP; the first rule takes over from tRAS between n = 7 and 8."""
    tile = (*fill, *SWEEP, comps(count), READRES)
    first, second = (cycles(stream(gwrite(), Loop("t", tiles, tile))) for tiles in (100, 101))
    assert second - first == per_tile == 3 * 17 + max(11 + (count - 1) * 2 + 2, 25) + 11


def test_exposed_fill_adds_its_bursts() -> None:
    tile = (gwrite(512), *SWEEP, comps(32), READRES)
    first, second = (cycles(stream(Loop("t", tiles, tile)), latency="exposed") for tiles in (100, 101))
    # READRES at COMP + 4, GWRITE tRTW = 6 after it, G_ACT0 after 32 bursts of 2; then the sweep and the COMPs.
    assert second - first == (4 + 6 + 64) + 3 * 17 + 11 + 31 * 2


START = stream(gwrite(16), SWEEP).body
# Per parameter: a stream in which it decides the end, how often it does so, and one in which something longer does.
EDGES = {
    "t_faw": (stream(START, COMP), 3, stream(SWEEP[0], gwrite())),
    "t_rcd": (stream(START, COMP), 1, stream(gwrite(), SWEEP[0], gwrite(), SWEEP[1:], COMP)),
    "t_rp": (stream(START, COMP, SWEEP), 1, stream(START, COMP)),
    "t_ras": (stream(START, COMP, SWEEP), 1, stream(START, comps(30), SWEEP)),
    "t_rtp": (stream(START, comps(30), SWEEP), 1, stream(START, COMP, SWEEP)),
    "t_ccd": (stream(START, COMP, COMP), 1, stream(START, COMP)),
    "t_bl": (stream(START, COMP, READRES), 1, stream(START, COMP)),
    "t_drain": (stream(START, COMP, READRES), 1, stream(START, COMP, gwrite(512), READRES)),
    "t_cl": (stream(START, COMP, READRES), 1, stream(START, COMP, READRES, gwrite())),
    "t_rtw": (stream(START, COMP, READRES, gwrite()), 1, stream(START, COMP, READRES, SWEEP, gwrite())),
}


@pytest.mark.parametrize("name", sorted(EDGES))
def test_each_parameter_counts_exactly_where_it_binds(name: str) -> None:
    binding, times, slack = EDGES[name]
    value = getattr(PIM.timing.strict, name)
    faster = with_timing("strict", NO_REFRESH, **{name: value - 1})
    slower = with_timing("strict", NO_REFRESH, **{name: value + 1})
    assert cycles(binding, slower) - cycles(binding) == times
    assert cycles(binding) - cycles(binding, faster) == times
    assert cycles(slack, slower) == cycles(slack)


@pytest.mark.parametrize(("late", "refs"), [(0, 1), (1, 0)])
def test_a_request_made_when_the_sweep_could_start_goes_first(late: int, refs: int) -> None:
    program = stream(START, comps(100), SWEEP[0])
    start = cycles(program)
    for t_rfc in (105, 106):
        timing = timed(program, with_timing("strict", t_refi=start + late, t_rfc=t_rfc))
        assert (timing.cycles, timing.ref) == (start + refs * t_rfc, refs)


def test_issue_times_of_one_tile_step_by_step() -> None:
    """The oracle's own schedule, written out by hand: the anchor that both engine and oracle hang on."""
    program = stream(gwrite(32), SWEEP, COMP, COMP, READRES, SWEEP[0])
    _, _, log = oracle(program, NO_REFRESH)
    assert log == [
        (1, "GWRITE"),
        (2, "G_ACT"), (19, "G_ACT"), (36, "G_ACT"), (53, "G_ACT"),  # tFAW
        (64, "COMP"), (66, "COMP"),  # tRCD, tCCD
        (70, "READRES"),  # tCCD + tDRAIN
        (78, "PREA"),  # tRAS after the last G_ACT; tRTP after the last COMP would be 68
        (89, "G_ACT"),  # tRP
    ]  # fmt: skip
    assert cycles(program) == 89


def test_with_one_buffer_comp_waits_for_the_fill() -> None:
    head = (gwrite(), *SWEEP, comps(5))
    # The fill waits tCCD for the last COMP to read the buffer, the COMP for 32 bursts of tCCD.
    assert cycles(stream(head, gwrite(), COMP)) - cycles(stream(head, COMP)) == 64


def test_a_second_buffer_lets_comp_overlap_with_the_fill() -> None:
    pim = dataclasses.replace(NO_REFRESH, buffers_per_channel=2)
    head = (gwrite(), gwrite(16, 1), *SWEEP, comps(5))
    overlapped, alone = stream(head, gwrite(512, 1), comps(40), READRES), stream(head, comps(40), READRES)
    assert cycles(overlapped, pim) == cycles(alone, pim)
    same_buffer = stream(head, gwrite(512, 1), comps(40, buffer=1), READRES)
    assert cycles(same_buffer, pim) == cycles(alone, pim) + 1 + 64 - 2  # fill at +1, for 64; not COMP at +2


def test_refresh_goes_before_a_sweep_and_costs_t_rfc() -> None:
    tile = (*SWEEP, comps(8), READRES)
    plain, refreshed = timed(stream(gwrite(), Loop("t", 400, tile))), timed(stream(gwrite(), Loop("t", 400, tile)), PIM)
    assert plain.ref == 0
    assert refreshed.ref == refreshed.cycles // PIM.timing.strict.t_refi
    assert 0 < refreshed.cycles - plain.cycles <= refreshed.ref * PIM.timing.strict.t_rfc
    assert refreshed.commands == plain.commands


@pytest.mark.parametrize(("last_comp", "reopened"), [(9 * 1662 - 1, 0), (9 * 1662, 4)])
def test_the_ninth_request_forces_a_refresh(last_comp: int, reopened: int) -> None:
    """Requests 1 to 8 may be postponed; a COMP that would issue when request 9 is made finds the rows closed."""
    pim = with_timing("strict", t_ccd=1)
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
    timing = timed(stream(gwrite(16), SWEEP, comps((postponed + 1) * interval // 2 + 50)), pim)
    assert (timing.ref, timing.commands.g_act, timing.prea) == (forced, 8, 1)


def test_no_debt_is_left_at_the_end() -> None:
    program = stream(gwrite(16), SWEEP, comps(5000), READRES)
    timing = timed(program, PIM)
    assert timing.commands.g_act == 4
    assert timing.ref == 6  # requests at 1662, 3324, .. 9972; the last COMP issues near 10,060
    assert timing.cycles > 10_000 + 6 * 105


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
    assert lengths == [5, 5, 7, 7, 9, 67]
    assert timed(stream(Loop("f", 3, (gwrite(17),)))).gwrite_bytes == 102
