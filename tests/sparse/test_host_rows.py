"""Requests over a link, counted by positions in lines and warps, against an enumeration thread by thread."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.sparse import host_rows
from pimflow.sparse.host_rows import HostRows


def enumerated(rows: HostRows, index: list[int]) -> int:
    """The number of distinct pairs of a thread's warp and the line that it reads."""
    found = set()
    size, elements = rows.element_bytes, rows.row_bytes // rows.element_bytes
    rotate = rows.shifted and rows.row_bytes > rows.line_bytes and rows.row_bytes % rows.line_bytes > 0
    for thread in range(len(index) * elements):
        row, element = divmod(thread, elements)
        at = index[row] * rows.row_bytes
        byte = element * size
        if rotate:
            byte = (byte + (row * rows.row_bytes - at) % rows.line_bytes) % rows.row_bytes
        found.add((thread // 32, (at + byte) // rows.line_bytes))
    return len(found)


@settings(max_examples=150)
@given(
    st.integers(1, 200),
    st.sampled_from([2, 4, 8]),
    st.sampled_from([32, 64, 128]),
    st.booleans(),
    st.lists(st.integers(0, 40), max_size=12),
)
def test_counting_thread_by_thread_agrees(elements: int, size: int, line: int, shifted: bool, index: list[int]) -> None:
    rows = HostRows(elements * size, size, line, shifted)
    assert rows.requests(np.array(index, np.int64)) == enumerated(rows, index)


@pytest.mark.parametrize("row_bytes", [4, 100, 128, 400, 516, 2052, 2408, 4096, 8196])
def test_usual_widths_over_a_longer_index(row_bytes: int) -> None:
    index = np.random.default_rng(row_bytes).integers(0, 1 << 20, 60)
    for shifted in (False, True):
        rows = HostRows(row_bytes, shifted=shifted)
        assert rows.requests(index) == enumerated(rows, index.tolist())


def test_alignments_are_counted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    index = np.random.default_rng(1).integers(0, 1 << 20, 300)
    rows = HostRows(2052)
    whole = rows.requests(index)
    monkeypatch.setattr(host_rows, "WARPS_AT_ONCE", 100)
    assert rows.requests(index) == whole == enumerated(rows, index.tolist())


@pytest.mark.parametrize(
    ("row_bytes", "plain", "rotated", "least"), [(400, 6.6, 5.1, 4), (516, 8.9, 6.4, 5), (2052, 32.5, 18.4, 17)]
)
def test_lines_a_row_of_random_rows(row_bytes: int, plain: float, rotated: float, least: int) -> None:
    index = np.random.default_rng(0).integers(0, 10**6, 40_000)
    for shifted, lines in ((False, plain), (True, rotated)):
        assert HostRows(row_bytes, shifted=shifted).requests(index) / len(index) == pytest.approx(lines, abs=0.06)
    assert rotated > least


def test_rows_of_whole_lines_and_rows_within_a_line_are_not_rotated() -> None:
    assert [width for width in (64, 100, 128, 132, 256, 400) if HostRows(width).rotates] == [132, 400]
    assert not HostRows(400, shifted=False).rotates
    assert HostRows(512).requests(np.arange(50)) == 200


def test_addresses_beyond_32_bits() -> None:
    index = np.array([2**31 - 1, 2**31 - 2, 2**31 - 1], np.int64)
    assert HostRows(400).requests(index) == enumerated(HostRows(400), index.tolist())
    assert HostRows(400).requests(np.array([], np.int32)) == 0
