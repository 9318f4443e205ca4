"""Spaces: coordinate systems in which values have fixed places, before they become bytes.

A space is what will be one region of the arena. Every value in it is a box; boxes may be views of each other, but every
cell is written by one writer or holds one fill value, so that no order of execution can spoil a view.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from operator import add, le, lt, sub
from typing import Literal, NamedTuple

from pimflow.ir.analysis.tensor_layout import Index, is_contiguous
from pimflow.records import dataclass

MIXED = "*"
"""The owner of a space that values of several regions of the program write."""

_FEW = 16
"""Cells that are looked at one by one."""


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
        return Box(tuple(map(add, self.lo, shift)), tuple(map(add, self.hi, shift)))

    def meets(self, other: Box) -> bool:
        """Whether both have a cell in common."""
        apart = not (all(map(lt, self.lo, other.hi)) and all(map(lt, other.lo, self.hi)))  # as most are
        return not apart and all(map(lt, self.lo, self.hi)) and all(map(lt, other.lo, other.hi))

    def overlap(self, other: Box) -> Box | None:
        """The cells that both have, or None."""
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
    """Cells of a space that kernels and copies write (`value` None) or that hold a constant from before that on."""

    box: Box
    value: float | None = None

    def shifted(self, shift: Sequence[int]) -> Cells:
        """The cells moved by `shift`."""
        return Cells(self.box.shifted(shift), self.value)

    def agrees(self, other: Cells) -> bool:
        """Whether both may hold a cell: they are the same constant there (NaN is NaN, 0 is not -0)."""
        if self.value is None or other.value is None:
            return False
        if math.isnan(self.value):
            return math.isnan(other.value)
        return self.value == other.value and math.copysign(1, self.value) == math.copysign(1, other.value)


@dataclass(frozen=True, slots=True)
class Alias:
    """A value that shows the bytes of `base` in another way than as a box of its space.

    `kind` "step": every `step`-th index of `axis` from `start`; "reshape": another shape; "transpose": permuted axes.
    `strides` are its element strides where they are settled (what it shows stays one run of elements), else None.
    """

    base: str
    kind: Literal["step", "reshape", "transpose"]
    axis: int = 0
    start: int = 0
    step: int = 1
    perm: Index = ()
    strides: Index | None = None


class CellIndex:
    """Cells, found by the box that they overlap: in order along the axis on which they lie spread widest.

    Cells that are added are put in order when they are first asked for; all are, on the axis that is best then,
    whenever they have doubled in number.
    """

    def __init__(self, cells: Iterable[Cells] = ()) -> None:
        self._cells = list(cells)
        self._order: list[tuple[int, int]] = []  # of cells by number: where they begin on the axis, number
        self._axis = 0
        self._longest = 0  # extent of cells on the axis
        self._boxes: set[Box] | None = None  # of all cells, once it is asked what they cover
        self._next_sort = _FEW

    def __iter__(self) -> Iterator[Cells]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    def add(self, cells: Iterable[Cells]) -> None:
        """More cells."""
        self._cells.extend(cells)
        self._boxes = None

    def near(self, box: Box) -> Iterator[Cells]:
        """The cells that share some with a box."""
        return (cells for cells in self._candidates(box) if cells.box.meets(box))

    def cover(self, box: Box) -> bool:
        """Whether these cells, which are disjoint, hold all of a box."""
        if self._boxes is None:
            self._boxes = {cells.box for cells in self._cells}
        if box in self._boxes:  # as most
            return True
        missing = box.volume
        for cells in self._candidates(box):
            if cells.box.holds(box):
                return True
            shared = cells.box.overlap(box)
            if shared is not None:
                missing -= shared.volume
        return not missing

    def _candidates(self, box: Box) -> Iterable[Cells]:
        if len(self._cells) <= _FEW:
            return self._cells
        self._settle()
        start = bisect_left(self._order, (box.lo[self._axis] - self._longest + 1, 0))
        end = bisect_left(self._order, (box.hi[self._axis], 0))
        return (self._cells[number] for _, number in self._order[start:end])

    def _settle(self) -> None:
        """Puts the cells in order that are not yet."""
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
        """How many cells lie side by side on an axis at least, if they fill their hull."""
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
        fixed: why it can neither grow nor be put inside another space; "" where it can.
        places: the box of every value in it.
        content: what is written, disjoint from everything else, and the constants; where those meet each other, equal.
        dense: shapes of values that other shapes show, so that they have to stay one run of elements.
        alias: set where the space shows another one's bytes.
        composed: whether it has no bytes: what reads its values reads what they are made of.
        strides: of its elements, where they are in another order than the layout's; its hull is one run all the same.
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
        """Whether all values that must be one run of elements still are when the space grows to `hull`."""
        extents = hull.shape
        return all(is_contiguous(shape, extents) for shape in self.dense)

    def clash(self, other: Space, shift: Index) -> bool:
        """Whether cells of both, `other` moved by `shift`, would have two writers or two fill values."""
        shared = self.hull.overlap(other.hull.shifted(shift))
        if shared is None:
            return False
        back = tuple(-step for step in shift)
        arriving = (cells.shifted(shift) for cells in other.content.near(shared.shifted(back)))
        return any(not mine.agrees(cells) for cells in arriving for mine in self.content.near(cells.box))

    def covered_by(self, window: Box, parts: CellIndex, shift: Index) -> bool:
        """Whether all that this space (moved by `shift`) has written or filled inside `window` lies inside `parts`.

        The parts are disjoint.
        """
        seen = self.hull.shifted(shift).overlap(window)
        if seen is None:
            return True
        back = tuple(-step for step in shift)
        content = self.content.near(seen.shifted(back))
        return all(parts.cover(box) for cells in content if (box := cells.box.shifted(shift).overlap(window)))

    def can_fill(self, boxes: Iterable[Box], value: float) -> bool:
        """Whether these cells are free for a constant."""
        fills = (Cells(box, value) for box in boxes)
        return all(mine.agrees(fill) for fill in fills for mine in self.content.near(fill.box))
