"""How long a core runs whose tasklets have few non-zeros each: followed event by event.

The closed form (`kernel.py`) is of tasklets that have come into step with each other. With few non-zeros each, most of
the time is that of coming into step: all fill their readers' buffers at once, and again after as many non-zeros as fit
into one. Here every run of instructions and every transfer is an event. Instructions of n tasklets go on at 1 / n a
cycle each, or every `issue_cycles`, whichever is less; transfers wait for each other in order of their arrival.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from math import inf
from typing import Literal, NamedTuple

import numpy as np

from pimflow.codegen.upmem.partition import Cores, Longs, Tasklets
from pimflow.codegen.upmem.strategy import Strategy
from pimflow.runtime.upmem.kernel import CoreModel

MOST_EVENTS = 80
"""Non-zeros and rows of a tasklet, in the mean of a core's, up to which the closed form may be off by 5 %."""


class Step(NamedTuple):
    """What a tasklet does next: instructions, cycles of a transfer, or to meet the others at a barrier or a lock."""

    kind: Literal["run", "move", "meet", "lock", "unlock"]
    amount: float = 0.0


def few(core: int, cores: Cores, tasklets: Tasklets) -> bool:
    """Whether a core's tasklets have few non-zeros and rows that they write."""
    return bool(cores.nonzeros[core] + tasklets.rows[core].sum() <= MOST_EVENTS * tasklets.nonzeros.shape[1])


def core_cycles(
    model: CoreModel, strategy: Strategy, core: int, cores: Cores, tasklets: Tasklets, rowptr: Longs
) -> float:
    """Cycles of one core.

    Args:
        model: what its steps take.
        strategy: how tasklets share rows, and the format.
        core: which of `cores` and `tasklets`.
        cores, tasklets: who has which non-zeros.
        rowptr: row pointers of the edge part.
    """
    kernel = _Kernel(model, strategy)
    lists = _lists(strategy, core, cores, tasklets, rowptr)
    return _finish([iter(kernel.steps(own, index, int(cores.rows[core]))) for index, own in enumerate(lists)], model)


def _lists(strategy: Strategy, core: int, cores: Cores, tasklets: Tasklets, rowptr: Longs) -> list[list[int]]:
    """Of every tasklet, how many non-zeros it has of each of its rows; in COO, of those that have any."""
    if strategy.format == "csr":
        ends = cores.first_row[core] + np.cumsum(tasklets.rows[core])
        return [
            np.diff(rowptr[end - rows : end + 1]).tolist() for end, rows in zip(ends, tasklets.rows[core], strict=True)
        ]
    found = []
    for first, end in zip(tasklets.first[core], tasklets.end[core], strict=True):
        begin, stop = np.searchsorted(rowptr, (first, end - 1), side="right")
        cuts = np.concatenate([[first], rowptr[begin:stop], [end]])
        found.append([count for count in np.diff(cuts).tolist() if count] if end > first else [])
    return found


class _Kernel:
    """The steps of a tasklet."""

    def __init__(self, model: CoreModel, strategy: Strategy) -> None:
        spec, form = model.spec, model.form
        self.strategy = strategy
        self.tasklets = spec.tasklets
        self.streams = form.streams
        buffer = spec.kernel.stream_buffer_bytes
        self.fill = Step("move", model.refill)
        self.clear = Step("run", spec.kernel.zero_row), Step("move", model.write_row)
        self.nonzero = Step("move", model.read_row), Step("run", model.instructions(strategy.format))
        self.finish = Step("run", spec.kernel.row + spec.kernel.row_element * form.columns)
        self.write = self.finish, Step("move", model.write_row)
        adding = Step("run", self.finish.amount + spec.kernel.add_element * form.columns)
        self.add = adding, Step("move", model.read_result), Step("move", model.write_row)
        self.barrier = Step("run", spec.kernel.barrier), Step("meet")
        self.mutex = Step("run", spec.kernel.mutex)
        self.per_buffer = [max(1, buffer // size) for size in model.streamed_bytes(strategy.format)]
        self.rows_per_buffer = max(1, buffer // 4)

    def steps(self, own: list[int], index: int, core_rows: int) -> Iterator[Step]:
        """Of the tasklet with such rows, in a core with so many."""
        if self.strategy.format == "coo":
            if index == 0:  # all others wait meanwhile: row by row takes as long
                yield from (Step(step.kind, step.amount * core_rows) for step in self.clear)
            yield from self.barrier
        if own:
            yield from [self.fill] * self.streams
        done = 0
        for place, count in enumerate(own):
            if self.strategy.format == "csr" and place and place % self.rows_per_buffer == 0:
                yield self.fill
            yield from self._nonzeros(done, count)
            done += count
            yield from self._row(place, len(own), index)
        if not own:
            yield from self._meeting(index)
        if self.strategy.sync == "lock-free":
            yield from self._fix_up(index)

    def _nonzeros(self, done: int, count: int) -> Iterator[Step]:
        for place in range(done, done + count):
            for elements in self.per_buffer if place else ():
                if place % elements == 0:
                    yield self.fill
            yield from self.nonzero

    def _row(self, place: int, rows: int, index: int) -> Iterator[Step]:
        """A row that is summed up, the tasklet's first or a later one."""
        sync = self.strategy.sync
        if place == 0 and sync == "lock":
            yield from (Step("lock"), self.mutex, *self.add, Step("unlock"))
        elif place == 0 and sync != "none":
            yield self.finish
        elif sync == "lock" or (sync == "lock-free-2" and place == rows - 1):
            yield from self.add
        else:
            yield from self.write
        if place == 0:
            yield from self._meeting(index)

    def _meeting(self, index: int) -> Iterator[Step]:
        """After the first rows, which may be shared."""
        if self.strategy.sync == "lock-free-2":
            yield from self._fix_up(index)
        if self.strategy.sync in ("lock", "lock-free-2"):
            yield from self.barrier

    def _fix_up(self, index: int) -> Iterator[Step]:
        """One tasklet adds the shared rows of all."""
        yield from self.barrier
        for _ in range(self.tasklets if index == 0 else 0):
            yield from self.add


def _finish(programs: list[Iterator[Step]], model: CoreModel) -> float:
    """Cycles until the last tasklet has ended."""
    core = _Core(programs, model.spec.issue_cycles)
    for tasklet in range(len(programs)):
        core.go_on(tasklet)
    while core.step():
        pass
    return core.clock


class _Core:
    """A pipeline that tasklets share, an engine that moves one transfer at a time, a lock, and who waits for what."""

    def __init__(self, programs: list[Iterator[Step]], issue_cycles: int) -> None:
        self.programs = programs
        self.issue_cycles = issue_cycles
        self.clock = 0.0
        self.issued = 0.0  # instructions of a tasklet that has run since the start
        self.running: list[tuple[float, int]] = []  # by what `issued` will be when they have run
        self.engine_until = inf
        self.transfers: deque[tuple[int, float]] = deque()  # the first one is at work
        self.meeting: list[int] = []
        self.at_lock: deque[int] = deque()  # the first one holds it
        self.left = len(programs)

    def step(self) -> bool:
        """To the next event; False if there is none."""
        pace = max(self.issue_cycles, len(self.running))
        run_until = self.clock + (self.running[0][0] - self.issued) * pace if self.running else inf
        until = min(run_until, self.engine_until)
        if until == inf:
            return False
        self.issued += (until - self.clock) / pace
        self.clock = until
        if until == run_until:
            self.issued, tasklet = heappop(self.running)
        else:
            tasklet, _ = self.transfers.popleft()
            self._move()
        self.go_on(tasklet)
        return True

    def go_on(self, tasklet: int) -> None:
        """A tasklet's next step, and all that takes no time before it."""
        for kind, amount in self.programs[tasklet]:
            if kind == "run":
                heappush(self.running, (self.issued + amount, tasklet))
            elif kind == "move":
                self.transfers.append((tasklet, amount))
                if len(self.transfers) == 1:
                    self._move()
            elif kind == "meet":
                self.meeting.append(tasklet)
                self._meet()
            elif kind == "lock":
                self.at_lock.append(tasklet)
                if len(self.at_lock) == 1:
                    continue
            else:
                self.at_lock.popleft()
                if self.at_lock:
                    self.go_on(self.at_lock[0])
                continue
            return
        self.left -= 1
        self._meet()

    def _move(self) -> None:
        self.engine_until = self.clock + self.transfers[0][1] if self.transfers else inf

    def _meet(self) -> None:
        if len(self.meeting) < self.left or not self.meeting:
            return
        met, self.meeting = self.meeting, []
        for tasklet in met:
            self.go_on(tasklet)
