"""The closed form of a core against a simulation that goes cycle by cycle, and against what was published of it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pimflow.codegen.upmem.partition import Longs, cores_of, filled_before, tasklets_of
from pimflow.codegen.upmem.strategy import Strategy, strategies_of
from pimflow.runtime.upmem.kernel import CoreModel, RowForm
from pimflow.targets.schema.upmem import UpmemSpec
from support.upmem.machine import machine
from support.upmem.oracle_core import Step, core_cycles
from support.upmem.oracle_kernel import Costs, coo, csr

PER_MS = {4: 3033.81, 8: 1762.68, 16: 963.18, 32: 507.20}
"""Non-zeros that one core aggregates in a millisecond, by columns of int32: measured by PyGim's authors."""
CORE_STRATEGIES = [entry for entry in strategies_of(1) if entry.cores in ("row", "nnz-exact")]


def modelled(rowptr: Longs, strategy: Strategy, spec: UpmemSpec, columns: int) -> float:
    cores = cores_of(rowptr, 1, strategy.cores)
    tasklets = tasklets_of(rowptr, filled_before(rowptr), cores, spec.tasklets, strategy, "int32")
    (cycles,) = CoreModel(spec, RowForm(columns, "int32")).cycles(strategy, cores, tasklets)
    return float(cycles)


def simulated(rowptr: Longs, strategy: Strategy, spec: UpmemSpec, columns: int) -> int:
    """What the tasklets do, by the rows that the partition gives them."""
    cores = cores_of(rowptr, 1, strategy.cores)
    parts = tasklets_of(rowptr, filled_before(rowptr), cores, spec.tasklets, strategy, "int32")
    rows = np.repeat(np.arange(len(rowptr) - 1), np.diff(rowptr))
    kernel, row_bytes = spec.kernel, columns * 4

    def transfer(table: tuple[float, ...], size: int) -> float:
        return float(np.interp(size, spec.mram.transfer_bytes, table)) * spec.clock_mhz

    costs = Costs(
        nonzero=kernel.nonzero + kernel.multiply_add.int32 * columns + kernel.coo_nonzero * (strategy.format == "coo"),
        row=kernel.row + kernel.row_element * columns,
        add=kernel.add_element * columns,
        zero_row=kernel.zero_row,
        barrier=kernel.barrier,
        mutex=kernel.mutex,
        read_row=transfer(spec.mram.read_us, row_bytes),
        read_result=transfer(spec.mram.read_us, row_bytes),
        write_row=transfer(spec.mram.write_us, row_bytes),
        refill=transfer(spec.mram.read_us, 32),
        elements_per_refill=[8, 8] + [8] * (strategy.format == "coo"),
    )
    first, end = parts.first[0], parts.end[0]
    if strategy.format == "csr":
        next_row = 0
        own = []
        for count in parts.rows[0]:
            own.append([int(size) for size in np.diff(rowptr)[next_row : next_row + count]])
            next_row += int(count)
        return core_cycles(csr(own, costs), spec.issue_cycles)
    shares = [list(np.unique(rows[a:b], return_counts=True)[1]) for a, b in zip(first, end, strict=True)]
    programs: list[list[Step]] = coo(shares, strategy.sync, len(rowptr) - 1, costs)
    return core_cycles(programs, spec.issue_cycles)


@pytest.mark.parametrize("columns", PER_MS)
def test_a_long_list_takes_what_was_measured(columns: int) -> None:
    spec = machine()
    rows = np.arange(0, 64 * 4096 + 1, 4096, dtype=np.int64)
    per_nonzero = modelled(rows, Strategy(1, 1, "csr", "row", "row"), spec, columns) / rows[-1]
    assert per_nonzero == pytest.approx(spec.clock_mhz * 1e3 / PER_MS[columns], rel=0.01)


@pytest.mark.parametrize("strategy", CORE_STRATEGIES, ids=str)
@pytest.mark.parametrize("columns", [4, 8, 32])
def test_random_lists_take_what_a_simulation_takes(strategy: Strategy, columns: int) -> None:
    spec = machine()
    draw = random.Random(f"{strategy}{columns}")
    degrees = [min(int(draw.paretovariate(1.2) * 4), 400) * (draw.random() < 0.9) for _ in range(800 // columns + 40)]
    rowptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    assert modelled(rowptr, strategy, spec, columns) == pytest.approx(
        simulated(rowptr, strategy, spec, columns), rel=0.05
    )
