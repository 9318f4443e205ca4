"""Activations of a compiled model that its GPU's memory does not hold: the fastest plan with which they fit.

A step of the schedule is what a kernel is in a training step: the units meet at its end, and what any node of it
touches is there throughout. What is alive across the step at which most is may be kept, offloaded to the machine's SSDs
or recomputed. The plan is replayed, and what is alive packed into an arena, gaps included.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Literal

from pimflow.errors import TargetError
from pimflow.ir import Graph, Node
from pimflow.onnxio.folding import is_random
from pimflow.records import dataclass
from pimflow.runtime.memory.packing import Block, pack_within
from pimflow.runtime.memory.plan import ALIGNMENT, MemoryPlan
from pimflow.runtime.offload.channel import Channel
from pimflow.runtime.offload.least import Least, least_room
from pimflow.runtime.offload.paging import paged
from pimflow.runtime.offload.reordered import reordered
from pimflow.runtime.offload.run import Found, Moment, Most, Run, kept
from pimflow.runtime.offload.search import searched
from pimflow.runtime.offload.trace import Buffer, Kernel, Trace, written
from pimflow.runtime.offload.wish import Wish
from pimflow.runtime.timeline import Timeline, regions
from pimflow.targets import Target

SpillWay = Literal["auto", "never", "offload", "recompute"]
"""What may become of activations that do not fit: whatever is fastest, nothing, or one of both."""

MOST_ROUNDS = 6
"""Searches with a tighter limit each, where the arena has gaps."""


@dataclass(frozen=True)
class Stay:
    """A buffer in the arena at an offset, from one moment of the run's log to another, both included."""

    buffer: int
    offset: int
    first: int
    last: int


@dataclass(frozen=True)
class Spill:
    """How activations fit that would not.

    Args:
        trace: the steps of the schedule.
        found: what becomes of the activations, and what that comes to.
        arena_bytes: what activations, inputs and results take then, gaps included.
        room_bytes: what there is for them.
        least: what no plan goes below.
        stays: where everything lies, and from when to when; what leaves and comes back may lie elsewhere then. None
            where nothing helps: all is kept, as the memory plan has it.
    """

    trace: Trace
    found: Found
    arena_bytes: int
    room_bytes: int
    least: Least
    stays: tuple[Stay, ...] = ()

    @property
    def limit_bytes(self) -> int:
        """For what is alive at a time, gaps left out: a kernel that would pass it waits for stores."""
        limit = self.found.plan.limit_bytes
        return self.room_bytes if limit is None else limit

    @property
    def fits(self) -> bool:
        """Whether that is enough."""
        return self.arena_bytes <= self.room_bytes

    @property
    def is_impossible(self) -> bool:
        """Whether no plan at all fits."""
        return self.least.bytes > self.room_bytes


def channel_of(target: Target) -> Channel | None:
    """The way to a machine's SSDs; None where it has none."""
    ssd = None if target.memory is None else target.memory.ssd
    return None if ssd is None else Channel.of(ssd, target.any_gpu)


def require_drives(target: Target) -> None:
    """Raises:
    TargetError: a machine has no SSDs.
    """
    if target.memory is None or target.memory.ssd is None:
        raise TargetError(f"{target.name!r} has no SSDs", "choose a target with a table [memory.ssd]")


def spilled(
    graph: Graph, memory: MemoryPlan, timeline: Timeline, room_bytes: int, channel: Channel | None, way: SpillWay
) -> Spill:
    """The fastest plan that the search finds with which activations fit.

    Args:
        graph: scheduled.
        memory: its memory plan.
        timeline: its schedule.
        room_bytes: what there is for activations, inputs and results.
        channel: to the SSDs; None: nothing can be offloaded.
        way: what may be done.
    """
    trace = steps_of(graph, memory, timeline)
    drives = channel is not None and way != "recompute"
    best = Spill(trace, kept(trace), memory.arena_bytes, room_bytes, _least(trace, room_bytes, drives=drives))
    if way == "never":
        return best
    limit = max(0, room_bytes)
    for _ in range(MOST_ROUNDS):
        wish = Wish(offload=way != "recompute", recompute=way != "offload", limit_bytes=limit)
        found = searched(trace, channel, wish)
        tried = _packed(best, found)
        best = min(best, tried, key=lambda spill: spill.arena_bytes)
        if tried.fits or found.run.peak_bytes > limit:
            break
        limit = max(0, min(limit, found.run.peak_bytes) - (tried.arena_bytes - room_bytes))
    if channel is not None and drives and not best.is_impossible:
        best = _paged(best, channel)
    if not best.fits and not best.is_impossible and way != "offload":
        best = replace(best, least=_least(trace, room_bytes, drives=drives, proof=True))
    if way != "offload" and not best.is_impossible and (not best.fits or best.found.run.recompute_us):
        best = _reordered(best)
    return best


def _least(trace: Trace, room_bytes: int, *, drives: bool, proof: bool = False) -> Least:
    return least_room(trace, _sizes(trace), drives=drives, enough=room_bytes, proof=proof)


def _sizes(trace: Trace) -> list[int]:
    """Of buffers as they lie in an arena."""
    return [_aligned(buffer.bytes) for buffer in trace.buffers]


def _paged(best: Spill, channel: Channel) -> Spill:
    """What the search did not make fit, if it does where all leaves for which there is no room; what is faster so."""
    room, touched = best.room_bytes, best.trace.touched_bytes
    for spared in range(MOST_ROUNDS):
        limit = room - (room - touched) * spared // (MOST_ROUNDS - 1)
        most = Most(lost_us=_lost_us(best.found.run), slowed=True) if best.fits else Most()
        found = paged(best.trace, channel, limit, most)
        if found is not None:
            best = min(best, _packed(best, found), key=_rank)
    return best


def _lost_us(run: Run) -> float:
    return run.stall_us + run.recompute_us + run.slowed_us


def _rank(spill: Spill) -> tuple[float, ...]:
    """The smaller, the better: what does not fit, and the time."""
    return (0, spill.found.run.time_us) if spill.fits else (spill.arena_bytes - spill.room_bytes, 0)


def _reordered(best: Spill) -> Spill:
    """What does not fit in the order of the schedule, if it does in another; what is faster in another."""
    limit = best.room_bytes
    below_us = best.found.run.time_us if best.fits else math.inf
    for _ in range(MOST_ROUNDS):
        found = reordered(best.trace, _sizes(best.trace), limit, below_us)
        if found is None:
            break
        tried = _packed(best, found)
        if tried.fits or (tried.arena_bytes < best.arena_bytes and not best.fits):
            best = tried
        if tried.fits:
            break
        limit -= tried.arena_bytes - best.room_bytes
    return best


def steps_of(graph: Graph, memory: MemoryPlan, timeline: Timeline) -> Trace:
    """The steps of a schedule as kernels, turning where most is alive; the first one hands over the inputs, the last
    one the results."""
    inputs, results = memory.regions_of(graph.inputs), memory.regions_of(graph.outputs)
    names: dict[int, str] = {}
    elements: dict[int, int] = {}
    for name, spot in memory.places.items():
        names.setdefault(spot.region, name)
        elements[spot.region] = max(elements.get(spot.region, 0), graph.value(name).elements)
    names |= {region: f"workspace of {node}" for node, region in memory.workspaces.items()}
    buffers = tuple(
        Buffer(names[index], region.bytes, elements.get(index, region.bytes))
        for index, region in enumerate(memory.regions)
    )
    there = {*inputs}
    steps = zip(regions(graph), timeline.region_us, strict=True)
    kernels = (
        Kernel("inputs", 0.0, (), tuple(inputs)),
        *(_kernel(nodes, time_us, memory, there) for nodes, time_us in steps),
        Kernel("results", 0.0, tuple(results), ()),
    )
    return Trace(kernels, _busiest(kernels, buffers), buffers, given=1)


def _kernel(nodes: list[Node], time_us: float, memory: MemoryPlan, there: set[int]) -> Kernel:
    """A step; what it makes for itself alone it does not read. `there` gains what it makes."""
    reads: dict[int, None] = {}
    writes: dict[int, None] = {}
    for node in nodes:
        read = memory.regions_of(node.inputs)
        reads |= {buffer: None for buffer in read if buffer in there or buffer not in writes}
        writes |= memory.regions_of(written(node, memory))
        if node.name in memory.workspaces:
            writes[memory.workspaces[node.name]] = None
    there.update(writes)
    return Kernel(nodes[0].name, time_us, tuple(reads), tuple(writes), any(is_random(node.op) for node in nodes))


def _busiest(kernels: tuple[Kernel, ...], buffers: tuple[Buffer, ...]) -> int:
    """The step at which most is alive."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for place, kernel in enumerate(kernels):
        for buffer in (*kernel.reads, *kernel.writes):
            first.setdefault(buffer, place)
            last[buffer] = place
    change = [0] * (len(kernels) + 1)
    for buffer, place in first.items():
        change[place] += buffers[buffer].bytes
        change[last[buffer] + 1] -= buffers[buffer].bytes
    alive = list(accumulate(change))
    return max(range(len(kernels)), key=lambda place: alive[place], default=0)


def _packed(spill: Spill, found: Found) -> Spill:
    """An arena in which everything lies that is alive at some time of a run."""
    trace = spill.trace
    lives = list(_lives(found.run.log))
    blocks = [Block(_aligned(trace.buffers[which].bytes), *span) for which, *span in lives]
    offsets, taken = pack_within(blocks, spill.room_bytes)
    stays = tuple(Stay(which, offset, *span) for (which, *span), offset in zip(lives, offsets, strict=True))
    return replace(spill, found=found, arena_bytes=taken, stays=stays)


def _lives(log: Sequence[Moment]) -> Iterator[tuple[int, int, int]]:
    """Which buffer is there from when to when, every time, as places in a log."""
    since: dict[int, int] = {}
    for place, moment in enumerate(log):
        if moment.what == "take":
            since[moment.which] = place
        elif moment.what == "give":
            yield moment.which, since.pop(moment.which), place - 1
    for buffer, begin in since.items():
        yield buffer, begin, len(log)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
