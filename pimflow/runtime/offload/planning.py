"""The best plan for a training step: from the search, from a search in stages, both with final exchanges, and from
paging with decreasing limits.

If both offloading and recomputing are allowed, all of this is also done for each alone: a mixed search may end at a
plan that is worse than one of a single kind.

A search that goes directly from keeping everything to little memory takes the changes that save most, however slow they
are. In stages, each plan is as fast as possible within its limit before the next stage starts from it. A plan for less
memory is also valid for more, so the last stage starts from a plan for less than is requested. This makes it likely
that more memory never makes the plan slower, but not certain: that would take the plans for all smaller limits. Paging
plans use the same limits whatever is requested.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pimflow.runtime.offload.channel import Channel
from pimflow.runtime.offload.paging import paging_plan
from pimflow.runtime.offload.requirements import Requirements
from pimflow.runtime.offload.run import ActivationPlan, SimulatedPlan, keep_all
from pimflow.runtime.offload.search import Known, exchange_buffers, improve_plan, search_plan
from pimflow.runtime.offload.trace import Trace

PAGING_LIMITS = 32
"""The number of limits for paging plans, evenly spaced from what one kernel needs to keeping everything."""

STAGES = 4
"""The number of stages from keeping everything to the requested limit."""

LESS_SHARE = 1 / 16
"""How far below the requested limit to plan as well, as a fraction of the range of limits."""


def plan_activations(
    trace: Trace, channel: Channel | None, requirements: Requirements | None = None, known: Known | None = None
) -> SimulatedPlan:
    """The best plan found; once time is up, only paging plans are still tried.

    Args:
        trace: the step.
        channel: the channel to the SSDs; None if nothing can be offloaded.
        requirements: the requirements for the plan.
        known: as for `search_plan`.
    """
    requirements = requirements or Requirements()
    wanted = [requirements]
    if channel is not None and requirements.offload and requirements.recompute:
        wanted += [replace(requirements, recompute=False), replace(requirements, offload=False)]
    known = known or Known()
    found = (_best_of_kind(trace, channel, kind, known) for kind in wanted)
    return min(found, key=lambda plan: requirements.key(trace, plan))


def _best_of_kind(trace: Trace, channel: Channel | None, requirements: Requirements, known: Known) -> SimulatedPlan:
    """The best plan found by searches for plans that offload, that recompute, or that mix both."""
    plans = [search_plan(trace, channel, requirements, known)]
    limit = requirements.limit_bytes
    if limit is not None and trace.working_set_bytes <= limit < keep_all(trace).run.peak_bytes:
        staged = _by_stages(trace, channel, requirements, limit, known, plans[0])
        plans += [staged] if staged != plans[0] else []
    best = min(
        (exchange_buffers(trace, channel, requirements, found.plan, known) for found in plans),
        key=lambda found: requirements.key(trace, found),
    )
    if channel is None or not requirements.offload:
        return best
    for limit in _limits(trace, requirements):
        found = paging_plan(trace, channel, limit, requirements.limits(trace, best))
        if found is not None and requirements.key(trace, found) < requirements.key(trace, best):
            best = found
    return best


def _by_stages(
    trace: Trace,
    channel: Channel | None,
    requirements: Requirements,
    limit: int,
    known: Known,
    best: SimulatedPlan,
) -> SimulatedPlan:
    """The best of the given plan and two for the requested limit: from keeping everything, and from a lower limit."""
    most = keep_all(trace).run.peak_bytes

    def within(room: int, plan: ActivationPlan) -> SimulatedPlan:
        return improve_plan(trace, channel, replace(requirements, limit_bytes=room), plan, known)

    def better(found: SimulatedPlan) -> SimulatedPlan:
        return min((best, found), key=lambda plan: requirements.key(trace, plan))

    plan = ActivationPlan()
    for stage in range(1, STAGES + 1):
        found = within(most - (most - limit) * stage // STAGES, plan)
        plan = found.plan
    best = better(found)
    less = limit - int((most - trace.working_set_bytes) * LESS_SHARE)
    return better(within(limit, within(less, best.plan).plan)) if less >= trace.working_set_bytes else best


def _limits(trace: Trace, requirements: Requirements) -> Iterator[int]:
    """The limits from the requested one down, but no lower than one kernel needs."""
    least, most = trace.working_set_bytes, keep_all(trace).run.peak_bytes
    requested = most if requirements.limit_bytes is None else max(least, requirements.limit_bytes)
    if requested < most:
        yield requested
    for step in reversed(range(PAGING_LIMITS)):
        limit = least + (most - least) * step // PAGING_LIMITS
        if limit < requested:
            yield limit
