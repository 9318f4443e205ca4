"""One core's list of non-zeros, as the cycle-by-cycle simulation takes it."""

from __future__ import annotations

import numpy as np

from pimflow.codegen.upmem.partition import Cores, Longs, Tasklets, cores_of, filled_before, tasklets_of
from pimflow.codegen.upmem.strategy import Strategy
from pimflow.targets.schema.upmem import UpmemSpec
from support.upmem.oracle_core import Step, core_cycles
from support.upmem.oracle_kernel import Costs, coo, csr


def shared(rowptr: Longs, strategy: Strategy, spec: UpmemSpec) -> tuple[Cores, Tasklets]:
    """Who has what, if one core has it all."""
    cores = cores_of(rowptr, 1, strategy.cores)
    return cores, tasklets_of(rowptr, filled_before(rowptr), cores, spec.tasklets, strategy, "int32")


def simulated(rowptr: Longs, strategy: Strategy, spec: UpmemSpec, columns: int) -> int:
    """What the tasklets do, by the rows that the partition gives them."""
    _, parts = shared(rowptr, strategy, spec)
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
