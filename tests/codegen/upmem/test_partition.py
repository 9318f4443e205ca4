"""Partitions against a row-by-row model of the published code that shares nothing with ours."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.codegen.upmem.partition import Longs, cores_of, filled_before, tasklets_of
from pimflow.codegen.upmem.strategy import Strategy, strategies_of

DEGREES = st.lists(st.one_of(st.just(0), st.integers(0, 5), st.integers(0, 60)), min_size=1, max_size=60)
PARTS = st.integers(1, 9)


def rowptr_of(degrees: list[int]) -> Longs:
    return np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)


def greedy(degrees: list[int], parts: int, together: int = 1) -> list[int]:
    """Row by row: a part is full after the row that reaches its share; the last part takes the rest."""
    share = sum(degrees) // parts
    cuts, held = [0], 0
    for row, degree in enumerate(degrees):
        held += degree
        if held >= share and (row + 1) % together == 0:
            cuts.append(row + 1)
            held = 0
    cuts = cuts[:parts]
    return cuts + [len(degrees)] * (parts + 1 - len(cuts))


@given(DEGREES, PARTS)
def test_cores_that_balance_rows_or_whole_rows_of_edges(degrees: list[int], parts: int) -> None:
    rowptr = rowptr_of(degrees)
    by_nnz = cores_of(rowptr, parts, "nnz")
    assert [*by_nnz.first_row, by_nnz.end_row[-1]] == greedy(degrees, parts)
    by_row = cores_of(rowptr, parts, "row")
    each, more = divmod(len(degrees), parts)
    assert list(by_row.rows) == [each + (part < more) for part in range(parts)]
    for cores in (by_nnz, by_row):
        assert list(cores.nonzeros) == [
            sum(degrees[first:end]) for first, end in zip(cores.first_row, cores.end_row, strict=True)
        ]


@given(DEGREES, PARTS)
def test_cores_that_balance_edges_exactly_share_rows(degrees: list[int], parts: int) -> None:
    cores = cores_of(rowptr_of(degrees), parts, "nnz-exact")
    edges = [row for row, degree in enumerate(degrees) for _ in range(degree)]
    assert max(cores.nonzeros) - min(cores.nonzeros) <= 1
    assert (cores.first[0], cores.end[-1]) == (0, len(edges))
    for part in range(parts):
        rows = edges[cores.first[part] : cores.end[part]]
        held = range(cores.first_row[part], cores.end_row[part])
        assert all(row in held for row in rows)
        if part:
            assert cores.first[part] == cores.end[part - 1]
            assert cores.first_row[part] <= cores.end_row[part - 1]
            assert cores.first_row[part] >= cores.end_row[part - 1] - 1
    assert cores.end_row[-1] == len(degrees)


@pytest.mark.parametrize("element", ["int8", "int16", "int32"])
@given(DEGREES, PARTS, PARTS)
@settings(max_examples=40)
def test_tasklets_of_rows(element: str, degrees: list[int], parts: int, threads: int) -> None:
    rowptr = rowptr_of(degrees)
    together = {"int8": 8, "int16": 4, "int32": 2}[element]
    for core_balance in ("row", "nnz"):
        cores = cores_of(rowptr, parts, core_balance)
        for balance in ("row", "nnz"):
            strategy = Strategy(1, 1, "csr", core_balance, balance)
            found = tasklets_of(rowptr, filled_before(rowptr), cores, threads, strategy, element)
            for core in range(parts):
                own = degrees[cores.first_row[core] : cores.end_row[core]]
                cuts = greedy(own, threads, together) if balance == "nnz" else by_groups(len(own), threads, together)
                assert list(found.rows[core]) == [end - first for first, end in pairwise(cuts)]
                assert list(found.nonzeros[core]) == [sum(own[first:end]) for first, end in pairwise(cuts)]


def by_groups(rows: int, parts: int, together: int) -> list[int]:
    left = rows % (together * parts)
    cuts = [0]
    for part in range(parts):
        size = together * (rows // (together * parts)) + (together if part < left else 0)
        cuts.append(min(cuts[-1] + size, rows))
    return cuts


@given(DEGREES, PARTS, PARTS)
@settings(max_examples=60)
def test_tasklets_of_edges(degrees: list[int], parts: int, threads: int) -> None:
    rowptr = rowptr_of(degrees)
    edges = [row for row, degree in enumerate(degrees) for _ in range(degree)]
    for strategy in (entry for entry in strategies_of(1) if entry.format == "coo"):
        cores = cores_of(rowptr, parts, strategy.cores)
        found = tasklets_of(rowptr, filled_before(rowptr), cores, threads, strategy, "int32")
        for core in range(parts):
            own = edges[cores.first[core] : cores.end[core]]
            counts = [own.count(row) for row in range(cores.first_row[core], cores.end_row[core])]
            cuts = whole_rows(counts, threads) if strategy.tasklets == "nnz" else exact(len(own), threads)
            assert list(found.first[core] - cores.first[core]) == cuts[:-1], strategy
            for thread, (first, end) in enumerate(pairwise(cuts)):
                mine = own[first:end]
                assert found.nonzeros[core, thread] == len(mine)
                assert found.rows[core, thread] == len(set(mine))
                assert found.head[core, thread] == (mine.count(mine[0]) if mine else 0)


def exact(count: int, parts: int) -> list[int]:
    each, more = divmod(count, parts)
    return [part * each + min(part, more) for part in range(parts + 1)]


def whole_rows(counts: list[int], parts: int) -> list[int]:
    """Row by row, by a core's edges of each: a part, except the last, is full after the row that reaches its share."""
    share = sum(counts) // parts
    cuts, held = [0], 0
    for count in counts[:-1]:
        held += count
        if held >= share:
            cuts.append(cuts[-1] + held)
            held = 0
    cuts = cuts[:parts]
    return cuts + [sum(counts)] * (parts + 1 - len(cuts))


def test_strategies_read_back_what_they_write() -> None:
    strategies = list(strategies_of(32))
    assert len(strategies) == len(set(strategies)) == 21 * 12
    assert [Strategy.parse(str(strategy)) for strategy in strategies] == strategies
