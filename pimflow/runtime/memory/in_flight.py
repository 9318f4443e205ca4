"""`MemoryInFlight`: the arena of a steady state, in which values of several inferences are alive at the same time.

A region is alive from its first write to its last read. If that is longer than the interval, the next inference writes
before the previous one has read, so the region needs several copies: as many as intervals begin during its lifetime
(modulo variable expansion: Lam, Software Pipelining, PLDI 1988). Inferences use the copies in turn.

A region with one copy shares its space with regions that are alive at other times of the interval. The copies of a
region with several are alive nearly all the time, and have their own space.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from pimflow.ir import Graph
from pimflow.records import dataclass
from pimflow.runtime.memory.packing import Block, pack
from pimflow.runtime.memory.plan import ALIGNMENT, MemoryPlan
from pimflow.runtime.steady_state import SteadyState, steady_state
from pimflow.runtime.timeline import Costs
from pimflow.targets import Target

_REST_STEPS = 8
"""Bisection steps of the search for the shortest rest."""


@dataclass(frozen=True, slots=True)
class Life:
    """The lifetime of a region in the first inference, in ticks: from `first` up to `last`.

    `at_once` means that it is first written by a node that takes no time, or is an input; then it begins a tick early.
    """

    first: int
    last: int
    at_once: bool = False


@dataclass(frozen=True)
class MemoryInFlight:
    """The arena of a steady state.

    Args:
        alone: the memory plan of one inference: its regions, and the places of values in them.
        arena_bytes: size of the arena.
        offsets: for each region, the offsets of its copies.
        lives: for each region, its lifetime in the first inference.
    """

    alone: MemoryPlan
    arena_bytes: int
    offsets: tuple[tuple[int, ...], ...]
    lives: tuple[Life, ...]

    @property
    def most_copies(self) -> int:
        """The largest number of copies of any region."""
        return max(map(len, self.offsets), default=1)

    @cached_property
    def _plans(self) -> dict[tuple[int, ...], MemoryPlan]:
        return {}

    def plan_of(self, number: int) -> MemoryPlan:
        """The memory plan of an inference, by its number."""
        taken = tuple(copies[number % len(copies)] for copies in self.offsets)
        if taken not in self._plans:
            moved = zip(self.alone.regions, taken, strict=True)
            regions = tuple(replace(region, offset=offset) for region, offset in moved)
            places = {
                name: replace(spot, offset=spot.offset - self.alone.regions[spot.region].offset + taken[spot.region])
                for name, spot in self.alone.places.items()
            }
            self._plans[taken] = replace(self.alone, arena_bytes=self.arena_bytes, regions=regions, places=places)
        return self._plans[taken]


def plan_in_flight(graph: Graph, steady: SteadyState, alone: MemoryPlan) -> MemoryInFlight:
    """The arena of a steady state.

    Args:
        graph: the graph that was scheduled.
        steady: its schedule.
        alone: the memory plan of one inference.
    """
    lives = _lives(graph, steady, alone)
    interval = max(1, steady.interval)
    copies = [max(1, -(-(life.last - life.first) // interval)) for life in lives]
    sizes = [-(-region.bytes // ALIGNMENT) * ALIGNMENT for region in alone.regions]
    spans = [
        _Span(life.first % interval, life.last - life.first) if count == 1 else _Span(0, interval)
        for life, count in zip(lives, copies, strict=True)
    ]
    blocks = _blocks(spans, sizes, interval)
    each = [block for block, count in zip(blocks, copies, strict=True) for _ in range(count)]
    placed, arena_bytes = pack(each)
    taken = iter(placed)
    return MemoryInFlight(alone, arena_bytes, tuple(tuple(next(taken) for _ in range(n)) for n in copies), lives)


def least_rest_us(graph: Graph, target: Target, costs: Costs, alone: MemoryPlan, most_bytes: int) -> float | None:
    """The shortest idle time of the busiest resource per interval, in microseconds, for which the arena fits.

    The longer the interval, the fewer inferences are in flight, and the fewer copies of regions are needed. The result
    is certain to suffice: its schedule and arena are computed, not estimated.

    Args:
        graph: a graph whose nodes have devices.
        target: the machine.
        costs: prices nodes and copies, as for `steady_state`.
        alone: the memory plan of one inference.
        most_bytes: the size that the arena may have.

    Returns:
        None if even the arena of one inference at a time is too large.
    """

    def fits(steady: SteadyState) -> bool:
        return plan_in_flight(graph, steady, alone).arena_bytes <= most_bytes

    busiest = steady_state(graph, target, costs)
    if fits(busiest):
        return 0.0
    low, high = 0.0, sum(busiest.busy_us.values())
    if not fits(steady_state(graph, target, costs, high)):
        return None
    for _ in range(_REST_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(steady_state(graph, target, costs, middle)) else (middle, high)
    return high


def _lives(graph: Graph, steady: SteadyState, alone: MemoryPlan) -> tuple[Life, ...]:
    """The lifetimes of the regions in the first inference: inputs from its start on, outputs until its end."""
    begins, ends = node_times(steady)
    outputs = frozenset(graph.outputs)
    read: dict[str, int] = {}
    for reader in graph.nodes:
        for name in alone.holders(reader.inputs):
            read[name] = max(ends[reader.name], read.get(name, 0))
    lives: list[Life | None] = [None] * len(alone.regions)
    for name, spot in alone.places.items():
        producer = graph.producer(name)
        start, end = (0, 0) if producer is None else (begins[producer.name], ends[producer.name])
        at_once = start == end
        last = max(end, read.get(name, 0), steady.latency if name in outputs else 0)
        life = Life(start - at_once, last, at_once)
        lives[spot.region] = _union(lives[spot.region], life)
    for node, region in alone.workspaces.items():
        lives[region] = Life(begins[node], ends[node])
    return tuple(life or Life(0, 0) for life in lives)


def _union(known: Life | None, other: Life) -> Life:
    """The lifetime of a region that holds two values."""
    if known is None:
        return other
    earlier = min(known, other, key=lambda life: life.first)
    return replace(earlier, last=max(known.last, other.last))


def node_times(steady: SteadyState) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """The begin and end of each node in the first inference, including copies over links."""
    begins: dict[str, int] = {}
    ends: dict[str, int] = {}
    for slot in steady.slots:
        begins[slot.node] = min(begins.get(slot.node, slot.start), slot.start)
        ends[slot.node] = max(ends.get(slot.node, slot.end), slot.end)
    return begins, ends


@dataclass(frozen=True, slots=True)
class _Span:
    """A part of the interval from `start` on, which may wrap around to the interval's beginning."""

    start: int
    length: int


def _blocks(spans: Sequence[_Span], sizes: Sequence[int], interval: int) -> list[Block]:
    """The spans as blocks on a line: the circle is cut where the fewest bytes are alive; spans that are cut are treated
    as always alive."""
    cuts = sorted({(span.start + end) % interval for span in spans for end in (0, span.length)}) or [0]

    def crossing(cut: int) -> int:
        return sum(size for span, size in zip(spans, sizes, strict=True) if _crosses(span, cut, interval))

    cut = min(cuts, key=lambda cut: (crossing(cut), cut))
    steps = sorted({(tick - cut) % interval for tick in cuts})
    blocks = []
    for span, size in zip(spans, sizes, strict=True):
        start = (span.start - cut) % interval
        if _crosses(span, cut, interval):
            blocks.append(Block(size, 0, len(steps)))
        else:
            blocks.append(Block(size, bisect_left(steps, start), max(bisect_left(steps, start + span.length) - 1, 0)))
    return blocks


def _crosses(span: _Span, cut: int, interval: int) -> bool:
    """Whether a span contains a cut in its interior."""
    return (span.start - cut) % interval + span.length > interval
