"""The time of the cores: a closed form per core, for all cores at the same time.

A core issues one instruction per cycle, but at most one per tasklet every `issue_cycles`. One engine moves data between
bank and scratchpad, and the tasklet waits. n tasklets with i instructions and d cycles of transfers each take the
longest of n i (the pipeline is full, which requires more than `issue_cycles` tasklets), n d (the engine is busy) and
issue_cycles i + d (neither is), and somewhat more if two of these are close to each other, because of queueing. This is
modelled by the norm of order `_SHARPNESS` of the three. As tasklets end one after another, n decreases. These are the
asymptotic bounds of a closed queueing network (Denning and Buzen, The Operational Analysis of Queueing Network Models,
1978), phase by phase. The fractions `_RAMP` and `_LAST` of the beginning and the end of a phase overlap with nothing.
The three numbers are fitted to a cycle-by-cycle simulation of a core, which the tests compare this with. The closed
form finds the cores that are likely to be the slowest; event-by-event simulation (`simulation.py`) gives their times.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pimflow.codegen.upmem.partition import Cores, Tasklets
from pimflow.codegen.upmem.strategy import Format, Strategy
from pimflow.records import dataclass
from pimflow.targets.schema.upmem import ELEMENT_BYTES, ElementType, UpmemSpec

Floats = npt.NDArray[np.float64]

_INDEX_BYTES = 4  # bytes of a row or column index, or of a row pointer
_WORD = 8  # transfers are multiples of this many bytes
_SHARPNESS = 10
_RAMP = 0.75  # fraction of filling the readers' buffers, for the tasklets that fill the pipeline
_LAST = 0.5  # fraction of the last instructions, when no transfer of another tasklet remains


@dataclass(frozen=True)
class RowForm:
    """The form of rows of features on the cores.

    Args:
        columns: number of features in a row.
        element: their type.
        widened: whether integers are accumulated in int64.
        heads: number of heads that share the columns, each with its own value for every edge.
    """

    columns: int
    element: ElementType
    widened: bool = False
    heads: int = 1

    @property
    def streams(self) -> int:
        """The number of lists that a tasklet reads sequentially: columns, values of each head, rows or row pointers."""
        return 2 + self.heads

    @property
    def read_bytes(self) -> int:
        """Bytes of a row of features, padded to whole words."""
        return self._row_bytes(self.element)

    @property
    def written_bytes(self) -> int:
        """Bytes of a row of results, padded to whole words."""
        return self._row_bytes("int64" if self.widened else self.element)

    def _row_bytes(self, element: str) -> int:
        return -(-self.columns * ELEMENT_BYTES[element] // _WORD) * _WORD


@dataclass(frozen=True, eq=False)
class Work:
    """Instructions, and cycles of transfers between bank and scratchpad, as numbers or arrays [cores, tasklets]."""

    instructions: Any
    waiting: Any

    def __add__(self, other: Work) -> Work:
        return Work(self.instructions + other.instructions, self.waiting + other.waiting)


class CoreModel:
    """Cycles of the cores of one machine for rows of one form."""

    def __init__(self, spec: UpmemSpec, form: RowForm) -> None:
        self.spec = spec
        self.form = form
        self.read_row = self._transfer(spec.mram.read_us, form.read_bytes)
        self.read_result = self._transfer(spec.mram.read_us, form.written_bytes)
        self.write_row = self._transfer(spec.mram.write_us, form.written_bytes)
        buffer = spec.kernel.stream_buffer_bytes
        self.refill = self._transfer(spec.mram.read_us, buffer)
        self._stream_cycles_per_byte = self.refill / buffer

    def cycles(self, strategy: Strategy, cores: Cores, tasklets: Tasklets) -> Floats:
        """Cycles of each core, [cores]."""
        if strategy.format == "csr":
            rows = self._scaled(tasklets.rows, self._writing)
            pointers = Work(0.0, _INDEX_BYTES * self._stream_cycles_per_byte)
            work = self._scaled(tasklets.nonzeros, self._nonzero) + rows + self._scaled(tasklets.rows, pointers)
            return self._ramp_cycles(tasklets, self._nonzero) + drain(work, self.spec.issue_cycles)
        return self._clearing(cores) + self._ramp_cycles(tasklets, self._coo_nonzero) + self._coo(strategy, tasklets)

    @staticmethod
    def _scaled(count: npt.NDArray[np.int64], each: Work) -> Work:
        return Work(count * each.instructions, count * each.waiting)

    def _ramp_cycles(self, tasklets: Tasklets, nonzero: Work) -> Floats:
        """Cycles that overlap with no tasklet's work: filling the readers' buffers first, and the last instructions."""
        spec = self.spec
        working = np.minimum((tasklets.rows > 0).sum(axis=1), spec.issue_cycles)
        filling = self.form.streams * self._stream_cycles_per_byte * spec.kernel.stream_buffer_bytes
        others = (tasklets.nonzeros > 0).sum(axis=1) > 1
        last = _LAST * spec.issue_cycles * nonzero.instructions * others
        ramp: Floats = _RAMP * filling * np.maximum(working - 1, 0) + filling * (working > 0) + last
        return ramp

    @property
    def _nonzero(self) -> Work:
        """A non-zero in CSR: reading its features, and multiplying them into the accumulator."""
        return self._nonzero_of("csr")

    @property
    def _coo_nonzero(self) -> Work:
        """A non-zero in COO, where its row index is read too."""
        return self._nonzero_of("coo")

    def _nonzero_of(self, stored: Format) -> Work:
        streamed = sum(self.streamed_bytes(stored)) * self._stream_cycles_per_byte
        return Work(self.instructions(stored), self.read_row + streamed)

    def instructions(self, stored: Format) -> float:
        """Instructions per non-zero: loops, and multiply-adds of its features."""
        kernel, form = self.spec.kernel, self.form
        heads = kernel.head_nonzero * (form.heads - 1)
        each = kernel.nonzero + kernel.multiply_add.of(form.element, form.widened) * form.columns + heads
        return each + kernel.coo_nonzero if stored == "coo" else each

    def streamed_bytes(self, stored: Format) -> tuple[int, ...]:
        """Bytes of a non-zero in each list that is read sequentially: column, values, and in COO its row."""
        own = _INDEX_BYTES, *[ELEMENT_BYTES[self.form.element]] * self.form.heads
        return (*own, _INDEX_BYTES) if stored == "coo" else own

    @property
    def _finishing(self) -> Work:
        """Moving a row of results out of the accumulator and clearing it."""
        kernel = self.spec.kernel
        return Work(kernel.row + kernel.row_element * self.form.columns, 0.0)

    @property
    def _writing(self) -> Work:
        """Finishing a row and writing it to the bank."""
        return self._finishing + Work(0.0, self.write_row)

    @property
    def _adding(self) -> Work:
        """Finishing a row and adding it to the one in the bank."""
        return self._writing + Work(self.spec.kernel.add_element * self.form.columns, self.read_result)

    def _serial_cycles(self, work: Work) -> float:
        """Cycles of one tasklet's work while all others wait."""
        cycles: float = self.spec.issue_cycles * work.instructions + work.waiting
        return cycles

    def _clearing(self, cores: Cores) -> Floats:
        """One tasklet clears all rows of its core; the others wait."""
        each = Work(self.spec.kernel.zero_row, self.write_row)
        return cores.rows.astype(np.float64) * self._serial_cycles(each) + self._barriers(1)

    def _barriers(self, count: int) -> float:
        return count * self.spec.kernel.barrier * max(self.spec.tasklets, self.spec.issue_cycles)

    def _coo(self, strategy: Strategy, tasklets: Tasklets) -> Floats:
        """Cycles in COO after the rows are cleared, depending on how tasklets synchronise."""
        issue = self.spec.issue_cycles
        work = self._scaled(tasklets.nonzeros, self._coo_nonzero)
        if strategy.sync == "none":
            return drain(work + self._scaled(tasklets.rows, self._writing), issue)
        others = np.maximum(tasklets.rows - 1, 0)
        shared = self._scaled((tasklets.rows > 0).astype(np.int64), self._finishing)
        if strategy.sync == "lock-free":
            rows = self._scaled(others, self._writing)
            return drain(work + rows + shared, issue) + self._serial_additions() + self._barriers(1)
        head = self._scaled(tasklets.head, self._coo_nonzero)
        rest = self._scaled(tasklets.nonzeros - tasklets.head, self._coo_nonzero)
        if strategy.sync == "lock-free-2":
            last = np.minimum(others, 1)  # added, as its row may be the first one of the next tasklet
            rest = rest + self._scaled(others - last, self._writing) + self._scaled(last, self._adding)
            return drain(head + shared, issue) + self._serial_additions() + drain(rest, issue) + self._barriers(2)
        rest = rest + self._scaled(others, self._adding)
        return self._locked(head, tasklets) + drain(rest, issue) + self._barriers(1)

    def _serial_additions(self) -> float:
        """Cycles in which one tasklet adds the shared rows of all to those in the bank."""
        return self.spec.tasklets * self._serial_cycles(self._adding)

    def _locked(self, head: Work, tasklets: Tasklets) -> Floats:
        """Cycles for the first rows, which are added under the lock one after another, once the first is finished."""
        present = tasklets.nonzeros > 0
        inside = self._adding + Work(self.spec.kernel.mutex, 0.0)
        together = drain(head + self._scaled(present.astype(np.int64), inside), self.spec.issue_cycles)
        alone = self.spec.issue_cycles * head.instructions + head.waiting
        earliest = alone.min(axis=1, initial=np.inf, where=present)
        queue = present.sum(axis=1) * self._serial_cycles(inside)
        locked: Floats = np.maximum(together, np.where(present.any(axis=1), earliest, 0.0) + queue)
        return locked

    def _transfer(self, table_us: tuple[float, ...], size: int) -> float:
        """Cycles to move `size` bytes between bank and scratchpad, in transfers of the largest size."""
        longest = self.spec.mram.transfer_bytes[-1]
        whole, rest = divmod(size, longest)
        times = np.interp([longest, rest], self.spec.mram.transfer_bytes, table_us)
        return float(whole * times[0] + (times[1] if rest else 0.0)) * self.spec.clock_mhz


def drain(work: Work, issue_cycles: int) -> Floats:
    """Cycles until all tasklets of a core, which start at the same time, have ended, [cores].

    Args:
        work: the work of each tasklet, [cores, tasklets].
        issue_cycles: cycles from one instruction of a tasklet to its next.
    """
    alone = issue_cycles * work.instructions + work.waiting
    order = np.argsort(alone, axis=1)
    alone, instructions, waiting = (
        np.take_along_axis(array, order, axis=1) for array in (alone, work.instructions, work.waiting)
    )
    # Until the next tasklet ends, the active ones progress with their overall mix of instructions and transfers.
    step = np.diff(alone, axis=1, prepend=0.0)
    at_work = np.arange(alone.shape[1], 0, -1)
    left = _sums_to_end(alone)
    share = at_work * np.divide(step, left, out=np.zeros_like(step), where=left > 0)
    piped = np.where(at_work > issue_cycles, share, 0.0)  # fewer tasklets never wait for the pipeline
    bounds = np.stack([step, piped * _sums_to_end(instructions), share * _sums_to_end(waiting)])
    longest = bounds.max(axis=0)
    ratio = np.divide(bounds, longest, out=np.zeros_like(bounds), where=longest > 0)
    total: Floats = (longest * (ratio**_SHARPNESS).sum(axis=0) ** (1 / _SHARPNESS)).sum(axis=1)
    return total


def _sums_to_end(array: Floats) -> Floats:
    """The sum of each entry and those after it along a row."""
    sums: Floats = np.cumsum(array[:, ::-1], axis=1)[:, ::-1]
    return sums
