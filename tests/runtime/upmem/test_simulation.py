"""Cores simulated event by event: against the cycle-by-cycle simulation, and by hand."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pimflow.codegen.upmem.partition import Longs
from pimflow.codegen.upmem.strategy import Strategy, Sync, strategies_of
from pimflow.runtime.upmem import simulation
from pimflow.runtime.upmem.edge_parts import EdgeParts
from pimflow.runtime.upmem.kernel import CoreModel, RowForm
from pimflow.runtime.upmem.pricing import Aggregation, AggregationCost, Pricing
from pimflow.sparse import Graph
from pimflow.targets.schema.upmem import UpmemSpec
from support.upmem.machine import machine
from support.upmem.simulated import shared, simulated

CORE_STRATEGIES = [entry for entry in strategies_of(1) if entry.cores in ("row", "nnz-exact")]


def by_events(rowptr: Longs, strategy: Strategy, spec: UpmemSpec, columns: int) -> float:
    model = CoreModel(spec, RowForm(columns, "int32"))
    cores, tasklets = shared(rowptr, strategy, spec)
    return simulation.core_cycles(model, strategy, 0, cores, tasklets, rowptr)


def random_rows(draw: random.Random) -> list[int]:
    """Rows of similar lengths, or of all lengths; the latter include rows without non-zeros."""
    if draw.random() < 0.5:
        length, rows = draw.randint(1, 4), draw.choice([16, 32, 48])
        return [length + draw.choice([0, 0, 1]) for _ in range(rows)]
    return [min(int(draw.paretovariate(1.3) * 2), 60) * (draw.random() < 0.6) for _ in range(draw.choice([1, 5, 20]))]


@pytest.mark.parametrize("strategy", CORE_STRATEGIES, ids=str)
@pytest.mark.parametrize("columns", [2, 4, 16])
def test_short_lists_match_the_simulation(strategy: Strategy, columns: int) -> None:
    spec = machine()
    draw = random.Random(f"{strategy}{columns}")
    for _ in range(3):
        rowptr = np.concatenate([[0], np.cumsum(random_rows(draw))]).astype(np.int64)
        expected = simulated(rowptr, strategy, spec, columns)
        assert by_events(rowptr, strategy, spec, columns) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("sync", ["lock-free", "lock"])
def test_long_lists_are_sampled(sync: Sync, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here tasklets sometimes wait for the DMA engine: bounds alone are 5 % too low."""
    monkeypatch.setattr(simulation, "MAX_EVENTS", 1600)
    spec, strategy = machine(tasklets=7), Strategy(1, 1, "coo", "nnz-exact", "nnz-exact", sync)
    rowptr = np.cumsum([0, *[1, 2, 3, 60, 9, 30] * 28])
    cores, tasklets = shared(rowptr, strategy, spec)
    assert simulation.is_sampled(0, cores, tasklets)
    expected = simulated(rowptr, strategy, spec, columns=1)
    (bound,) = CoreModel(spec, RowForm(1, "int32")).cycles(strategy, cores, tasklets)
    assert bound < 0.95 * expected
    assert by_events(rowptr, strategy, spec, columns=1) == pytest.approx(expected, rel=0.03)


def test_one_non_zero_takes_its_steps_one_after_another() -> None:
    spec = machine()
    model = CoreModel(spec, RowForm(4, "int32"))
    instructions = spec.kernel.nonzero + 4 * spec.kernel.multiply_add.int32 + spec.kernel.row + 4 * 4
    moved = 3 * 0.2550986154 + 0.2116339547 + 0.1548164913  # three buffers of 32 bytes, a row of 16, and its result
    expected = spec.issue_cycles * instructions + moved * spec.clock_mhz
    found = by_events(np.array([0, 1]), Strategy(1, 1, "csr", "row", "row"), spec, 4)
    assert found == pytest.approx(expected)
    assert model.refill == pytest.approx(0.2550986154 * spec.clock_mhz)


def test_a_price_is_that_of_the_slowest_short_list() -> None:
    """Rows of 1 and of 5: the core with rows of 5 is simulated."""
    spec = machine(cores=2, ranks=1)
    strategy = Strategy(1, 1, "csr", "row", "row")
    rowptr = np.cumsum([0, *[1] * 32, *[5] * 32])
    graph = Graph.from_csr(rowptr, np.arange(rowptr[-1]) % 64, 64)
    cost = Pricing(spec, Aggregation(8, "int32"), EdgeParts(graph)).cost(strategy)
    assert isinstance(cost, AggregationCost)
    slowest = simulated(np.arange(0, 161, 5), strategy, spec, 8)
    assert cost.cycles == pytest.approx(slowest, rel=0.01)
