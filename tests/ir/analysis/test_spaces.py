"""Spaces find the same cells that intersect a box as a check of every cell does, however many there are."""

from functools import reduce

import hypothesis.strategies as st
import pytest
from hypothesis import given

from pimflow.ir.analysis.spaces import Box, CellIndex, Cells, Space

_CORNER = st.tuples(st.integers(-40, 40), st.integers(-3, 3))
_EXTENT = st.tuples(st.integers(1, 6), st.integers(1, 3))
_BOXES = st.builds(Box.at, _CORNER, _EXTENT)
_CELLS = st.builds(Cells, _BOXES, st.sampled_from([None, 0.0, float("nan")]))


def cells_of(box: Box) -> set[tuple[int, ...]]:
    return {(x, y) for x in range(box.lo[0], box.hi[0]) for y in range(box.lo[1], box.hi[1])}


@given(st.lists(st.lists(_CELLS, max_size=25), max_size=6), _BOXES)
def test_cells_added_in_turn_are_found(batches: list[list[Cells]], box: Box) -> None:
    index, added = CellIndex(), list[Cells]()
    for batch in batches:
        index.add(batch)
        added += batch
        found = list(index.near(box))
        expected = [cells for cells in added if cells_of(cells.box) & cells_of(box)]
        assert sorted(map(id, found)) == sorted(map(id, expected))
    assert list(index) == added


@given(st.lists(_CELLS, min_size=1, max_size=25), st.lists(_BOXES, max_size=4))
def test_boxes_have_content_if_a_cell_lies_in_one(some: list[Cells], boxes: list[Box]) -> None:
    hull = reduce(Box.hull, (cells.box for cells in some))
    space = Space(hull, "float32", "", content=CellIndex(some))
    written = set().union(*(cells_of(cells.box) for cells in some))
    assert space.has_content(boxes) == any(written & cells_of(box) for box in boxes)


def test_few_of_many_cells_are_visited(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = list[Box]()
    overlap = Box.overlap

    def seen(one: Box, other: Box) -> Box | None:
        looked.append(one)
        return overlap(one, other)

    monkeypatch.setattr(Box, "overlap", seen)
    index = CellIndex(Cells(Box.at((0, 3 * place), (8, 3))) for place in range(10_000))
    assert len(list(index.near(Box.at((0, 15_000), (1, 4))))) == 2
    index.add([Cells(Box.at((8, 15_000), (1, 2)))])
    assert len(list(index.near(Box.at((0, 15_000), (9, 4))))) == 3
    assert len(looked) < 10


def test_only_equal_constants_agree() -> None:
    box = Box.at((0, 0), (1, 1))
    zero, nan, written = Cells(box, 0.0), Cells(box, float("nan")), Cells(box)
    assert zero.agrees(Cells(box, 0.0))
    assert nan.agrees(Cells(box, float("nan")))
    others = ((zero, nan), (nan, zero), (zero, Cells(box, -0.0)), (zero, written), (written, written))
    assert not any(one.agrees(other) for one, other in others)
