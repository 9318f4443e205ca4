"""The closed form of a core against a cycle-by-cycle simulation, and against published figures."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pimflow.codegen.upmem.partition import Longs
from pimflow.codegen.upmem.strategy import Strategy, strategies_of
from pimflow.runtime.upmem.kernel import CoreModel, RowForm
from pimflow.targets.schema.upmem import ElementType, UpmemSpec
from support.upmem.machine import machine
from support.upmem.simulated import shared, simulated

PER_MS = {4: 3033.81, 8: 1762.68, 16: 963.18, 32: 507.20}
"""Non-zeros that one core aggregates per millisecond, by columns of int32: measured by PyGim's authors."""
CORE_STRATEGIES = [entry for entry in strategies_of(1) if entry.cores in ("row", "nnz-exact")]


def modelled(rowptr: Longs, strategy: Strategy, spec: UpmemSpec, columns: int, heads: int = 1) -> float:
    (cycles,) = CoreModel(spec, RowForm(columns, "int32", heads=heads)).cycles(
        strategy, *shared(rowptr, strategy, spec)
    )
    return float(cycles)


@pytest.mark.parametrize("columns", PER_MS)
def test_a_long_list_matches_the_measurements(columns: int) -> None:
    spec = machine()
    rows = np.arange(0, 64 * 4096 + 1, 4096, dtype=np.int64)
    per_nonzero = modelled(rows, Strategy(1, 1, "csr", "row", "row"), spec, columns) / rows[-1]
    assert per_nonzero == pytest.approx(spec.clock_mhz * 1e3 / PER_MS[columns], rel=0.01)


@pytest.mark.parametrize("strategy", CORE_STRATEGIES, ids=str)
@pytest.mark.parametrize("columns", [4, 32])
def test_random_lists_match_the_simulation(strategy: Strategy, columns: int) -> None:
    spec = machine()
    draw = random.Random(f"{strategy}{columns}")
    degrees = [min(int(draw.paretovariate(1.2) * 4), 400) * (draw.random() < 0.9) for _ in range(600 // columns + 20)]
    rowptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    assert modelled(rowptr, strategy, spec, columns) == pytest.approx(
        simulated(rowptr, strategy, spec, columns), rel=0.05
    )


@pytest.mark.parametrize("strategy", CORE_STRATEGIES[:5:2], ids=str)
def test_tasklets_that_do_not_fill_the_pipeline_do_not_wait_for_it(strategy: Strategy) -> None:
    """Eleven of them: n i instructions and issue_cycles i + d cycles are nearly equal."""
    spec, rowptr = machine(tasklets=11), np.arange(0, 11 * 3 * 12 + 1, 3, dtype=np.int64)
    assert modelled(rowptr, strategy, spec, 32) == pytest.approx(simulated(rowptr, strategy, spec, 32), rel=0.03)


@pytest.mark.parametrize("strategy", CORE_STRATEGIES[::3], ids=str)
@pytest.mark.parametrize(("columns", "heads"), [(8, 4)])
def test_a_value_a_head_is_read_and_charged(strategy: Strategy, columns: int, heads: int) -> None:
    spec = machine()
    draw = random.Random(f"{strategy}{columns}")
    degrees = [min(int(draw.paretovariate(1.2) * 8), 400) for _ in range(90)]
    rowptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    expected = simulated(rowptr, strategy, spec, columns, heads)
    assert modelled(rowptr, strategy, spec, columns, heads) == pytest.approx(expected, rel=0.05)
    assert expected > simulated(rowptr, strategy, spec, columns)


@pytest.mark.parametrize(("element", "columns", "read_bytes"), [("int32", 1, 8), ("int8", 3, 8), ("int16", 5, 16)])
def test_only_transfers_are_whole_words(element: ElementType, columns: int, read_bytes: int) -> None:
    """The padding of a row's last word is transferred, but not multiplied."""
    model = CoreModel(machine(), RowForm(columns, element))
    assert model.form.read_bytes == model.form.written_bytes == read_bytes
    assert model.instructions("csr") == pytest.approx(30.5 + 20.68 * columns)
    assert RowForm(columns, element, widened=True).written_bytes == 8 * columns


@pytest.mark.parametrize("strategy", CORE_STRATEGIES[:3], ids=str)
@pytest.mark.parametrize(("tasklets", "degrees"), [(1, [0, 3, 0, 1]), (4, [0, 1, 0, 0])])
def test_a_single_tasklet_overlaps_nothing(strategy: Strategy, tasklets: int, degrees: list[int]) -> None:
    spec = machine(tasklets=tasklets)
    rowptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    assert modelled(rowptr, strategy, spec, 16) == pytest.approx(simulated(rowptr, strategy, spec, 16), rel=0.05)
