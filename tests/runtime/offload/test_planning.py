"""Paging plans in addition to those of the search: memory for a single kernel suffices, and no plan becomes worse."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise, product

import pytest

from pimflow.runtime.offload import planning
from pimflow.runtime.offload.channel import Channel
from pimflow.runtime.offload.planning import plan_activations
from pimflow.runtime.offload.requirements import Requirements
from pimflow.runtime.offload.run import ActivationPlan, SimulatedPlan, simulate
from pimflow.runtime.offload.search import schedule_loads, search_plan
from pimflow.runtime.offload.trace import Buffer, Kernel, Trace
from support.offload import Clock, chain, random_chain

CHANNEL = Channel(1000.0, 1000.0, 10.0, 8000.0)


def read_twice(layers: int) -> Trace:
    """A chain whose backward pass reads all saved buffers twice: in forward and in reverse order."""
    plain = chain(layers)
    ahead = [Kernel(f"again{layer}", 1000.0, (layer,), ()) for layer in range(layers)]
    kernels = (*plain.kernels[:layers], *ahead, *plain.kernels[layers:])
    return Trace(kernels, layers, tuple(Buffer(each.name, each.bytes, 1) for each in plain.buffers))


@pytest.mark.parametrize("offload", [True, False])
def test_memory_for_one_kernel_suffices_with_drives(offload: bool) -> None:
    """Everything is offloaded twice; the search alone, which offloads once, needs at least twice the memory."""
    trace = read_twice(8)
    requirements = Requirements(offload=offload, limit_bytes=trace.working_set_bytes)
    alone, found = search_plan(trace, CHANNEL, requirements), plan_activations(trace, CHANNEL, requirements)
    assert alone.run.peak_bytes >= 4 * trace.working_set_bytes // 2
    assert (found.run.peak_bytes == trace.working_set_bytes) == offload
    assert found.run == simulate(trace, found.plan, CHANNEL)
    if not offload:
        assert found == alone


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("recompute", [False, True])
def test_what_leaves_fits_on_the_drives(recompute: bool, twice: bool) -> None:
    """From drives that hold nothing to ones that hold everything: more space is never worse, and for some better."""
    trace = read_twice(6) if twice else chain(6)
    requirements = Requirements(recompute=recompute, limit_bytes=trace.working_set_bytes)
    spaces = (0.0, 999_999.0, 1e6, 2.5e6, 3e6, 6e6, math.inf)
    plans = [plan_activations(trace, replace(CHANNEL, capacity_bytes=space), requirements) for space in spaces]
    taken = [sum(trace.sizes[buffer] for buffer in found.plan.offloaded) for found in plans]
    assert all(size <= space for size, space in zip(taken, spaces, strict=True))
    assert taken[0] == 0 < taken[-1]
    keys = [requirements.key(trace, found)[:2] for found in plans]
    assert keys == sorted(keys, reverse=True)
    assert keys[0] > keys[-1]
    assert plans[-1] == plan_activations(trace, CHANNEL, requirements)


def test_plans_are_never_worse_than_the_search() -> None:
    trace = read_twice(6)
    peak = simulate(trace, ActivationPlan()).peak_bytes
    for slower in (0.0, 20.0, 60.0):
        for limit in (None, *(peak * share // 8 for share in range(1, 9))):
            requirements = Requirements(slower_percent=slower, limit_bytes=limit)
            found = plan_activations(trace, CHANNEL, requirements)
            assert requirements.key(trace, found) <= requirements.key(trace, search_plan(trace, CHANNEL, requirements))


@pytest.mark.parametrize("seed", [2, 3, 6])
def test_staged_plans_are_faster(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Staged plans are never slower, and for some limits faster; a tick-by-tick simulation confirms time and memory."""
    trace, channel = random_chain(seed), Channel(300.0, 300.0, 10.0, 8000.0)
    peak = simulate(trace, ActivationPlan()).peak_bytes
    wanted = [Requirements(limit_bytes=peak * share // 8) for share in (3, 4, 5, 8)]
    found = [plan_activations(trace, channel, requirements) for requirements in wanted]
    monkeypatch.setattr(planning, "_by_stages", lambda *given: given[-1])
    at_once = [plan_activations(trace, channel, requirements).run.time_us for requirements in wanted]
    assert all(plan.run.time_us <= longer for plan, longer in zip(found, at_once, strict=True))
    assert any(plan.run.time_us < 0.99 * longer for plan, longer in zip(found, at_once, strict=True))
    for requirements, plan in zip(wanted, found, strict=True):
        time_us, most = Clock(trace, plan.plan, channel, limit_bytes=requirements.limit_bytes or 0).run()
        assert plan.run.time_us == pytest.approx(time_us, rel=0.01)
        assert plan.run.peak_bytes == pytest.approx(most, rel=0.01)
        assert plan.run.peak_bytes <= (requirements.limit_bytes or 0)


@pytest.mark.parametrize("seed", range(6))
def test_the_plan_beats_all_simple_choices(seed: int) -> None:
    """Of all ways to keep, offload or recompute the buffers of a chain, each is tried; without exchanges, half of these
    plans were up to 17 % slower."""
    trace, channel = random_chain(seed, layers=5), Channel(300.0, 300.0, 10.0, 8000.0)
    requirements = Requirements(limit_bytes=5 * simulate(trace, ActivationPlan()).peak_bytes // 8)
    plans = []
    for ways in product(range(3), repeat=5):
        offloaded, again = ([b for b, way in zip(trace.saved, ways, strict=True) if way == kind] for kind in (1, 2))
        chains = {buffer: (buffer,) for buffer in again}
        plans.append(
            ActivationPlan(
                schedule_loads(trace, channel, offloaded, chains), chains, limit_bytes=requirements.limit_bytes
            )
        )
    best = min(
        (SimulatedPlan(plan, simulate(trace, plan, channel)) for plan in plans),
        key=lambda each: requirements.key(trace, each),
    )
    assert plan_activations(trace, channel, requirements).run.time_us <= best.run.time_us


@pytest.mark.parametrize("seed", [9, 12, 17, 35, 37])
def test_a_mixture_is_never_worse_than_one_kind(seed: int) -> None:
    """For each of these chains, the mixed search alone ends at a plan that is slower or needs more memory."""
    trace = random_chain(seed, layers=8)
    peak = simulate(trace, ActivationPlan()).peak_bytes
    for channel, limit in product(
        (Channel(200.0, 200.0, 10.0, 8000.0), Channel(400.0, 400.0, 10.0, 8000.0)), (None, peak // 2, 5 * peak // 8)
    ):
        both = Requirements(slower_percent=5.0, limit_bytes=limit)
        kinds = (both, replace(both, recompute=False), replace(both, offload=False))
        mixed, *single = (both.key(trace, plan_activations(trace, channel, kind)) for kind in kinds)
        assert mixed <= min(single)


def test_more_memory_is_never_slower_and_more_time_never_needs_more_memory() -> None:
    trace = read_twice(6)
    peak = simulate(trace, ActivationPlan()).peak_bytes
    rooms = range(trace.working_set_bytes, peak + 100_000, 100_000)
    times = [plan_activations(trace, CHANNEL, Requirements(limit_bytes=room)).run.time_us for room in rooms]
    assert all(longer >= shorter for longer, shorter in pairwise(times))
    peaks = [
        plan_activations(trace, CHANNEL, Requirements(slower_percent=5.0 * more)).run.peak_bytes for more in range(21)
    ]
    assert all(higher >= lower for higher, lower in pairwise(peaks))
    assert peaks[-1] < peaks[0]
