"""One core's list of non-zeros, in the form that the cycle-by-cycle simulation takes."""

from __future__ import annotations

import numpy as np

from pimflow.codegen.upmem.partition import Cores, Longs, Tasklets, cores_of, filled_before, tasklets_of
from pimflow.codegen.upmem.strategy import Strategy
from pimflow.targets.schema.upmem import UpmemSpec
from support.upmem.oracle_core import Step, core_cycles
from support.upmem.oracle_kernel import Costs, coo, csr


def shared(rowptr: Longs, strategy: Strategy, spec: UpmemSpec) -> tuple[Cores, Tasklets]:
    """The assignment of rows and edges if one core has all of them."""
    cores = cores_of(rowptr, 1, strategy.cores)
    return cores, tasklets_of(rowptr, filled_before(rowptr), cores, spec.tasklets, strategy, "int32")


def simulated(rowptr: Longs, strategy: Strategy, spec: UpmemSpec, columns: int, heads: int = 1) -> int:
    """The cycles of that core."""
    cores, tasklets = shared(rowptr, strategy, spec)
    programs = programs_of(rowptr, cores, tasklets, 0, strategy, spec, columns, heads)
    return core_cycles(programs, spec.issue_cycles)


def programs_of(
    rowptr: Longs,
    cores: Cores,
    tasklets: Tasklets,
    core: int,
    strategy: Strategy,
    spec: UpmemSpec,
    columns: int,
    heads: int = 1,
) -> list[list[Step]]:
    """The steps of a core's tasklets for rows of int32, for the rows that the partition assigns to them."""
    costs = _costs(strategy, spec, columns, heads)
    first, end = tasklets.first[core], tasklets.end[core]
    if strategy.format == "csr":
        next_row = int(cores.first_row[core])
        own = []
        for count in tasklets.rows[core]:
            own.append([int(size) for size in np.diff(rowptr)[next_row : next_row + count]])
            next_row += int(count)
        return csr(own, costs)
    rows = np.repeat(np.arange(len(rowptr) - 1), np.diff(rowptr))
    shares = [list(np.unique(rows[a:b], return_counts=True)[1]) for a, b in zip(first, end, strict=True)]
    return coo(shares, strategy.sync, int(cores.rows[core]), costs)


def _costs(strategy: Strategy, spec: UpmemSpec, columns: int, heads: int) -> Costs:
    kernel, row_bytes = spec.kernel, columns * 4
    further = kernel.coo_nonzero * (strategy.format == "coo") + kernel.head_nonzero * (heads - 1)

    def transfer(table: tuple[float, ...], size: int) -> float:
        return float(np.interp(size, spec.mram.transfer_bytes, table)) * spec.clock_mhz

    return Costs(
        nonzero=kernel.nonzero + kernel.multiply_add.int32 * columns + further,
        row=kernel.row + kernel.row_element * columns,
        add=kernel.add_element * columns,
        zero_row=kernel.zero_row,
        barrier=kernel.barrier,
        mutex=kernel.mutex,
        read_row=transfer(spec.mram.read_us, row_bytes),
        read_result=transfer(spec.mram.read_us, row_bytes),
        write_row=transfer(spec.mram.write_us, row_bytes),
        refill=transfer(spec.mram.read_us, 32),
        elements_per_refill=[8] * (1 + heads) + [8] * (strategy.format == "coo"),
        lists=2 + heads,
    )
