"""`MemoryPlan`: the place and the lifetime of each value of a graph in the arena, and the size of the arena."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from functools import cached_property
from typing import Any

from pimflow.data import Nested, encode, take
from pimflow.errors import MemoryPlanError, counted, one_line
from pimflow.ir import Graph, Node
from pimflow.ir.analysis.host_tables import in_host
from pimflow.ir.analysis.movement import Movement, Places, place
from pimflow.ir.analysis.spaces import Alias, Box, Space
from pimflow.ir.analysis.tensor_layout import Index, dense_strides, element_bytes, reshaped_strides
from pimflow.records import dataclass
from pimflow.runtime.memory.packing import Block, live_peak, pack
from pimflow.runtime.timeline import regions

ALIGNMENT = 64
"""Bytes; regions start at multiples of it (two DRAM bursts, and the widest vector load)."""


@dataclass(frozen=True, slots=True)
class FilledBox:
    """Cells of a region that hold a constant: origin and shape in the region's own coordinates (ONNX axis order)."""

    origin: Index
    shape: Index
    value: float

    @classmethod
    def from_data(cls, data: Any, read: Nested) -> FilledBox:
        """A box from the form that `to_data` writes."""
        fields = dict(read(dict[str, Any], data))
        value = read(float | str, take(fields, "value"), "value")
        origin, shape = (read(tuple[int, ...], take(fields, name), name) for name in ("origin", "shape"))
        return cls(origin, shape, float(value))

    def to_data(self) -> dict[str, Any]:
        """A form for JSON, which has no infinities or NaN: these become text."""
        value = self.value if math.isfinite(self.value) else str(self.value)
        return {"origin": self.origin, "shape": self.shape, "value": value}


@dataclass(frozen=True, slots=True)
class ArenaRegion:
    """A piece of the arena, alive from step `first` to step `last`, both included.

    `shape` is in ONNX axis order (NCHW); four axes are stored NHWC, others row-major. A region whose values have
    another order is one-dimensional.
    """

    offset: int
    bytes: int
    first: int
    last: int
    shape: Index
    dtype: str
    filled: tuple[FilledBox, ...] = ()

    @property
    def strides(self) -> Index:
        """Element strides, in ONNX axis order."""
        return dense_strides(self.shape)


@dataclass(frozen=True, slots=True)
class ValuePlace:
    """The place of a value: byte offset in the arena and byte strides, in ONNX axis order (NCHW).

    `first` and `last` are the steps at which it is first written and last read.
    """

    region: int
    offset: int
    shape: Index
    strides: Index
    dtype: str
    first: int
    last: int


@dataclass(frozen=True, repr=False)
class MemoryPlan:
    """The arena of a graph.

    A step is a region of the program (see `timeline.regions`): its nodes may run at the same time, so values that are
    alive in the same step do not share space.

    Args:
        arena_bytes: size of the arena: the peak with reuse.
        bytes_without_reuse: its size if no regions shared space.
        live_bytes: the most bytes alive at any step, a lower bound on the size of any arena.
        weight_bytes: constants, which are outside the arena; those in the host's memory are not included.
        filled_bytes: padding filled before the first write, in total.
        steps: number of steps.
        outside: values that have no place in the arena (no static shape, no fixed element size, or tables in the host's
            memory).
        regions: the pieces of the arena.
        places: the place of each value in it, by name.
        workspaces: the regions of the nodes' workspaces, by node name.
        movements: what each movement node does when the graph runs in this arena, by node name.
        composed: values without a place, as copies read their parts directly: for each the values that hold its parts.
    """

    arena_bytes: int
    bytes_without_reuse: int
    live_bytes: int
    weight_bytes: int
    filled_bytes: int
    steps: int
    outside: tuple[str, ...]
    regions: tuple[ArenaRegion, ...]
    places: Mapping[str, ValuePlace]
    movements: Mapping[str, Movement]
    workspaces: Mapping[str, int] = field(default_factory=dict)
    composed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __repr__(self) -> str:
        arena, weights = self.arena_bytes / 1e6, self.weight_bytes / 1e6
        steps, values = counted(self.steps, "step"), counted(len(self.places), "value")
        return one_line("MemoryPlan", f"{steps}, {values} in {arena:,.1f} MB, and {weights:,.1f} MB of weights")

    def regions_of(self, names: Iterable[str]) -> dict[int, None]:
        """The regions that hold the given values, in order, each once; values without a place have none."""
        return dict.fromkeys(self.places[name].region for name in self.holders(names) if name in self.places)

    def holders(self, names: Iterable[str]) -> Iterator[str]:
        """The values whose places hold the given values: they themselves, or for composed values their parts."""
        return (holder for name in names for holder in self.composed.get(name, (name,)))

    @cached_property
    def eliminated(self) -> tuple[str, ...]:
        """Names of the movement nodes that do nothing."""
        return tuple(name for name, verdict in self.movements.items() if verdict.free)

    @cached_property
    def kept(self) -> Mapping[str, Movement]:
        """The movement nodes that move bytes."""
        return {name: verdict for name, verdict in self.movements.items() if not verdict.free}

    def check(self) -> None:
        """Verifies that regions alive at the same time do not overlap, and that values stay within their regions.

        Raises:
            MemoryPlanError: one of these does not hold.
        """
        for index, region in enumerate(self.regions):
            if region.offset % ALIGNMENT or region.offset + region.bytes > self.arena_bytes:
                raise MemoryPlanError(f"region {index} at {region.offset} is misaligned or outside the arena")
        for name, spot in self.places.items():
            _check_place(name, spot, self.regions[spot.region])
        _check_apart(self.regions)

    def as_json(self) -> dict[str, Any]:
        """The plan as JSON values, byte-stable."""
        plan: dict[str, Any] = encode(self)
        return plan


def _check_place(name: str, spot: ValuePlace, region: ArenaRegion) -> None:
    if 0 not in spot.shape:
        reach = sum((dim - 1) * stride for dim, stride in zip(spot.shape, spot.strides, strict=True))
        end = spot.offset + reach + (element_bytes(spot.dtype) or 0)
        if spot.offset < region.offset or end > region.offset + region.bytes:
            raise MemoryPlanError(f"value {name!r} reaches outside its region")
    if spot.first < region.first or spot.last > region.last:
        raise MemoryPlanError(f"value {name!r} outlives its region")


def _check_apart(pieces: tuple[ArenaRegion, ...]) -> None:
    """Sweeps over the steps with the live regions sorted by offset, and checks that neighbours do not overlap."""
    begin = sorted((region.first, index) for index, region in enumerate(pieces) if region.bytes)
    end = sorted((region.last, index) for index, region in enumerate(pieces) if region.bytes)
    live: list[tuple[int, int, int]] = []
    done = 0
    for step, index in begin:
        while done < len(end) and end[done][0] < step:
            gone = pieces[end[done][1]]
            del live[bisect_left(live, (gone.offset, gone.bytes, end[done][1]))]
            done += 1
        region = pieces[index]
        entry = (region.offset, region.bytes, index)
        insort(live, entry)
        at = bisect_left(live, entry)
        for below, above in zip(live[max(0, at - 1) : at + 1], live[max(1, at) : at + 2], strict=False):
            if below[0] + below[1] > above[0]:
                raise MemoryPlanError(f"regions {below[2]} and {above[2]} overlap at step {step}")


def plan_memory(graph: Graph, workspaces: Mapping[str, int] | None = None) -> MemoryPlan:
    """Assigns each value of a graph a place in one arena.

    Args:
        graph: the graph.
        workspaces: bytes that nodes need in addition to their operands and results while they run, by name.

    Linear in the graph except for the packing, which is linear in the pairs of regions alive at the same time.
    """
    placement = place(graph)
    spaces, boxes = _with_updates_in_place(graph, placement)
    composed = _holders(graph, spaces)
    lives, steps = _lifetimes(graph, composed)
    builder = _Builder(graph, spaces, boxes, lives, composed)
    for name in _values_in_order(graph):
        builder.add(name)
    if workspaces:
        for step, nodes in enumerate(regions(graph)):
            for node in nodes:
                builder.add_workspace(node.name, workspaces.get(node.name, 0), step)
    return builder.finish(placement, steps)


def _values_in_order(graph: Graph) -> list[str]:
    names = [name for name in graph.inputs if not graph.is_constant(name)]
    names.extend(output for node in graph.nodes for output in node.outputs if output)
    return names


def _holders(graph: Graph, spaces: Mapping[str, Space]) -> dict[str, tuple[str, ...]]:
    """For each value without its own bytes, the values that hold its elements."""
    found: dict[str, tuple[str, ...]] = {}
    for node in graph.nodes:
        for name in node.outputs:
            if name in spaces and spaces[name].composed:
                held = (holder for read in node.inputs if read for holder in found.get(read, (read,)))
                found[name] = tuple(dict.fromkeys(held))
    return found


def _lifetimes(graph: Graph, composed: Mapping[str, tuple[str, ...]]) -> tuple[dict[str, tuple[int, int]], int]:
    """First and last step of each value, and the number of steps: at least one, even for a graph without nodes.

    Inputs are alive from step 0 on, outputs until the end, and the parts of a composed value until its last read.
    """
    order = regions(graph)
    steps = max(1, len(order))
    first = dict.fromkeys(graph.inputs, 0)
    last = dict.fromkeys(graph.inputs, 0)
    for step, nodes in enumerate(order):
        for node in nodes:
            for name in (*node.inputs, *node.outputs):
                first.setdefault(name, step)
                last[name] = step
                last.update(dict.fromkeys(composed.get(name, ()), step))
    for name in graph.outputs:
        first.setdefault(name, 0)
        last[name] = steps - 1
    return {name: (first[name], last[name]) for name in first if name}, steps


def _with_updates_in_place(graph: Graph, placement: Places) -> tuple[dict[str, Space], dict[str, Box]]:
    """Spaces and boxes, with elementwise nodes overwriting an input that no other node reads.

    Such an input gets the place of the output. Nodes are visited from last to first, so that a chain shares one place.
    """
    spaces = dict(placement.spaces)
    boxes = {name: space.places[name] for name, space in spaces.items()}
    outputs = frozenset(graph.outputs)
    for node in reversed(graph.nodes):
        target = _overwritten(graph, node, spaces, outputs)
        if target is None:
            continue
        out = node.output
        if out not in spaces:
            spaces[out] = _own_space(graph, out)
            boxes[out] = spaces[out].hull
        spaces[target] = spaces[out]
        boxes[target] = boxes[out]
    return spaces, boxes


def _overwritten(graph: Graph, node: Node, spaces: Mapping[str, Space], outputs: frozenset[str]) -> str | None:
    """The input that an elementwise node may overwrite: of equal shape and type, computed, with no other reader."""
    if not node.op.is_elementwise or element_bytes(graph.value(node.output).dtype) is None:
        return None
    out = graph.value(node.output)
    for name in node.inputs:
        if not name or name in outputs or graph.producer(name) is None or len(graph.users(name)) != 1:
            continue
        value = graph.value(name)
        alone = name not in spaces or (len(spaces[name].places) == 1 and not spaces[name].fixed)
        if alone and value.shape is not None and (value.shape, value.dtype) == (out.shape, out.dtype):
            return name
    return None


def _own_space(graph: Graph, name: str) -> Space:
    value = graph.value(name)
    shape = graph.shape(name)
    return Space(Box.at((0,) * len(shape), shape), value.dtype, "")


@dataclass(frozen=True, slots=True)
class _Frame:
    """A space in its arena region: the element offset of its coordinate 0, and its strides in elements."""

    region: int
    origin: int
    strides: Index


class _Builder:
    """Turns spaces into regions and boxes into strided places, in topological order (an alias's base comes first)."""

    def __init__(
        self,
        graph: Graph,
        spaces: dict[str, Space],
        boxes: Mapping[str, Box],
        lives: Mapping[str, tuple[int, int]],
        composed: Mapping[str, tuple[str, ...]],
    ) -> None:
        self.graph = graph
        self.spaces = spaces
        self.boxes = boxes
        self.lives = lives
        self.composed = composed
        self.outside: list[str] = []
        self._frames: dict[Space, _Frame] = {}
        self._roots: list[Space] = []
        self._times: list[tuple[int, int]] = []
        self._spots: dict[str, tuple[_Frame, int]] = {}
        self._workspaces: dict[str, int] = {}
        self._in_host = in_host(graph)

    def add_workspace(self, node: str, size: int, step: int) -> None:
        """Adds a region that is alive in one step only."""
        if not size:
            return
        self._workspaces[node] = len(self._roots)
        self._roots.append(Space(Box.at((0,), (size,)), "uint8", ""))
        self._times.append((step, step))

    def add(self, name: str) -> None:
        """Places one value."""
        if name in self.composed:
            return
        value = self.graph.value(name)
        if value.shape is None or element_bytes(value.dtype) is None or name in self._in_host:
            self.outside.append(name)
            return
        space = self.spaces.get(name)
        if space is None:
            space = _own_space(self.graph, name)
        frame = self._frames.get(space)
        if frame is None:
            frame = self._frames[space] = self._frame(space)
        box = self.boxes.get(name, space.hull)
        origin = frame.origin + sum(low * stride for low, stride in zip(box.lo, frame.strides, strict=True))
        self._spots[name] = (frame, origin)
        first, last = self.lives[name]
        begin, end = self._times[frame.region]
        self._times[frame.region] = (min(begin, first), max(end, last))

    def _frame(self, space: Space) -> _Frame:
        if space.alias is not None:
            return self._alias_frame(space.alias, space.hull.shape)
        strides = dense_strides(space.hull.shape) if space.strides is None else space.strides
        origin = -sum(low * stride for low, stride in zip(space.hull.lo, strides, strict=True))
        self._roots.append(space)
        self._times.append((1 << 62, -1))
        return _Frame(len(self._roots) - 1, origin, strides)

    def _alias_frame(self, alias: Alias, shape: Index) -> _Frame:
        base, origin = self._spots[alias.base]
        strides = base.strides
        if alias.kind == "step":
            origin += alias.start * strides[alias.axis]
            strides = tuple(
                stride * alias.step if axis == alias.axis else stride for axis, stride in enumerate(strides)
            )
        elif alias.kind == "transpose":
            strides = tuple(strides[axis] for axis in alias.perm)
        else:
            shown = reshaped_strides(self.graph.shape(alias.base), strides, shape)
            if shown is None:
                raise MemoryPlanError(f"value {alias.base!r} is reshaped, but its elements are not contiguous")
            strides = shown
        return _Frame(base.region, origin, strides)

    def finish(self, placement: Places, steps: int) -> MemoryPlan:
        """Packs the regions."""
        sizes = [space.hull.volume * (element_bytes(space.dtype) or 0) for space in self._roots]
        blocks = [
            Block(-(-size // ALIGNMENT) * ALIGNMENT, first, last)
            for size, (first, last) in zip(sizes, self._times, strict=True)
        ]
        offsets, arena_bytes = pack(blocks)
        pieces = tuple(
            ArenaRegion(offset, size, block.first, block.last, _region_shape(space), space.dtype, _filled(space))
            for space, block, size, offset in zip(self._roots, blocks, sizes, offsets, strict=True)
        )
        return MemoryPlan(
            regions=pieces,
            places={name: self._spot(name, pieces) for name in self._spots},
            movements=placement.actual,
            workspaces=self._workspaces,
            composed=self.composed,
            arena_bytes=arena_bytes,
            bytes_without_reuse=sum(block.size for block in blocks),
            live_bytes=live_peak(blocks),
            weight_bytes=self.graph.constant_bytes - self._constant_bytes_in_host(),
            filled_bytes=sum(
                math.prod(box.shape) * (element_bytes(region.dtype) or 0) for region in pieces for box in region.filled
            ),
            outside=tuple(self.outside),
            steps=steps,
        )

    def _constant_bytes_in_host(self) -> int:
        return sum(self.graph.stored_bytes(name) for name in self._in_host if name in self.graph.constants)

    def _spot(self, name: str, pieces: tuple[ArenaRegion, ...]) -> ValuePlace:
        frame, origin = self._spots[name]
        value = self.graph.value(name)
        width = element_bytes(value.dtype) or 0
        strides = tuple(stride * width for stride in frame.strides)
        offset = pieces[frame.region].offset + origin * width
        first, last = self.lives[name]
        return ValuePlace(frame.region, offset, self.graph.shape(name), strides, value.dtype, first, last)


def _region_shape(space: Space) -> Index:
    """The shape of a region: the hull's in the standard layout, one-dimensional in any other."""
    return space.hull.shape if space.strides is None else (space.hull.volume,)


def _filled(space: Space) -> tuple[FilledBox, ...]:
    back = tuple(-low for low in space.hull.lo)
    cells = dict.fromkeys(cells.shifted(back) for cells in space.content)
    return tuple(FilledBox(box.lo, box.shape, value) for box, value in cells if value is not None)
