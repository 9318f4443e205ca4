"""Receptive fields compared with windows enumerated tap by tap."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.ir import (
    BatchNorm,
    Concat,
    Conv2d,
    Elementwise,
    Gemm,
    GlobalPool,
    MatMul,
    Op,
    Pad,
    Pool2d,
    Reshape,
    RowPart,
    Shape,
    Slice,
    window_out,
)
from pimflow.ir.analysis.rows import row_count, rows_needed
from pimflow.ir.refusal import Refusal


def taps(size: int, op: Conv2d | Pool2d, row: int) -> list[int | str]:
    """The inputs of output row `row`: input rows, "pad" for padding, "out" for positions beyond it (ceil mode)."""
    read: list[int | str] = []
    for tap in range(op.kernel[0]):
        at = row * op.strides[0] + tap * op.dilations[0] - op.pads[0]
        if 0 <= at < size:
            read.append(at)
        else:
            read.append("pad" if -op.pads[0] <= at < size + op.pads[2] else "out")
    return read


@st.composite
def windows(draw: st.DrawFn) -> tuple[Conv2d | Pool2d, int, int, int, int]:
    kernel, stride, dilation = draw(st.integers(1, 7)), draw(st.integers(1, 4)), draw(st.integers(1, 2))
    pool = draw(st.booleans())
    top, bottom = (draw(st.integers(0, kernel - 1 if pool else 4)) for _ in range(2))
    size = draw(st.integers(1, 30))
    ceil = pool and draw(st.booleans())
    if size + top + bottom < dilation * (kernel - 1) + 1:
        size = dilation * (kernel - 1) + 1
    shared = ((kernel, 1), (stride, 1), (top, 0, bottom, 0), (dilation, 1))
    op = Pool2d("average", *shared, ceil) if pool else Conv2d(*shared)
    rows = window_out(size, kernel, stride, top, bottom, dilation, ceil)
    start = draw(st.integers(0, rows - 1))
    return op, size, rows, start, draw(st.integers(start + 1, rows))


@settings(max_examples=600)
@given(windows())
def test_parts_read_the_rows_of_the_whole(case: tuple[Conv2d | Pool2d, int, int, int, int]) -> None:
    op, size, rows, start, stop = case
    expected = [taps(size, op, row) for row in range(start, stop)]
    part = op.part_rows([(1, 1, size, 1)], (1, 1, rows, 1), start, stop)
    inside = [tap for window in expected for tap in window if not isinstance(tap, str)]
    if isinstance(part, Refusal):
        lowest = start * op.strides[0] - op.pads[0]
        highest = (stop - 1) * op.strides[0] - op.pads[0] + op.dilations[0] * (op.kernel[0] - 1)
        assert lowest >= size or highest < 0, "only padding may be refused"
        assert not inside
        return
    assert isinstance(part.op, Conv2d | Pool2d)
    assert isinstance(part.spans[0], tuple)
    first, end = part.spans[0]
    assert all(first <= tap < end for tap in inside)
    count = window_out(
        end - first, op.kernel[0], op.strides[0], part.op.pads[0], part.op.pads[2], op.dilations[0],
        getattr(op, "ceil_mode", False),
    )  # fmt: skip
    assert count == stop - start
    actual = [taps(end - first, part.op, row) for row in range(stop - start)]
    assert [[tap if isinstance(tap, str) else tap + first for tap in window] for window in actual] == expected


def test_figures_worked_out_by_hand() -> None:
    op = Conv2d((3, 3), (2, 2), (1, 1, 1, 1))
    # rows 0..2 of 4 over 8 rows: taps -1 .. 5; row 3: taps 5 .. 7
    assert rows_needed(op, (1, 1, 8, 8), 0, 3) == (0, 6, 1, 0)
    assert rows_needed(op, (1, 1, 8, 8), 3, 4) == (5, 8, 0, 0)


def test_a_part_of_padding_alone_is_refused() -> None:
    refusal = rows_needed(Conv2d((1, 1), (1, 1), (2, 0, 0, 0)), (1, 1, 4, 4), 0, 2)
    assert refusal == Refusal("output rows 0 to 1 lie wholly in the padding")


@pytest.mark.parametrize(
    ("op", "shapes", "out", "spans"),
    [
        (Elementwise("Add"), [(1, 2, 8, 4), (1, 2, 8, 4)], (1, 2, 8, 4), ((2, 5), (2, 5))),
        (Elementwise("Mul"), [(1, 2, 8, 4), (1, 2, 1, 1)], (1, 2, 8, 4), ((2, 5), None)),
        (Elementwise("Mul"), [(4,), (1, 2, 8, 4)], (1, 2, 8, 4), (None, (2, 5))),
        (Elementwise("Add"), [(8, 1), (1, 2, 1, 4)], (1, 2, 8, 4), ((2, 5), None)),
        (Elementwise("PRelu"), [(1, 8, 8, 4), (8, 1, 1)], (1, 8, 8, 4), ((2, 5), None)),
        (Gemm(), [(8, 3), (3, 4), (8, 4)], (8, 4), ((2, 5), None, (2, 5))),
        (Gemm(), [(8, 3), (3, 4), (8, 1)], (8, 4), ((2, 5), None, (2, 5))),
        (Gemm(), [(8, 3), (3, 4), (1, 4)], (8, 4), ((2, 5), None, None)),
        (Gemm(trans_b=True), [(8, 3), (8, 3), (8,)], (8, 8), ((2, 5), None, None)),
        (Gemm(), [(8, 3), (3, 4), None], (8, 4), ((2, 5), None, None)),
        (MatMul(), [(2, 8, 3), (3, 4)], (2, 8, 4), ((2, 5), None)),
        (MatMul(), [(8, 3), (2, 3, 4)], (2, 8, 4), ((2, 5), None)),
        (Concat(1), [(1, 2, 8, 4), (1, 3, 8, 4)], (1, 5, 8, 4), ((2, 5), (2, 5))),
        (Slice(1, 0, 2), [(1, 4, 8, 4)], (1, 2, 8, 4), ((2, 5),)),
        (BatchNorm(), [(1, 8, 8, 4), *[(8,)] * 4], (1, 8, 8, 4), ((2, 5), None, None, None, None)),
        (Conv2d((1, 1), (1, 1)), [(1, 8, 8, 4), (3, 8, 1, 1), (3,)], (1, 3, 8, 4), ((2, 5), None, None)),
    ],
)
def test_rows_of_each_input(
    op: Op, shapes: list[Shape | None], out: Shape, spans: tuple[tuple[int, int] | None, ...]
) -> None:
    assert op.part_rows(shapes, out, 2, 5) == RowPart(op, spans)


def test_padding_moves_rows() -> None:
    op = Pad((0, 0, 2, 1), (0, 0, 3, 1))
    part = op.part_rows([(1, 2, 8, 4)], (1, 2, 13, 6), 1, 5)
    assert part == RowPart(Pad((0, 0, 1, 1), (0, 0, 0, 1)), ((0, 3),))
    part = op.part_rows([(1, 2, 8, 4)], (1, 2, 13, 6), 5, 13)
    assert part == RowPart(Pad((0, 0, 0, 1), (0, 0, 3, 1)), ((3, 8),))
    assert isinstance(op.part_rows([(1, 2, 8, 4)], (1, 2, 13, 6), 0, 2), Refusal)


@pytest.mark.parametrize(
    ("op", "shapes", "out"),
    [
        (GlobalPool("average"), [(1, 2, 8, 4)], (1, 2, 1, 1)),
        (Reshape((2, 32)), [(1, 2, 8, 4)], (2, 32)),
        (Concat(2), [(1, 2, 4, 4), (1, 2, 4, 4)], (1, 2, 8, 4)),
        (Slice(2, 0, 4), [(1, 2, 8, 4)], (1, 2, 4, 4)),
        (Gemm(trans_a=True), [(3, 8), (3, 4)], (8, 4)),
        (MatMul(), [(2, 8, 3), (3,)], (2, 8)),
        (MatMul(), [(3,), (2, 3, 4)], (2, 4)),
        (Elementwise("Relu"), [(8,)], (8,)),
        (Elementwise("Relu"), [None], None),
        (BatchNorm(), [(1, 8, 4), *[(8,)] * 4], (1, 8, 4)),
    ],
)
def test_refusals_say_why(op: Op, shapes: list[Shape | None], out: Shape | None) -> None:
    refusal = op.part_rows(shapes, out, 0, 1)
    assert isinstance(refusal, Refusal)
    assert refusal.reason


def test_row_count() -> None:
    assert [row_count(shape) for shape in [(1, 2, 8, 4), (8, 4), (4,), (), None]] == [8, 8, 0, 0, 0]
