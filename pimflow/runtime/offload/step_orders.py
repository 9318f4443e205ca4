"""Orders in which the steps of a trace need less memory than in its own, each step once.

The order with the lowest peak is NP-hard to find (Sethi, Complete Register Allocation Problems, SIAM Journal on
Computing 4(3), 1975). Three heuristics find good ones:

- Eager: the trace's order, except that steps run ahead as soon as they free more memory than they take. In the backward
  pass of a training step, a weight gradient then runs as soon as its operands are there, and frees them.
- A beam search: of all partial orders with equally many steps, those with the lowest peak so far and the fewest live
  bytes are continued (as in Ahn et al., Ordering Chaos: Memory-Aware Scheduling of Irregularly Wired Neural Networks
  for Edge Devices, MLSys 2020, whose dynamic program keeps all of them).
- The same search backwards, from the results: a buffer is alive between its first and its last access either way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

from pimflow.records import NamedTuple, dataclass
from pimflow.runtime.offload.trace import Trace

MAX_WIDTH = 64
"""The number of partial orders that a beam search continues, for up to `FULL_WIDTH_STEPS` steps; fewer for more."""

FULL_WIDTH_STEPS = 512

MAX_AHEAD = 12
"""The maximum number of steps that run ahead together."""


def step_orders(trace: Trace, sizes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Orders of all steps of a trace, its own one first, each once.

    Args:
        trace: the steps; the first ones provide inputs, the last one takes results.
        sizes: sizes of its buffers in an arena.
    """
    ahead = _Flow.of(trace, sizes)
    own = tuple(range(len(trace.kernels)))
    return tuple(dict.fromkeys((own, _eager(ahead), _beam(ahead), _beam(ahead.reversed)[::-1])))


def peak_in_order(trace: Trace, sizes: Sequence[int], order: Iterable[int]) -> int:
    """The peak of live bytes if all steps run in an order, each once."""
    flow = _Flow.of(trace, sizes)
    done = taken = peak = 0
    for step in order:
        during, after = flow.bytes_of(step, done, taken)
        done, taken, peak = done | 1 << step, after, max(peak, during)
    return peak


@dataclass(frozen=True)
class _Flow:
    """What orders the steps; sets of steps are bit masks.

    Args:
        before: for each step, the steps that have to run before it.
        behind: for each step, the steps that it has to run before.
        accessed: for each step, the buffers that it accesses.
        users: for each buffer, the steps that access it.
        sizes: sizes of the buffers.
    """

    before: tuple[int, ...]
    behind: tuple[int, ...]
    accessed: tuple[tuple[int, ...], ...]
    users: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, trace: Trace, sizes: Sequence[int]) -> _Flow:
        """The flow of a trace."""
        before = _before(trace)
        accessed = tuple(tuple(sorted({*kernel.reads, *kernel.writes})) for kernel in trace.kernels)
        users = tuple(_mask(uses) for uses in trace.uses)
        return cls(before, _mirrored(before), accessed, users, tuple(sizes))

    @property
    def reversed(self) -> _Flow:
        """The flow backwards."""
        return _Flow(self.behind, self.before, self.accessed, self.users, self.sizes)

    @cached_property
    def ancestors(self) -> tuple[int, ...]:
        """For each step, itself and all steps that have to run before it."""
        found: list[int] = []
        for step, before in enumerate(self.before):
            found.append(1 << step | _union(found[other] for other in bits(before)))
        return tuple(found)

    def bytes_of(self, step: int, done: int, taken: int) -> tuple[int, int]:
        """Live bytes during and after a step, if some steps are done and `taken` bytes are alive."""
        after = done | 1 << step
        users, sizes, accessed = self.users, self.sizes, self.accessed[step]
        during = taken + sum(sizes[buffer] for buffer in accessed if not users[buffer] & done)
        return during, during - sum(sizes[buffer] for buffer in accessed if not users[buffer] & ~after)


def bits(mask: int) -> Iterator[int]:
    """The positions of the one bits of a number, from the lowest."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _mask(places: Iterable[int]) -> int:
    return _union(1 << place for place in places)


def _union(masks: Iterable[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


def _before(trace: Trace) -> tuple[int, ...]:
    """For each step, the steps that have to run before it: those that wrote what it accesses, and those that access
    what it overwrites. Inputs are first, results last."""
    last, inputs = len(trace.kernels) - 1, (1 << trace.input_kernels) - 1
    writers: dict[int, int] = {}
    readers: dict[int, int] = {}
    before = []
    for step, kernel in enumerate(trace.kernels):
        needed = _union(writers.get(buffer, 0) for buffer in (*kernel.reads, *kernel.writes))
        needed |= _union(readers.get(buffer, 0) for buffer in kernel.writes) | inputs
        before.append(((1 << last) - 1 if step == last else needed) & ((1 << step) - 1))
        for buffer in kernel.reads:
            readers[buffer] = readers.get(buffer, 0) | 1 << step
        for buffer in kernel.writes:
            writers[buffer], readers[buffer] = 1 << step, 0
    return tuple(before)


def _mirrored(before: Sequence[int]) -> tuple[int, ...]:
    behind = [0] * len(before)
    for step, needed in enumerate(before):
        for other in bits(needed):
            behind[other] |= 1 << step
    return tuple(behind)


class _Partial(NamedTuple):
    """A partial order: the peak so far, live bytes, the steps done as bits, those that may be next, and the last step
    with the partial order before it."""

    peak: int
    taken: int
    done: int
    ready: tuple[int, ...]
    path: tuple[int, Any] | None


def _beam(flow: _Flow) -> tuple[int, ...]:
    """The order with the lowest peak that the beam search finds."""
    count = len(flow.before)
    width = max(1, MAX_WIDTH * FULL_WIDTH_STEPS // max(FULL_WIDTH_STEPS, count))
    layer = [_Partial(0, 0, 0, tuple(step for step in range(count) if not flow.before[step]), None)]
    for _ in range(count):
        following = sorted(
            (peak, taken, step, number)
            for number, partial in enumerate(layer)
            for peak, taken, step in _following(flow, partial)
        )
        found: dict[int, _Partial] = {}
        for peak, taken, step, number in following:
            done = layer[number].done | 1 << step
            if done not in found:
                found[done] = _Partial(peak, taken, done, _ready(flow, layer[number], step), (step, layer[number].path))
            if len(found) == width:
                break
        layer = list(found.values())
    return tuple(_steps(layer[0].path))[::-1]


def _following(flow: _Flow, partial: _Partial) -> list[tuple[int, int, int]]:
    """(peak, live bytes, step) for every step that may be next; only one if it needs no more memory than there is."""
    found = []
    for step in partial.ready:
        during, after = flow.bytes_of(step, partial.done, partial.taken)
        found.append((max(partial.peak, during), after, step))
    at_no_cost = [one for one in found if one[0] == partial.peak and one[1] <= partial.taken]
    return [min(at_no_cost)] if at_no_cost else found


def _ready(flow: _Flow, partial: _Partial, step: int) -> tuple[int, ...]:
    """The steps that may be next after a step of a partial order."""
    done = partial.done | 1 << step
    more = (other for other in bits(flow.behind[step]) if not flow.before[other] & ~done)
    return (*(other for other in partial.ready if other != step), *more)


def _steps(path: tuple[int, Any] | None) -> Iterator[int]:
    while path is not None:
        yield path[0]
        path = path[1]


def _eager(flow: _Flow) -> tuple[int, ...]:
    """The given order, except that steps run ahead where that frees memory."""
    order: list[int] = []
    done = taken = peak = 0
    for step in range(len(flow.before)):
        waiting = [] if done >> step & 1 else [step]
        while waiting:
            for one in waiting:
                during, taken = flow.bytes_of(one, done, taken)
                done, peak = done | 1 << one, max(peak, during)
            order += waiting
            waiting = _ahead(flow, step, done, taken, peak)
    return tuple(order)


def _ahead(flow: _Flow, step: int, done: int, taken: int, peak: int) -> list[int]:
    """Steps that free memory when they run right after a step: all that still access some buffer, and all that these
    depend on. Of several choices, the one with the lowest peak; none if it needs more than the order does anyway."""
    last = len(flow.before) - 1
    following = next((other for other in range(step + 1, last) if not done >> other & 1), last)
    limit = max(peak, flow.bytes_of(following, done, taken)[0])
    alive = (b for b, users in enumerate(flow.users) if users & done and users & ~done)
    best: tuple[int, int, list[int]] | None = None
    for buffer in alive:
        needed = _union(flow.ancestors[one] for one in bits(flow.users[buffer] & ~done)) & ~done
        if needed >> last or needed.bit_count() > MAX_AHEAD:
            continue
        steps = list(bits(needed))
        highest, after = _effect(flow, steps, done, taken)
        if after < taken and highest <= limit and (best is None or (highest, after) < best[:2]):
            best = (highest, after, steps)
    return [] if best is None else best[2]


def _effect(flow: _Flow, steps: Iterable[int], done: int, taken: int) -> tuple[int, int]:
    """The highest live bytes while some steps run, and the live bytes after them."""
    highest = taken
    for step in steps:
        during, taken = flow.bytes_of(step, done, taken)
        done, highest = done | 1 << step, max(highest, during)
    return highest, taken
