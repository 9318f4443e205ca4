"""The best plan of all that are made for a training step: what the search finds, what is reached by stages, both with
exchanges at the end, and what pages for less and less room.

A search that goes at once from all that is kept to little room takes what brings most there, however long it takes.
By stages each plan is as fast as is found in its room before the next begins from it. A plan for less room is one for
more, so one for less than is asked for is the last to begin from. That more room never takes longer is likely by that,
and not certain: it would take the plans for all limits below. Plans that page are made for the same limits whatever is
asked for.
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
"""For which plans that page are made, evenly spread from what one kernel touches to what all takes that is kept."""

STAGES = 4
"""By which room gets as short as is asked for."""

LESS_SHARE = 1 / 16
"""Of the room between these two: how much less is tried than is asked for."""


def plan_activations(trace: Trace, channel: Channel | None, wish: Wish | None = None) -> Found:
    """The best plan that is found.

    Args:
        trace: the step.
        channel: to the SSDs; None: nothing can be offloaded.
        wish: what is asked of it.
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
    """The best of a plan and of those for the room that is asked for: from all that is kept, and from less room."""
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
    """From the most that is asked for down; no less than one kernel needs."""
    least, most = trace.touched_bytes, kept(trace).run.peak_bytes
    asked = most if wish.limit_bytes is None else max(least, wish.limit_bytes)
    if asked < most:
        yield asked
    for step in reversed(range(MOST_LIMITS)):
        limit = least + (most - least) * step // MOST_LIMITS
        if limit < asked:
            yield limit
