"""Plans for activations: no worse than any "keep from the i-th on", and better if the SSDs cannot keep up."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from pimflow.runtime.offload.channel import Channel
from pimflow.runtime.offload.requirements import Requirements
from pimflow.runtime.offload.rule import adaptive_rule
from pimflow.runtime.offload.run import (
    ActivationPlan,
    RunLimits,
    keep_all,
    recomputed_before,
    simulate,
    simulate_within,
)
from pimflow.runtime.offload.search import Known, _Search, chain_of, exchange_buffers, schedule_loads, search_plan
from pimflow.runtime.offload.trace import Buffer, Kernel, Trace
from support.offload import Clock, chain, random_chain

LAYERS = 24
RELOADED = 1_000_000 / 2000.0


def least_of_prefixes(trace: Trace, channel: Channel) -> int:
    """The lowest peak of all "keep from the i-th on" that do not slow the step down, by trying each."""
    runs = (
        simulate(trace, ActivationPlan(schedule_loads(trace, channel, trace.saved[:count], {})), channel)
        for count in range(len(trace.saved) + 1)
    )
    return min(run.peak_bytes for run in runs if run.time_us <= trace.time_us * (1 + 1e-9))


@pytest.mark.parametrize("rate", [0.2, 0.4, 0.8, 1.2, 4.0])
def test_where_the_rule_waits_the_search_does_not(rate: float) -> None:
    """At the same peak or a lower one."""
    trace, channel = chain(LAYERS), Channel(rate * RELOADED, rate * RELOADED)
    rule = simulate(trace, adaptive_rule(trace, channel, min_elements=0), channel)
    found = search_plan(trace, channel, Requirements(recompute=False)).run
    assert found.stall_us == 0
    assert found.peak_bytes <= rule.peak_bytes
    assert rule.stall_us > 0.1 * trace.time_us or rate > 0.8


@pytest.mark.parametrize("seed", range(8))
def test_no_worse_than_keeping_from_any_layer_on(seed: int) -> None:
    trace = random_chain(seed)
    for rate in (0.3, 1.0):
        channel = Channel(rate * RELOADED, rate * RELOADED, 10.0)
        found = search_plan(trace, channel, Requirements(recompute=False))
        assert found.run.time_us <= trace.time_us * (1 + 1e-6)
        assert found.run.peak_bytes <= least_of_prefixes(trace, channel)


@pytest.mark.parametrize("seed", range(4))
def test_the_peak_matches_a_simulation(seed: int) -> None:
    trace, channel = random_chain(seed), Channel(0.4 * RELOADED, 0.4 * RELOADED)
    found = search_plan(trace, channel, Requirements(slower_percent=5))
    time_us, peak = Clock(trace, found.plan, channel).run()
    assert found.run.peak_bytes == pytest.approx(peak, rel=0.01)
    assert found.run.time_us == pytest.approx(time_us, rel=0.01)


def test_a_limit_is_met_as_fast_as_possible() -> None:
    """Half of the saved bytes, over a channel that cannot keep up: some layers wait, but no more than necessary."""
    trace, channel = chain(LAYERS), Channel(0.2 * RELOADED, 0.2 * RELOADED)
    limit = 12_000_000
    found = search_plan(trace, channel, Requirements(recompute=False, limit_bytes=limit)).run
    assert found.peak_bytes <= limit
    again = search_plan(trace, channel, Requirements(limit_bytes=limit)).run
    assert again.peak_bytes <= limit
    assert again.time_us < found.time_us


@pytest.mark.parametrize("seed", range(6))
def test_both_together_are_no_worse_than_one_alone(seed: int) -> None:
    """The lowest peak within the allowed time; or, with a limit, the fastest plan, and of those the one that writes
    least."""
    trace, rate = random_chain(seed), (0.2, 0.5, 1.0)[seed % 3] * RELOADED
    channel, peak = Channel(rate, rate), simulate(trace, ActivationPlan()).peak_bytes
    for limit in (None, int(0.5 * peak), int(0.8 * peak), peak):
        both = Requirements(slower_percent=5, limit_bytes=limit)
        kinds = (both, replace(both, recompute=False), replace(both, offload=False))
        runs = [search_plan(trace, channel, kind).run for kind in kinds]
        runs.append(simulate(trace, ActivationPlan()))
        late = [max(0.0, run.time_us - 1.05 * trace.time_us - 1e-3) for run in runs]
        costs: list[tuple[float, ...]] = [(wait, run.peak_bytes) for wait, run in zip(late, runs, strict=True)]
        if limit is not None:
            over = [max(0, run.peak_bytes - limit) for run in runs]
            written = [run.bytes_of("store", trace) for run in runs]
            costs = [(excess, round(wait, 3), size) for excess, wait, size in zip(over, late, written, strict=True)]
        assert costs[0] == min(costs)


@pytest.mark.parametrize("seed", range(4))
def test_complete_simulations_lead_to_no_other_plan(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, rate = random_chain(seed), (0.3, 1.0)[seed % 2] * RELOADED
    channel = Channel(rate, rate, 10.0, 4 * rate)
    limit = int(0.6 * simulate(trace, ActivationPlan()).peak_bytes)
    wanted = [Requirements(slower_percent=slower, limit_bytes=most) for slower in (0.0, 10.0) for most in (None, limit)]
    found = [search_plan(trace, channel, requirements) for requirements in wanted]
    monkeypatch.setattr(Requirements, "limits", lambda *_: RunLimits())
    assert found == [search_plan(trace, channel, requirements) for requirements in wanted]


@pytest.mark.parametrize("seed", range(4))
def test_what_searches_share_leads_to_no_other_plan(seed: int) -> None:
    """One after the other, for several requirements, with what the ones before found out; it saves simulations."""
    trace, rate = random_chain(seed), (0.3, 1.0)[seed % 2] * RELOADED
    channel = Channel(rate, rate, 10.0, 4 * rate)
    limit = int(0.6 * simulate(trace, ActivationPlan()).peak_bytes)
    wanted = [
        Requirements(offload, recompute, slower, most)
        for slower, most in ((0.0, None), (10.0, None), (10.0, limit))
        for offload, recompute in ((True, True), (True, False), (False, True))
    ]
    known, tried = Known(), 0
    for requirements in wanted:
        alone = Known()
        found = search_plan(trace, channel, requirements, alone)
        assert search_plan(trace, channel, requirements, known) == found
        exchanged = exchange_buffers(trace, channel, requirements, found.plan, alone)
        assert exchanged == exchange_buffers(trace, channel, requirements, found.plan)
        assert exchanged == exchange_buffers(trace, channel, requirements, found.plan, known)
        tried += len(alone.results_for(requirements).tried)
    assert sum(len(results.tried) for results in known.results.values()) < 0.8 * tried


@pytest.mark.parametrize("seed", range(4))
def test_pruned_choices_lead_to_no_better_plan(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = random_chain(seed)
    limit = int(0.6 * simulate(trace, ActivationPlan()).peak_bytes)
    wanted = [Requirements(slower_percent=slower, limit_bytes=most) for slower in (5.0, 40.0) for most in (None, limit)]
    found = [search_plan(trace, None, requirements) for requirements in wanted]
    monkeypatch.setattr(_Search, "_not_lowering_the_peak", lambda *_: frozenset())
    assert found == [search_plan(trace, None, requirements) for requirements in wanted]


@pytest.mark.parametrize("seed", range(4))
def test_chained_recomputations_make_no_plan_worse(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, rate = random_chain(seed), (0.3, 1.0)[seed % 2] * RELOADED
    peak = simulate(trace, ActivationPlan()).peak_bytes
    wanted = [
        Requirements(slower_percent=slower, limit_bytes=limit) for slower in (5.0, 40.0) for limit in (None, peak // 2)
    ]
    searches = [
        (requirements, channel) for requirements in wanted for channel in (None, Channel(rate, rate, 10.0, 4 * rate))
    ]
    nested = [search_plan(trace, channel, requirements) for requirements, channel in searches]
    monkeypatch.setattr(_Search, "_with_nesting", lambda _search, best, _moves: best)
    plain = [search_plan(trace, channel, requirements) for requirements, channel in searches]
    for (requirements, _), *found in zip(searches, nested, plain, strict=True):
        limit, most_us = requirements.limit_bytes or 0, trace.time_us * (1 + requirements.slower_percent / 100) + 1e-3
        peaks = [max(each.run.peak_bytes, limit) for each in found]
        assert peaks[0] <= peaks[1]
        if limit and peaks[0] == peaks[1]:
            late = [max(each.run.time_us, most_us) for each in found]
            assert late[0] <= late[1] + 1e-3
    assert any(found.run.peak_bytes < 0.9 * other.run.peak_bytes for found, other in zip(nested, plain, strict=True))


@pytest.mark.parametrize("sizes", [(1, 6, 5, 2, 3), (2, 6, 1, 5, 1), (2, 4, 3, 2, 3), (3, 4, 4, 1, 1)])
def test_no_choice_of_recomputations_needs_less(sizes: tuple[int, ...]) -> None:
    """Every choice is simulated tick by tick; the search's is the lowest."""
    trace = replace(chain(5, 10.0), buffers=tuple(Buffer(str(size), 100 * size, size) for size in sizes))
    choices = [{layer: (layer,) for layer in layers} for count in range(6) for layers in combinations(range(5), count)]
    least = min(Clock(trace, ActivationPlan((), again), Channel(1.0, 1.0)).run()[1] for again in choices)
    found = search_plan(trace, None, Requirements(offload=False, slower_percent=100))
    again = found.plan.recomputed
    assert any(layer - 1 in again for layer in again), "some buffer is recomputed from a recomputed one"
    assert found.run.peak_bytes == Clock(trace, found.plan, Channel(1.0, 1.0)).run()[1] == least


def test_aborted_simulations_are_repeated_under_larger_limits() -> None:
    trace = chain(4)
    search, none = _Search(trace, None, Requirements()), frozenset[int]()
    run = simulate(trace, ActivationPlan())
    assert search.evaluate(none, none, RunLimits(run.peak_bytes - 1)) is None
    assert search.evaluate(none, none, RunLimits(run.peak_bytes - 2)) is None
    found = search.evaluate(none, none, RunLimits(run.peak_bytes))
    assert found is not None
    assert found.run == run


@pytest.mark.parametrize("seed", range(4))
def test_aborted_simulations_exceed_their_bound(seed: int) -> None:
    """Each bound is that of another plan of the same step."""
    trace, channel = random_chain(seed), Channel(0.5 * RELOADED, 0.5 * RELOADED, 0.0, 2 * RELOADED)
    rng = np.random.default_rng(seed)
    plans = []
    for _ in range(12):
        kinds = rng.integers(0, 3, len(trace.saved))
        offloaded, again = (
            [b for b, kind in zip(trace.saved, kinds, strict=True) if kind == which] for which in (0, 1)
        )
        chains = {buffer: made for buffer in again if (made := chain_of(trace, buffer)) is not None}
        plans.append(ActivationPlan(schedule_loads(trace, channel, offloaded, chains), chains))
    runs, given_up = [simulate(trace, plan, channel) for plan in plans], 0
    for plan, run in zip(plans, runs, strict=True):
        for other in runs:
            for slowed in (False, True):
                lost_us, allowed_us = (
                    made.recompute_us + made.stall_us + slowed * made.slowed_us for made in (run, other)
                )
                stored, allowed = (made.bytes_of("store", trace) for made in (run, other))
                for limits, exceeds in (
                    (RunLimits(lost_us=allowed_us + 1e-3, slowed=slowed), lost_us > allowed_us),
                    (RunLimits(other.peak_bytes), run.peak_bytes > other.peak_bytes),
                    (RunLimits(run.peak_bytes, allowed), stored > allowed),
                    (
                        RunLimits(run.peak_bytes, stored, again_us=other.recompute_us + 1e-3),
                        run.recompute_us > other.recompute_us,
                    ),
                ):
                    within = simulate_within(trace, plan, channel, limits)
                    assert within == run or (within is None and exceeds)
                    given_up += within is None
    assert given_up > 100


def test_without_ssds_everything_that_helps_is_recomputed() -> None:
    trace = chain(8)
    found = search_plan(trace, None, Requirements(slower_percent=100))
    assert found.run.transfers == ()
    assert found.run.recompute_us > 0
    assert found.run.peak_bytes < simulate(trace, ActivationPlan()).peak_bytes
    assert search_plan(trace, None, Requirements()).plan == ActivationPlan()


def test_nothing_is_written_needlessly() -> None:
    """The last layers are needed again at once: offloading them would not lower the peak."""
    trace, channel = chain(LAYERS), Channel(1e6, 1e6)
    found = search_plan(trace, channel, Requirements(recompute=False))
    assert LAYERS - 1 not in found.plan.offloaded
    fewer = min(
        simulate(
            trace, ActivationPlan(schedule_loads(trace, channel, found.plan.offloaded - {buffer}, {})), channel
        ).peak_bytes
        for buffer in found.plan.offloaded
    )
    assert fewer > found.run.peak_bytes


def test_recomputable_buffers() -> None:
    """From saved buffers, via unsaved ones; if it needs another recomputed buffer, that is recomputed first."""
    buffers = tuple(Buffer(name, 10, 10) for name in "abcd")
    kernels = (
        Kernel("a", 1.0, (), (0,)),
        Kernel("b", 1.0, (0,), (1,)),
        Kernel("c", 1.0, (1,), (2,)),
        Kernel("c'", 1.0, (2,), (3,)),
        Kernel("a'", 1.0, (0, 3), ()),
    )
    trace = Trace(kernels, 3, buffers)
    assert trace.saved == (0, 2)
    assert chain_of(trace, 2) == (1, 2)
    assert chain_of(trace, 0) == (0,)
    assert recomputed_before(trace, {0: (0,), 2: (1, 2)}) == {0: 3, 2: 3}
    assert recomputed_before(trace, {0: (0,)}) == {0: 4}


def test_random_values_are_not_recomputed() -> None:
    """Nor are buffers computed from it, unless it is saved."""
    buffers = tuple(Buffer(name, 10, 10) for name in "abc")
    kernels = (
        Kernel("a", 1.0, (), (0,), draws=True),
        Kernel("b", 1.0, (0,), (1,)),
        Kernel("c", 1.0, (), (2,)),
        Kernel("c'", 1.0, (2,), ()),
        Kernel("b'", 1.0, (1,), ()),
    )
    trace = Trace(kernels, 3, buffers)
    assert chain_of(trace, 2) == (2,)
    assert chain_of(trace, 1) is None
    assert chain_of(replace(trace, kernels=(replace(kernels[0], draws=False), *kernels[1:])), 1) == (0, 1)


def test_overwritten_operands_prevent_recomputation() -> None:
    """y is made from x, which a later kernel overwrites: x is saved as overwritten. z, made from that, may be made
    again."""
    buffers = tuple(Buffer(name, 10, 10) for name in ("x", "y", "z"))
    kernels = (
        Kernel("x", 1.0, (), (0,)),
        Kernel("y", 1.0, (0,), (1,)),
        Kernel("x in place", 1.0, (0,), (0,)),
        Kernel("z", 1.0, (0,), (2,)),
        Kernel("z'", 1.0, (2,), ()),
        Kernel("y'", 1.0, (1,), ()),
        Kernel("x'", 1.0, (0,), ()),
    )
    trace = Trace(kernels, 4, buffers)
    assert chain_of(trace, 1) is None
    assert chain_of(trace, 2) == (3,)


def test_recomputation_must_not_undo_other_outputs() -> None:
    """One kernel makes x and y, and x is then overwritten: recomputing y would reset x."""
    buffers = tuple(Buffer(name, 10, 10) for name in ("x", "y"))
    kernels = (
        Kernel("x, y", 1.0, (), (0, 1)),
        Kernel("x in place", 1.0, (0,), (0,)),
        Kernel("y'", 1.0, (1,), ()),
        Kernel("x'", 1.0, (0,), ()),
    )
    trace = Trace(kernels, 2, buffers)
    assert chain_of(trace, 1) is None
    assert chain_of(trace, 0) == (0, 1)


def test_buffers_that_are_needed_before_they_are_stored_stay() -> None:
    """The store of the first layer's buffer takes longer than the step, and that of the larger second one waits behind
    it. Without the latter nothing changes, and without the former the latter is stored as uselessly, but is larger."""
    plain = chain(4)
    sizes = (1_000_000, 2_000_000, 1_000_000, 1_000_000)
    trace = replace(plain, buffers=tuple(map(Buffer, "abcd", sizes, sizes)))
    channel, requirements = Channel(80.0, 80.0), Requirements(recompute=False, limit_bytes=5_000_000)
    useless = ActivationPlan(schedule_loads(trace, channel, (0, 1), {}), limit_bytes=5_000_000)
    given = simulate(trace, useless, channel)
    assert [transfer.kind for transfer in given.transfers] == ["store"]
    assert exchange_buffers(trace, channel, requirements, useless).run == keep_all(trace).run
