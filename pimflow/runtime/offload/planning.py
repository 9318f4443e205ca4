"""The best plan of all that are made for a training step: what the search finds, and what pages for less and less room.

A plan for less room is one for more. So that more room takes no longer, and a longer step no more room, those that page
are made for the same limits whatever is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

from pimflow.runtime.offload.paging import paged
from pimflow.runtime.offload.run import ActivationPlan, Channel, Found, follow
from pimflow.runtime.offload.search import searched
from pimflow.runtime.offload.trace import Trace
from pimflow.runtime.offload.wish import Wish

MOST_LIMITS = 32
"""For which plans that page are made, evenly spread from what one kernel touches to what all takes that is kept."""


def plan_activations(trace: Trace, channel: Channel | None, wish: Wish | None = None) -> Found:
    """The best plan that is found.

    Args:
        trace: the step.
        channel: to the SSDs; None: nothing can be offloaded.
        wish: what is asked of it.
    """
    wish = wish or Wish()
    best = searched(trace, channel, wish)
    if channel is None or not wish.offload:
        return best
    for limit in _limits(trace, wish):
        found = paged(trace, channel, limit, wish.most(trace, best))
        if found is not None and wish.key(trace, found) < wish.key(trace, best):
            best = found
    return best


def _limits(trace: Trace, wish: Wish) -> Iterator[int]:
    """From the most that is asked for down; no less than one kernel needs."""
    least, most = trace.touched_bytes, follow(trace, ActivationPlan()).peak_bytes
    asked = most if wish.limit_bytes is None else max(least, wish.limit_bytes)
    if asked < most:
        yield asked
    for step in reversed(range(MOST_LIMITS)):
        limit = least + (most - least) * step // MOST_LIMITS
        if limit < asked:
            yield limit
