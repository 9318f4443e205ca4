"""Profile `artifact`: the engine over loop nests against the cycle-by-cycle controller, and each constraint's
limits."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pimflow.codegen.newton.commands import CommandStream, Loop, count_commands
from pimflow.errors import OptionError
from pimflow.runtime.newton.profiles import timing_profile
from pimflow.runtime.newton.timing.result import CycleParts
from pimflow.runtime.newton.timing.streams import StreamTimer
from pimflow.targets import PimSpec
from support.newton import oracle_artifact
from support.newton.streams import COMP, PIM, READRES, SWEEP, artifact_word, comps, gwrite, nests, stream, with_timing
from support.newton.timing import time_stream


def oracle(program: CommandStream, **changes: Any) -> tuple[int, Counter[str], list[tuple[int, str]]]:
    words = [artifact_word(command) for command, _ in program.expand()]
    return oracle_artifact.simulate(words, oracle_artifact.Published(**changes))


def cycles(program: CommandStream, pim: PimSpec = PIM, latency: str = "hidden") -> int:
    return time_stream(program, pim, "artifact", latency).cycles


def assert_equals_oracle(program: CommandStream, latency: str, reopens: bool, **changes: int) -> None:
    timing = time_stream(program, with_timing("artifact", **changes), "artifact", latency, reopens)
    hidden = latency == "hidden"
    want, issued, _ = oracle(program, gwrite_to_next=1 if hidden else 64, reopens_rows=reopens, **changes)
    assert (timing.cycles, timing.prea, timing.ref) == (want, issued["PREA"], issued["REF"])
    acts = sum(count for name, count in issued.items() if name.startswith("G_ACT"))
    assert timing.commands == dataclasses.replace(count_commands(program.body), g_act=acts)
    assert timing.comps_on_closed_rows == issued["COMP on closed rows"]
    assert timing.parts.total == timing.cycles
    assert min(dataclasses.astuple(timing.parts)) >= 0


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    nests(stray=True),
    st.sampled_from(("hidden", "exposed")),
    st.booleans(),
    st.sampled_from((1900, 700, 400)),
    st.sampled_from((350, 60)),
)
def test_equals_oracle(program: CommandStream, latency: str, reopens: bool, interval: int, refresh: int) -> None:
    assert_equals_oracle(program, latency, reopens, refresh_interval=interval, ref_to_act=refresh)


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(
    nests(depth=1),
    st.dictionaries(
        st.sampled_from(
            (
                "gwrite_to_comp",
                "act_to_act",
                "act_to_comp",
                "comp_to_comp",
                "comp_to_readres",
                "pre_to_act",
                "readres_to_gwrite",
                "readres_latency",
            )
        ),
        st.integers(1, 90),
    ),
    st.booleans(),
)
def test_equals_oracle_on_other_machines(program: CommandStream, changes: dict[str, int], reopens: bool) -> None:
    assert_equals_oracle(program, "hidden", reopens, **changes)


def test_two_bank_groups() -> None:
    pim = dataclasses.replace(PIM, bank_groups=2)
    program = stream(Loop("t", 300, (*SWEEP[:2], comps(8), READRES)))
    want, issued, _ = oracle(program, bank_groups=2)
    timing = time_stream(program, pim, "artifact", "hidden")
    assert (timing.cycles, timing.ref) == (want, issued["REF"])


@pytest.mark.parametrize(("count", "per_tile"), [(1, 64), (8, 78), (32, 126)])
def test_closed_form_per_tile(count: int, per_tile: int) -> None:
    pim = with_timing("artifact", refresh_interval=10**9)
    tile = (*SWEEP, comps(count), READRES)
    first, second = (cycles(stream(gwrite(), Loop("t", tiles, tile)), pim) for tiles in (100, 101))
    assert second - first == per_tile


# For each constraint: a stream in which it determines the issue of the last command, and one in which another is
# longer.
EDGES = {
    "act_to_act": (stream(SWEEP[:2]), stream(SWEEP[0], COMP, READRES, gwrite(), SWEEP[1])),
    "act_to_comp": (stream(SWEEP[0], COMP), stream(gwrite(), SWEEP[0], COMP)),
    "comp_to_comp": (stream(COMP, COMP), stream(COMP, SWEEP[0], COMP)),
    "comp_to_readres": (stream(COMP, READRES), stream(COMP, SWEEP[:3], READRES)),
    "gwrite_to_comp": (stream(gwrite(), COMP), stream(gwrite(), SWEEP, COMP)),
    "readres_to_gwrite": (stream(READRES, gwrite(), comps(9)), stream(READRES, SWEEP, gwrite(), comps(9))),
    "readres_latency": (stream(READRES), stream(READRES, SWEEP)),
}


@pytest.mark.parametrize("name", sorted(EDGES))
def test_each_constraint_matters_exactly_where_it_binds(name: str) -> None:
    binding, slack = EDGES[name]
    value = getattr(PIM.timing.artifact, name)
    for change in (1, 5):
        pim = with_timing("artifact", **{name: value + change})
        assert cycles(binding, pim) == cycles(binding) + change
        assert cycles(slack, pim) == cycles(slack)


@pytest.mark.parametrize(("interval", "end"), [(1899, 1899 + 350), (1900, 1900 + 11)])
def test_a_request_is_seen_in_the_cycle_after_a_readres(interval: int, end: int) -> None:
    """READRES issues at 1898. A request at 1899 is served before the G_ACT0; at 1900 the G_ACT0 has been issued."""
    program = stream(*([COMP] * 949), READRES, SWEEP[0])
    assert cycles(stream(*([COMP] * 949))) == 1897
    timing = time_stream(program, with_timing("artifact", refresh_interval=interval), "artifact", "hidden")
    assert (timing.cycles, timing.ref) == (end, 1)
    assert oracle(program, refresh_interval=interval)[0] == end


@pytest.mark.parametrize(
    ("program", "end"),
    [
        (stream(*SWEEP[:1] * 5), 6),  # the last issues at 5, where it arrives
        (stream(gwrite(), gwrite(), gwrite()), 4),
        (stream(READRES, *SWEEP[:1] * 12), 14),  # the result leaves at 14 at once with the end of the trace
        (stream(READRES, *SWEEP[:1] * 13), 15),
        (stream(COMP, COMP), 3),  # the second issues at 3, a cycle after it arrived
        (stream(COMP, COMP, SWEEP[0]), 4),
        (CommandStream(0, ()), 1),
    ],
)
def test_the_end_of_the_trace_is_read_a_cycle_after_its_last_command(program: CommandStream, end: int) -> None:
    assert cycles(program) == oracle(program)[0] == end


def test_a_request_in_the_cycle_after_the_last_refresh_is_never_seen() -> None:
    """Published: 2399 cycles and 5 REF. If the stream continued, the sixth request would be served too."""
    tile = (COMP, READRES, *SWEEP, *SWEEP * 5, COMP, READRES)
    machine = {"refresh_interval": 400, "ref_to_act": 350}
    pim = with_timing("artifact", **machine)
    for more, want in (((), (2399, 5)), ((SWEEP[1],), (2750, 6))):
        program = stream(Loop("t", 3, tile), *more)
        timing = time_stream(program, pim, "artifact", "exposed")
        assert (timing.cycles, timing.ref) == want
        end, issued, _ = oracle(program, gwrite_to_next=64, **machine)
        assert (end, issued["REF"]) == want


@pytest.mark.parametrize(("late", "refs"), [(1, 1), (2, 0)])
def test_rows_are_reopened_before_a_comp(late: int, refs: int) -> None:
    """READRES issues at 66. A request made at 67 is served: PREA, 11, REF, 350, three times 17, 11, COMP."""
    program = stream(SWEEP, COMP, COMP, READRES, COMP)
    machine = {"refresh_interval": 66 + late}
    pim = with_timing("artifact", **machine | {"ref_to_act": 40})
    for reopens in (False, True):
        end, issued, log = oracle(program, reopens_rows=reopens, **machine, ref_to_act=40)
        timing = time_stream(program, pim, "artifact", "hidden", reopens)
        assert (timing.cycles, timing.comps_on_closed_rows) == (end, refs * (not reopens))
        comp = max(clock for clock, name in log if name == "COMP")
        assert comp == 66 + (1 if not refs else 1 + 11 + (40 + 51 + 11 if reopens else 1))
        assert timing.commands.g_act == issued["G_ACT0"] + 3 * issued["G_ACT3"] == 4 + 4 * refs * reopens


def test_rows_are_not_reopened_for_a_sweep() -> None:
    """The stream opens all rows itself, so reopening makes no difference."""
    program = stream(gwrite(), Loop("t", 300, (gwrite(), *SWEEP, comps(8), READRES)))
    published, reopening = (time_stream(program, PIM, "artifact", "hidden", reopens) for reopens in (False, True))
    assert published == reopening
    assert published.ref > 5
    assert published.comps_on_closed_rows == 0


def test_comps_on_closed_rows_are_counted() -> None:
    """Two pixels per fill: after the first READRES a refresh may have closed the rows."""
    program = stream(gwrite(), Loop("t", 3000, (*SWEEP, comps(8), READRES, comps(8), READRES)))
    published, reopening = (time_stream(program, PIM, "artifact", "hidden", reopens) for reopens in (False, True))
    assert published.ref > 100
    assert 0 < published.comps_on_closed_rows < 8 * published.ref
    assert published.comps_on_closed_rows % 8 == 0
    assert reopening.comps_on_closed_rows == 0
    assert reopening.commands.g_act > 4 * 3000 == published.commands.g_act
    assert time_stream(stream(COMP, COMP), PIM, "artifact").comps_on_closed_rows == 2


def test_cycles_by_part() -> None:
    """G_ACTs at 1, 18, 35 and 52, COMPs at 63 and 65, READRES at 66, its result 13 later."""
    assert time_stream(stream(SWEEP, COMP, COMP, READRES), PIM, "artifact").parts == CycleParts(
        comp=1 + 2 + 2, activation=62, readout=12
    )
    fill = time_stream(stream(SWEEP, COMP, READRES, gwrite(), COMP), PIM, "artifact").parts
    assert fill == CycleParts(comp=1 + 2 + 1, activation=62, fill=5 + 50, readout=0)


def test_long_loops_follow_by_arithmetic() -> None:
    tile = (*SWEEP, comps(32), READRES)
    counts = (10**3, 10**6, 10**12)
    timings = [time_stream(stream(gwrite(), Loop("t", count, tile)), PIM, "artifact", "hidden") for count in counts]
    small = oracle(stream(gwrite(), Loop("t", counts[0], tile)))
    assert (timings[0].cycles, timings[0].ref) == (small[0], small[1]["REF"])
    for count, timing in zip(counts, timings, strict=True):
        assert timing.commands.comp == 32 * count
        assert abs(timing.ref - timing.cycles // 1900) <= 1


def test_empty_and_equal_streams() -> None:
    assert cycles(CommandStream(0, ())) == cycles(stream(Loop("a", 0, (COMP,))))
    looped = stream(Loop("a", 30, (Loop("b", 40, (COMP, READRES)),)))
    assert cycles(looped) == cycles(stream(*[(COMP, READRES)] * 1200))


def test_memory_is_bounded_and_results_do_not_change() -> None:
    programs = [stream(gwrite(), Loop("t", 50 + count, (*SWEEP, comps(count), READRES))) for count in range(1, 30)]
    before = [cycles(program) for program in programs]
    forgetful = StreamTimer(timing_profile(PIM, "artifact"), max_cache_entries=10)
    assert [forgetful.time(program, "hidden").cycles for program in programs] == before
    assert len(set(before)) == len(before)


def test_unknown_profile_and_latency() -> None:
    with pytest.raises(OptionError, match="unknown timing profile 'loose'"):
        time_stream(stream(COMP), PIM, "loose")
    with pytest.raises(OptionError, match="unknown GWRITE latency 'none'"):
        time_stream(stream(COMP), PIM, "artifact", "none")
