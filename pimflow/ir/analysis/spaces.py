"""Spaces: coordinate systems in which values have fixed places, before they become bytes.

A space becomes one region of the arena. Every value in it is a box; boxes may be views of each other, but every cell
has one writer or one fill value, so that no execution order can corrupt a view.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from operator import add, le, lt, sub
from typing import Literal

from pimflow.ir.analysis.tensor_layout import Index, is_contiguous
from pimflow.records import NamedTuple, dataclass

MIXED = "*"
"""The owner of a space that several regions of the program write."""

_FEW = 16
"""The largest number of `Cells` that is searched linearly."""


class Box(NamedTuple):
    """Cells lo <= x < hi on every axis."""

    lo: Index
    hi: Index

    @classmethod
    def at(cls, origin: Sequence[int], shape: Sequence[int]) -> Box:
        """The box of a shape at a place."""
        return cls(tuple(origin), tuple(map(add, origin, shape)))

    @property
    def shape(self) -> Index:
        """Extent on every axis."""
        return tuple(map(sub, self.hi, self.lo))

    @property
    def volume(self) -> int:
        """Number of cells."""
        count = 1
        for low, high in zip(self.lo, self.hi, strict=True):
            count *= max(0, high - low)
        return count

    def shifted(self, shift: Sequence[int]) -> Box:
        """The box moved by `shift`."""
        if not any(shift):  # the common case
            return self
        return Box(tuple(map(add, self.lo, shift)), tuple(map(add, self.hi, shift)))

    def meets(self, other: Box) -> bool:
        """Whether the boxes have a cell in common."""
        disjoint = not (all(map(lt, self.lo, other.hi)) and all(map(lt, other.lo, self.hi)))  # the common case
        return not disjoint and all(map(lt, self.lo, self.hi)) and all(map(lt, other.lo, other.hi))

    def overlap(self, other: Box) -> Box | None:
        """The cells in both boxes, or None."""
        if not self.meets(other):
            return None
        return Box(tuple(map(max, self.lo, other.lo)), tuple(map(min, self.hi, other.hi)))

    def holds(self, other: Box) -> bool:
        """Whether `other` lies inside."""
        return all(map(le, self.lo, other.lo)) and all(map(le, other.hi, self.hi))

    def hull(self, other: Box) -> Box:
        """The smallest box around both."""
        return Box(tuple(map(min, self.lo, other.lo)), tuple(map(max, self.hi, other.hi)))

    def minus(self, inner: Box) -> list[Box]:
        """The cells around `inner` (which lies inside), as disjoint boxes: at most two per axis."""
        rest: list[Box] = []
        lo, hi = list(self.lo), list(self.hi)
        for axis in range(len(lo)):
            if lo[axis] < inner.lo[axis]:
                rest.append(Box(tuple(lo), (*hi[:axis], inner.lo[axis], *hi[axis + 1 :])))
            if inner.hi[axis] < hi[axis]:
                rest.append(Box((*lo[:axis], inner.hi[axis], *lo[axis + 1 :]), tuple(hi)))
            lo[axis], hi[axis] = inner.lo[axis], inner.hi[axis]
        return [box for box in rest if box.volume]


class Cells(NamedTuple):
    """Cells of a space that kernels and copies write (`value` None), or that hold a constant filled in beforehand."""

    box: Box
    value: float | None = None

    def shifted(self, shift: Sequence[int]) -> Cells:
        """The cells moved by `shift`."""
        return Cells(self.box.shifted(shift), self.value) if any(shift) else self

    def agrees(self, other: Cells) -> bool:
        """Whether the two may overlap: both hold the same constant (NaN equals NaN, 0 differs from -0)."""
        if self.value is None or other.value is None:
            return False
        if math.isnan(self.value):
            return math.isnan(other.value)
        return self.value == other.value and math.copysign(1, self.value) == math.copysign(1, other.value)


@dataclass(frozen=True, slots=True)
class Alias:
    """A value that is a view of the bytes of `base` other than as a box of its space.

    `kind` "step": every `step`-th index of `axis` from `start`; "reshape": another shape; "transpose": permuted axes.
    `strides` are its element strides if they are settled (what it views stays one run of elements), else None.
    """

    base: str
    kind: Literal["step", "reshape", "transpose"]
    axis: int = 0
    start: int = 0
    step: int = 1
    perm: Index = ()
    strides: Index | None = None


class CellIndex:
    """An index of `Cells` by the boxes that they overlap: sorted along the axis on which they are spread widest.

    Added cells are sorted in at the next query; whenever their number has doubled, the axis is chosen anew and all are
    sorted again.
    """

    def __init__(self, cells: Iterable[Cells] = ()) -> None:
        self._cells = list(cells)
        self._order: list[tuple[int, int]] = []  # for each of the cells: where it begins on the axis, its number
        self._axis = 0
        self._longest = 0  # largest extent of any of the cells on the axis
        self._next_sort = _FEW

    def __iter__(self) -> Iterator[Cells]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    def add(self, cells: Iterable[Cells]) -> None:
        """Adds cells."""
        self._cells.extend(cells)

    def near(self, box: Box) -> Iterator[Cells]:
        """The cells that overlap a box."""
        return (cells for cells in self._candidates(box) if cells.box.meets(box))

    def _candidates(self, box: Box) -> Sequence[Cells]:
        if len(self._cells) <= _FEW:
            return self._cells
        self._settle()
        start = bisect_left(self._order, (box.lo[self._axis] - self._longest + 1, 0))
        end = bisect_left(self._order, (box.hi[self._axis], 0))
        return [self._cells[number] for _, number in self._order[start:end]]

    def _settle(self) -> None:
        """Sorts in the cells that are not sorted yet."""
        if len(self._cells) >= self._next_sort:
            self._next_sort = 2 * len(self._cells)
            self._axis = max(range(len(self._cells[0].box.lo)), key=self._spread)
            self._order, self._longest = [], 0
        axis, settled = self._axis, len(self._order)
        for number in range(settled, len(self._cells)):
            box = self._cells[number].box
            self._longest = max(self._longest, box.hi[axis] - box.lo[axis])
            insort(self._order, (box.lo[axis], number))

    def _spread(self, axis: int) -> float:
        """The minimum number of cells side by side along an axis if they fill their hull."""
        boxes = [cells.box for cells in self._cells]
        hull = max(box.hi[axis] for box in boxes) - min(box.lo[axis] for box in boxes)
        return hull / max(1, *(box.hi[axis] - box.lo[axis] for box in boxes))


@dataclass(eq=False, slots=True)
class Space:
    """One future region.

    Args:
        hull: the smallest box around all its values.
        dtype: numpy name of its elements.
        owner: the region of the program whose nodes write it, or MIXED.
        fixed: why it can neither grow nor be merged into another space; "" if it can.
        places: the box of every value in it.
        content: the written cells, disjoint from everything else, and the constants, which are equal where they
            overlap.
        dense: shapes of values that are also viewed under other shapes and so have to stay one run of elements.
        alias: set if the space is a view of another one's bytes.
        composed: whether it has no bytes: readers of its values read the inputs of those instead.
        strides: strides of its elements if their order is not the layout's; its hull is one run of elements even so.
    """

    hull: Box
    dtype: str
    owner: str
    fixed: str = ""
    places: dict[str, Box] = field(default_factory=dict)
    content: CellIndex = field(default_factory=CellIndex)
    dense: set[Index] = field(default_factory=set)
    alias: Alias | None = None
    composed: bool = False
    strides: Index | None = None

    def stays_dense(self, hull: Box) -> bool:
        """Whether all values that must be one run of elements remain so when the space grows to `hull`."""
        extents = hull.shape
        return all(is_contiguous(shape, extents) for shape in self.dense)

    def clash(self, other: Space, shift: Index) -> bool:
        """Whether any cell would have two writers or two fill values if `other`, moved by `shift`, were merged in."""
        shared = self.hull.overlap(other.hull.shifted(shift)) if self.content else None
        if shared is None:
            return False
        back = tuple(-step for step in shift)
        arriving = (cells.shifted(shift) for cells in other.content.near(shared.shifted(back)))
        return any(not mine.agrees(cells) for cells in arriving for mine in self.content.near(cells.box))

    def has_content(self, boxes: Iterable[Box]) -> bool:
        """Whether any cell of these boxes is written or filled."""
        shared = (box.overlap(self.hull) for box in boxes)
        return any(True for box in shared if box is not None for _ in self.content.near(box))

    def can_fill(self, boxes: Iterable[Box], value: float) -> bool:
        """Whether these boxes can be filled with a constant."""
        fills = (Cells(box, value) for box in boxes)
        return all(mine.agrees(fill) for fill in fills for mine in self.content.near(fill.box))
