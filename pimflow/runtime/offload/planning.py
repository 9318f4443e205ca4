"""The best plan for a training step: from the search, from a search in stages, both with final exchanges, and from
paging with decreasing limits.

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
from pimflow.runtime.offload.paging import paged
from pimflow.runtime.offload.run import ActivationPlan, Found, kept
from pimflow.runtime.offload.search import exchanged, improved, searched
from pimflow.runtime.offload.trace import Trace
from pimflow.runtime.offload.wish import Wish

MOST_LIMITS = 32
"""The number of limits for paging plans, evenly spaced from what one kernel needs to keeping everything."""

STAGES = 4
"""The number of stages from keeping everything to the requested limit."""

LESS_SHARE = 1 / 16
"""How far below the requested limit to plan as well, as a fraction of the range of limits."""


def plan_activations(trace: Trace, channel: Channel | None, wish: Wish | None = None) -> Found:
    """The best plan found.

    Args:
        trace: the step.
        channel: the channel to the SSDs; None if nothing can be offloaded.
        wish: the requirements for the plan.
    """
    wish = wish or Wish()
    plans = [searched(trace, channel, wish)]
    limit = wish.limit_bytes
    if limit is not None and trace.touched_bytes <= limit < kept(trace).run.peak_bytes:
        staged = _by_stages(trace, channel, wish, limit, plans[0])
        plans += [staged] if staged != plans[0] else []
    best = min(
        (exchanged(trace, channel, wish, found.plan) for found in plans), key=lambda found: wish.key(trace, found)
    )
    if channel is None or not wish.offload:
        return best
    for limit in _limits(trace, wish):
        found = paged(trace, channel, limit, wish.most(trace, best))
        if found is not None and wish.key(trace, found) < wish.key(trace, best):
            best = found
    return best


def _by_stages(trace: Trace, channel: Channel | None, wish: Wish, limit: int, best: Found) -> Found:
    """The best of the given plan and two for the requested limit: from keeping everything, and from a lower limit."""
    most = kept(trace).run.peak_bytes

    def within(room: int, plan: ActivationPlan) -> Found:
        return improved(trace, channel, replace(wish, limit_bytes=room), plan)

    def better(found: Found) -> Found:
        return min((best, found), key=lambda plan: wish.key(trace, plan))

    plan = ActivationPlan()
    for stage in range(1, STAGES + 1):
        found = within(most - (most - limit) * stage // STAGES, plan)
        plan = found.plan
    best = better(found)
    less = limit - int((most - trace.touched_bytes) * LESS_SHARE)
    return better(within(limit, within(less, best.plan).plan)) if less >= trace.touched_bytes else best


def _limits(trace: Trace, wish: Wish) -> Iterator[int]:
    """The limits from the requested one down, but no lower than one kernel needs."""
    least, most = trace.touched_bytes, kept(trace).run.peak_bytes
    asked = most if wish.limit_bytes is None else max(least, wish.limit_bytes)
    if asked < most:
        yield asked
    for step in reversed(range(MOST_LIMITS)):
        limit = least + (most - least) * step // MOST_LIMITS
        if limit < asked:
            yield limit
