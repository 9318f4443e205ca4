"""Activations of a compiled model that do not fit into GPU memory: the fastest plan with which they do.

A step of the schedule plays the role of a kernel in a training step: the units synchronise at its end, and the buffers
that its nodes access are in memory throughout. Buffers alive across the step with most live bytes may be kept,
offloaded to the machine's SSDs or recomputed. The plan is simulated, and the live buffers are packed into an arena,
which may leave gaps.
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
from pimflow.runtime.offload.memory_bound import MemoryBound, memory_lower_bound
from pimflow.runtime.offload.paging import paging_plan
from pimflow.runtime.offload.reordered import reordered_plan
from pimflow.runtime.offload.requirements import Requirements
from pimflow.runtime.offload.rerunning import rerunning_plan
from pimflow.runtime.offload.run import Moment, Run, RunLimits, SimulatedPlan, keep_all
from pimflow.runtime.offload.search import search_plan
from pimflow.runtime.offload.step_orders import step_orders
from pimflow.runtime.offload.trace import Buffer, Kernel, Trace, written
from pimflow.runtime.timeline import CHANNELS, Timeline, regions
from pimflow.targets import Target

SpillWay = Literal["auto", "never", "offload", "recompute"]
"""Measures for activations that do not fit: whatever is fastest, none, or only one kind."""

MAX_ROUNDS = 6
"""The maximum number of searches, each with a tighter limit, if the arena has gaps."""


@dataclass(frozen=True)
class Stay:
    """A buffer at an offset in the arena, from one entry of the run's log to another, both included."""

    buffer: int
    offset: int
    first: int
    last: int


@dataclass(frozen=True)
class Spill:
    """A plan for activations that do not fit, with its arena.

    Args:
        trace: the steps of the schedule.
        found: the plan for the activations, and its run.
        arena_bytes: size of the arena with activations, inputs and results, including gaps.
        room_bytes: memory available for them.
        lower_bound: a lower bound on the memory of every plan.
        stays: where each buffer is in the arena, and when; a buffer that leaves and comes back may get another place.
            Empty if no plan helps: everything is kept, as in the memory plan.
        order: for each kernel of the trace between inputs and results, its step in the schedule; () if the trace is in
            the schedule's order.
    """

    trace: Trace
    found: SimulatedPlan
    arena_bytes: int
    room_bytes: int
    lower_bound: MemoryBound
    stays: tuple[Stay, ...] = ()
    order: tuple[int, ...] = ()

    def step_of(self, kernel: int) -> int | None:
        """The step of the schedule that a kernel of the trace is; None for inputs and results."""
        step = kernel - self.trace.input_kernels
        if not 0 <= step < len(self.trace.kernels) - self.trace.input_kernels - 1:
            return None
        return self.order[step] if self.order else step

    @property
    def executed(self) -> tuple[str, ...]:
        """The kernels in order of execution, including reruns, by name; () if that is the schedule's order."""
        order = self.found.plan.order or (range(len(self.trace.kernels)) if self.order else ())
        return tuple(self.trace.kernels[place].name for place in order)

    @property
    def limit_bytes(self) -> int:
        """The limit on live bytes, without gaps: a kernel that would exceed it waits for stores."""
        limit = self.found.plan.limit_bytes
        return self.room_bytes if limit is None else limit

    @property
    def fits(self) -> bool:
        """Whether the arena fits into the memory available."""
        return self.arena_bytes <= self.room_bytes

    @property
    def costs_nothing(self) -> bool:
        """Whether the arena fits, and the run takes no longer than with everything kept."""
        return self.fits and not _lost_us(self.found.run)

    @property
    def is_impossible(self) -> bool:
        """Whether no plan can fit."""
        return self.lower_bound.bytes > self.room_bytes


def channel_of(target: Target) -> Channel | None:
    """The channel to a machine's SSDs; None if it has none."""
    ssd = None if target.memory is None else target.memory.ssd
    return None if ssd is None else Channel.of(ssd, target.any_gpu)


def require_drives(target: Target) -> None:
    """Check that a machine has SSDs.

    Raises:
        TargetError: it has none.
    """
    if target.memory is None or target.memory.ssd is None:
        raise TargetError(f"{target.name!r} has no SSDs", "choose a target with a table [memory.ssd]")


def plan_spill(
    graph: Graph, memory: MemoryPlan, timeline: Timeline, room_bytes: int, channel: Channel | None, way: SpillWay
) -> Spill:
    """The fastest plan found with which the activations fit.

    Args:
        graph: a scheduled graph.
        memory: its memory plan.
        timeline: its schedule.
        room_bytes: memory available for activations, inputs and results.
        channel: the channel to the SSDs; None if nothing can be offloaded.
        way: the measures allowed.
    """
    trace = steps_of(graph, memory, timeline)
    drives = channel is not None and way != "recompute"
    kept = Spill(trace, keep_all(trace), memory.arena_bytes, room_bytes, _lower_bound(trace, room_bytes, drives=drives))
    if way == "never":
        return kept
    given = _in_given_order(kept, channel if drives else None, way)
    if given.is_impossible or given.costs_nothing or _switches_channels(timeline):
        return given
    best = _in_other_orders(given, kept, channel if drives else None, way)
    if way == "offload" or best.costs_nothing:
        return best
    if not best.fits:
        proven = _lower_bound(trace, room_bytes, drives=drives, proof=True)
        best, given = replace(best, lower_bound=proven), replace(given, lower_bound=proven)
    if best.is_impossible or (given.fits and not given.found.run.recompute_us):
        return best
    return min(best, _reordered(given), key=_rank)


def _switches_channels(timeline: Timeline) -> bool:
    """Whether memory channels change hands: another order of the steps might need more switches than it is charged."""
    return any(event.resource == CHANNELS for event in timeline.events)


def _in_given_order(kept: Spill, channel: Channel | None, way: SpillWay) -> Spill:
    """The best plan found in the order of a trace; the one that keeps everything if none helps."""
    best, room_bytes = kept, kept.room_bytes
    limit = max(0, room_bytes)
    for _ in range(MAX_ROUNDS):
        requirements = Requirements(offload=way != "recompute", recompute=way != "offload", limit_bytes=limit)
        found = search_plan(kept.trace, channel, requirements)
        tried = _packed(best, found)
        best = min(best, tried, key=lambda spill: spill.arena_bytes)
        if tried.fits or found.run.peak_bytes > limit:
            break
        limit = max(0, min(limit, found.run.peak_bytes) - (tried.arena_bytes - room_bytes))
    return best if channel is None or best.is_impossible else _paged(best, channel)


def _in_other_orders(given: Spill, kept: Spill, channel: Channel | None, way: SpillWay) -> Spill:
    """The given plan, or one with the steps in an order that needs less memory if only that one fits, or if it is
    faster."""
    trace, best = kept.trace, given
    orders, inputs = step_orders(trace, _sizes(trace)), trace.input_kernels
    for order in orders[1:] if channel is not None else ():
        steps = tuple(place - inputs for place in order[inputs:-1])
        moved = replace(kept, trace=_in_order(trace, order), order=steps)
        best = min(best, _in_given_order(moved, channel, way), key=_rank)
        if best.costs_nothing:
            break
    return best if way == "offload" or best.costs_nothing else _rerun(best, kept, orders)


def _in_order(trace: Trace, order: Sequence[int]) -> Trace:
    """A trace whose kernels are in another order."""
    kernels = tuple(trace.kernels[place] for place in order)
    return replace(trace, kernels=kernels, turn=_busiest(kernels, trace.buffers))


def _lower_bound(trace: Trace, room_bytes: int, *, drives: bool, proof: bool = False) -> MemoryBound:
    return memory_lower_bound(trace, _sizes(trace), drives=drives, enough=room_bytes, proof=proof)


def _sizes(trace: Trace) -> list[int]:
    """Sizes of the buffers in an arena."""
    return [_aligned(buffer.bytes) for buffer in trace.buffers]


def _paged(best: Spill, channel: Channel) -> Spill:
    """The given plan, or a plan of `paging_plan` if only that one fits, or if it is faster."""
    room, touched = best.room_bytes, best.trace.working_set_bytes
    for spared in range(MAX_ROUNDS):
        limit = room - (room - touched) * spared // (MAX_ROUNDS - 1)
        limits = RunLimits(lost_us=_lost_us(best.found.run), slowed=True) if best.fits else RunLimits()
        found = paging_plan(best.trace, channel, limit, limits)
        if found is not None:
            best = min(best, _packed(best, found), key=_rank)
    return best


def _lost_us(run: Run) -> float:
    return run.stall_us + run.recompute_us + run.slowed_us


def _rank(spill: Spill) -> tuple[float, ...]:
    """Smaller is better: the bytes that do not fit, then the time."""
    return (0, spill.found.run.time_us) if spill.fits else (spill.arena_bytes - spill.room_bytes, 0)


def _reordered(best: Spill) -> Spill:
    """The given plan, or one with the steps in another order if only that one fits, or if it is faster."""
    limit = best.room_bytes
    below_us = best.found.run.time_us if best.fits else math.inf
    for _ in range(MAX_ROUNDS):
        found = reordered_plan(best.trace, _sizes(best.trace), limit, below_us)
        if found is None:
            break
        tried = _packed(best, found)
        if tried.fits or (tried.arena_bytes < best.arena_bytes and not best.fits):
            best = tried
        if tried.fits:
            break
        limit -= tried.arena_bytes - best.room_bytes
    return best


def _rerun(best: Spill, kept: Spill, orders: Sequence[Sequence[int]]) -> Spill:
    """The given plan, or one of `rerunning_plan` if only that one fits, or if it is faster."""
    limit = kept.room_bytes
    for _ in range(MAX_ROUNDS):
        below_us = best.found.run.time_us if best.fits else math.inf
        found = rerunning_plan(kept.trace, _sizes(kept.trace), orders, limit, below_us)
        if found is None:
            break
        tried = _packed(kept, found)
        best = min(best, tried, key=_rank)
        if tried.fits:
            break
        limit -= tried.arena_bytes - kept.room_bytes
    return best


def steps_of(graph: Graph, memory: MemoryPlan, timeline: Timeline) -> Trace:
    """The steps of a schedule as a trace that turns at the step with most live bytes; the first kernel provides the
    inputs, the last one takes the results."""
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
    return Trace(kernels, _busiest(kernels, buffers), buffers, input_kernels=1)


def _kernel(nodes: list[Node], time_us: float, memory: MemoryPlan, there: set[int]) -> Kernel:
    """A step as a kernel; buffers that it writes only for itself do not count as read. Adds its writes to `there`."""
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
    """The step with most live bytes."""
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


def _packed(spill: Spill, found: SimulatedPlan) -> Spill:
    """The spill with a plan whose live buffers are packed into an arena."""
    trace = spill.trace
    lives = list(_lives(found.run.log))
    blocks = [Block(_aligned(trace.buffers[which].bytes), *span) for which, *span in lives]
    offsets, taken = pack_within(blocks, spill.room_bytes)
    stays = tuple(Stay(which, offset, *span) for (which, *span), offset in zip(lives, offsets, strict=True))
    return replace(spill, found=found, arena_bytes=taken, stays=stays)


def _lives(log: Sequence[Moment]) -> Iterator[tuple[int, int, int]]:
    """(buffer, first, last) for each time that a buffer is in memory, as positions in a log."""
    since: dict[int, int] = {}
    for place, moment in enumerate(log):
        if moment.what == "allocate":
            since[moment.which] = place
        elif moment.what == "free":
            yield moment.which, since.pop(moment.which), place - 1
    for buffer, begin in since.items():
        yield buffer, begin, len(log)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
