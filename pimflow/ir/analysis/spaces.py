"""Spaces: coordinate systems in which values have fixed places, before they become bytes.

A space is what will be one region of the arena. Every value in it is a box; boxes may be views of each other, but every
cell is written by one writer or holds one fill value, so that no order of execution can spoil a view.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import add, le, lt, sub
from typing import Literal, NamedTuple

from pimflow.ir.analysis.tensor_layout import Index, is_contiguous

MIXED = "*"
"""The owner of a space that values of several regions of the program write."""


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

    def overlap(self, other: Box) -> Box | None:
        """The cells that both have, or None."""
        lo, hi = tuple(map(max, self.lo, other.lo)), tuple(map(min, self.hi, other.hi))
        return Box(lo, hi) if all(map(lt, lo, hi)) else None

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


@dataclass(frozen=True, slots=True)
class Fill:
    """Cells that hold a constant from before the first write to the region on."""

    box: Box
    value: float


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


@dataclass(eq=False, slots=True)
class Space:
    """One future region.

    Args:
        hull: the smallest box around all its values.
        dtype: numpy name of its elements.
        owner: the region of the program whose nodes write it, or MIXED.
        fixed: why it can neither grow nor be put inside another space; "" where it can.
        places: the box of every value in it.
        writes: boxes written by kernels and copies: disjoint.
        fills: boxes of constants: disjoint from the writes; where they meet each other, equal.
        dense: values that other shapes show, so that they have to stay one run of elements.
        alias: set where the space shows another one's bytes.
    """

    hull: Box
    dtype: str
    owner: str
    fixed: str = ""
    places: dict[str, Box] = field(default_factory=dict)
    writes: list[Box] = field(default_factory=list)
    fills: list[Fill] = field(default_factory=list)
    dense: list[str] = field(default_factory=list)
    alias: Alias | None = None

    def stays_dense(self, hull: Box) -> bool:
        """Whether all values that must be one run of elements still are when the space grows to `hull`."""
        extents = hull.shape
        return all(is_contiguous(self.places[name].shape, extents) for name in self.dense)

    def clash(self, other: Space, shift: Index) -> bool:
        """Whether cells of both, `other` moved by `shift`, would have two writers or two fill values."""
        moved_hull = other.hull.shifted(shift)
        if self.hull.overlap(moved_hull) is None:
            return False
        mine = [box for box in self.writes if box.overlap(moved_hull)]
        fills = [fill for fill in self.fills if fill.box.overlap(moved_hull)]
        if not mine and not fills:
            return False
        for write in (box.shifted(shift) for box in other.writes):
            if any(write.overlap(box) for box in mine) or any(write.overlap(fill.box) for fill in fills):
                return True
        for fill in other.fills:
            box = fill.box.shifted(shift)
            if any(box.overlap(write) for write in mine):
                return True
            if any(box.overlap(old.box) and not same_fill(old.value, fill.value) for old in fills):
                return True
        return False

    def covered_by(self, window: Box, parts: Sequence[Box], shift: Index) -> bool:
        """Whether all that this space (moved by `shift`) has written or filled inside `window` lies inside `parts`."""
        seen = self.hull.shifted(shift).overlap(window)
        if seen is None or any(part.holds(seen) for part in parts):
            return True
        content = (*self.writes, *(fill.box for fill in self.fills))
        return all(_volume_inside(box.shifted(shift), window, parts) for box in content)

    def can_fill(self, boxes: Iterable[Box], value: float) -> bool:
        """Whether these cells are free for a constant."""
        for box in boxes:
            if any(box.overlap(write) for write in self.writes):
                return False
            if any(box.overlap(fill.box) and not same_fill(fill.value, value) for fill in self.fills):
                return False
        return True


def same_fill(one: float, other: float) -> bool:
    """Whether two fill values are the same element (NaN equals NaN)."""
    return one == other or (one != one and other != other)


def _volume_inside(box: Box, window: Box, parts: Sequence[Box]) -> bool:
    seen = box.overlap(window)
    if seen is None:
        return True
    if any(part.holds(seen) for part in parts):
        return True
    pieces = (seen.overlap(part) for part in parts)  # parts are disjoint
    return sum(piece.volume for piece in pieces if piece) == seen.volume
