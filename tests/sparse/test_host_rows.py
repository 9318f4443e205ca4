"""Requests over a link: counted by alignment, against an enumeration thread by thread and against hardware counters."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.sparse import host_rows
from pimflow.sparse.host_rows import HostRows, Requests

MEASURED = Path(__file__).parent.parent / "data" / "measured" / "h200.json"


def enumerated(rows: HostRows, index: list[int]) -> Requests:
    """Distinct pairs of a warp and a line of which it needs a sector that its block has not read, and those sectors."""
    size, elements = rows.element_bytes, rows.row_bytes // rows.element_bytes
    rotate = rows.shifted and rows.row_bytes > rows.line_bytes and rows.row_bytes % rows.line_bytes > 0
    requests, sectors = set(), set()
    for thread in range(len(index) * elements):
        row, element = divmod(thread, elements)
        at = index[row] * rows.row_bytes
        byte = element * size
        if rotate:
            byte = (byte + (row * rows.row_bytes - at) % rows.line_bytes) % rows.row_bytes
        sector = (at + byte) // rows.sector_bytes
        if (thread // 256, sector) not in sectors:
            sectors.add((thread // 256, sector))
            requests.add((thread // 32, sector * rows.sector_bytes // rows.line_bytes))
    return Requests(len(requests), len(sectors))


@settings(max_examples=200)
@given(
    st.integers(1, 200),
    st.sampled_from([2, 4, 8]),
    st.sampled_from([(32, 32), (64, 32), (128, 32), (128, 64), (128, 128)]),
    st.booleans(),
    st.lists(st.integers(0, 40) | st.integers(0, 5000), max_size=12),
)
def test_counting_thread_by_thread_agrees(
    elements: int, size: int, sizes: tuple[int, int], shifted: bool, index: list[int]
) -> None:
    line, sector = sizes
    rows = HostRows(elements * size, size, line, shifted, sector)
    assert rows.requests(np.array(index, np.int64)) == enumerated(rows, index)


@pytest.mark.parametrize("row_bytes", [4, 100, 128, 400, 516, 2052, 2408, 4096, 8196])
def test_usual_widths_over_a_longer_index(row_bytes: int) -> None:
    index = np.random.default_rng(row_bytes).integers(0, 1 << 20, 60)
    for shifted in (False, True):
        rows = HostRows(row_bytes, shifted=shifted)
        assert rows.requests(index) == enumerated(rows, index.tolist())


@pytest.mark.parametrize("ids", ["random", "sorted", "repeated"])
def test_rows_are_counted_in_parts(monkeypatch: pytest.MonkeyPatch, ids: str) -> None:
    random = np.random.default_rng(1).integers(0, 1 << 20, 300)
    index = {"random": random, "sorted": np.arange(300), "repeated": random // (1 << 16)}[ids]
    for row_bytes in (36, 2052):
        rows = HostRows(row_bytes)
        whole = rows.requests(index)
        with monkeypatch.context() as patch:
            patch.setattr(host_rows, "SECTORS_AT_ONCE", 200)
            assert rows.requests(index) == whole == enumerated(rows, index.tolist())


@pytest.mark.parametrize(
    ("row_bytes", "plain", "rotated", "least"), [(400, 6.2, 4.7, 4), (516, 8.1, 5.8, 5), (2052, 29.4, 18.0, 17)]
)
def test_requests_a_row_of_random_rows(row_bytes: int, plain: float, rotated: float, least: int) -> None:
    index = np.random.default_rng(0).integers(0, 10**6, 40_000)
    for shifted, expected in ((False, plain), (True, rotated)):
        found = HostRows(row_bytes, shifted=shifted).requests(index)
        assert found.requests / len(index) == pytest.approx(expected, abs=0.06)
    assert rotated > least


@pytest.mark.parametrize("record", json.loads(MEASURED.read_text())["counted"], ids=lambda one: str(one["row_bytes"]))
def test_hardware_counters_agree(record: dict[str, Any]) -> None:
    """The counters of an H200 for the same rows; it merges some of the two requests that two warps make for a line."""
    row_bytes = record["row_bytes"]
    index = np.random.default_rng(7).integers(0, (1 << 28) // row_bytes, record["rows"])
    rows = HostRows(row_bytes, shifted=record["rotated"])
    found = rows.requests(index)
    assert record["wrong"] == 0  # the kernel read the right elements
    assert found.sectors == pytest.approx(record["sectors"], rel=0.0025)
    if rows.rotates or row_bytes % rows.line_bytes == 0:
        assert found.requests == pytest.approx(record["requests"], rel=0.03)
    else:
        assert 0.77 * found.requests < record["requests"] < 0.81 * found.requests
    header_bytes = 12  # of a completion; its framing is not counted
    carried = record["sectors"] * 32 + record["requests"] * header_bytes
    assert carried == pytest.approx(record["link_bytes"], rel=0.002)


def test_rows_of_whole_lines_and_rows_within_a_line_are_not_rotated() -> None:
    assert [width for width in (64, 100, 128, 132, 256, 400) if HostRows(width).rotates] == [132, 400]
    assert not HostRows(400, shifted=False).rotates
    assert HostRows(512).requests(np.arange(50)) == Requests(200, 800)


def test_neighbours_in_a_block_share_sectors() -> None:
    once, far = HostRows(16).requests(np.array([4])), HostRows(16).requests(np.array([4, 10**6]))
    assert once == HostRows(16).requests(np.array([4, 5, 4])) == Requests(1, 1)
    assert far == Requests(2, 2)
    rows = HostRows(400, shifted=False)
    for first, second in product(range(3), repeat=2):
        assert rows.requests(np.array([first, second])) == enumerated(rows, [first, second])


def test_addresses_beyond_32_bits() -> None:
    index = np.array([2**31 - 1, 2**31 - 2, 2**31 - 1], np.int64)
    assert HostRows(400).requests(index) == enumerated(HostRows(400), index.tolist())
    assert HostRows(400).requests(np.array([], np.int32)) == Requests()
    assert HostRows(0).requests(np.arange(3)) == Requests()  # a table without columns
