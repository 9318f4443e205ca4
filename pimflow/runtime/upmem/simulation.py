"""Simulates the time of a core event by event: all of its work if that is little, otherwise samples of it.

The closed form (`kernel.py`) consists of bounds. It may be off by a tenth where pipeline and engine are about equally
busy, and until tasklets have synchronised with each other, as queueing then depends on the order of events. Here every
run of instructions and every transfer is an event. Each of n tasklets issues 1 / n instructions per cycle, or one every
`issue_cycles`, whichever is less; transfers wait for each other in order of arrival.

For long lists, two samples are simulated, one twice as long as the other: pieces of every tasklet's list at equal
distances, as in sampled simulation of programs (Wunderlich et al., SMARTS, ISCA 2003). The additional work of the
longer sample is done by synchronised tasklets, like nearly all of the whole list, so it has the same pace. The closed
form, which accounts for mixes of rows and for how tasklets end, gives the amount of remaining work (a control variate).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import chain, cycle, islice
from math import inf, lcm
from typing import Literal

import numpy as np

from pimflow.codegen.upmem.partition import Cores, Longs, Tasklets
from pimflow.codegen.upmem.strategy import Strategy
from pimflow.records import NamedTuple
from pimflow.runtime.upmem.kernel import CoreModel

MAX_EVENTS = 3200
"""The maximum number of non-zeros and rows of a core to simulate."""

_STRETCH = 40  # events per sampled piece of a list


class Step(NamedTuple):
    """A step of a tasklet: instructions, cycles of a transfer, a barrier, or taking or releasing the lock."""

    kind: Literal["run", "transfer", "barrier", "lock", "unlock"]
    amount: float = 0.0


def is_sampled(core: int, cores: Cores, tasklets: Tasklets) -> bool:
    """Whether a core's lists are too long to be simulated as a whole."""
    return bool(cores.nonzeros[core] + tasklets.rows[core].sum() > MAX_EVENTS)


def core_cycles(
    model: CoreModel, strategy: Strategy, core: int, cores: Cores, tasklets: Tasklets, rowptr: Longs
) -> float:
    """Cycles of one core.

    Args:
        model: the costs of its steps.
        strategy: how tasklets share rows, and the format.
        core: index of the core in `cores` and `tasklets`.
        cores, tasklets: the division of the non-zeros.
        rowptr: row pointers of the edge part.
    """
    kernel = _Kernel(model, strategy)
    lists = _lists(strategy, core, cores, tasklets, rowptr)
    rows = int(cores.rows[core])
    if not is_sampled(core, cores, tasklets):
        return kernel.simulate(lists, rows)
    events = sum(int(own.sum()) + len(own) for own in lists)
    shares = MAX_EVENTS / events / 2, MAX_EVENTS / events
    samples = [[_sample(own, share, strategy.format == "coo") for own in lists] for share in shares]
    own = cores.only(np.array([core]))
    short, long = (kernel.simulate(sample, rows) for sample in samples)
    part, sampled, whole = (model.cycles(strategy, own, _tasklets(each))[0] for each in (*samples, lists))
    return long + float((whole - sampled) / (sampled - part)) * (long - short)


def _lists(strategy: Strategy, core: int, cores: Cores, tasklets: Tasklets, rowptr: Longs) -> list[Longs]:
    """For each tasklet, its number of non-zeros in each of its rows; in COO without empty rows."""
    if strategy.format == "csr":
        ends = cores.first_row[core] + np.cumsum(tasklets.rows[core])
        return [np.diff(rowptr[end - rows : end + 1]) for end, rows in zip(ends, tasklets.rows[core], strict=True)]
    found = []
    for first, end in zip(tasklets.first[core], tasklets.end[core], strict=True):
        begin, stop = np.searchsorted(rowptr, (first, end - 1), side="right")
        counts = np.diff(np.concatenate([[first], rowptr[begin:stop], [end]]))
        found.append(counts[counts > 0] if end > first else counts[:0])
    return found


def _sample(counts: Longs, share: float, apart: bool) -> Longs:
    """A share of a list: pieces of it at equal distances, and the same share of its first row if that is done apart.

    The sample ends with the end of a row. Non-zeros and ends of rows count equally.
    """
    first = np.maximum(np.round(share * counts[:1]), 1).astype(np.int64) if apart else counts[:0]
    rest = counts[len(first) :]
    if not len(rest):
        return first
    ends = np.cumsum(rest + 1) - 1
    stretches = max(1, round(share * (ends[-1] + 1) / _STRETCH))
    begin = np.linspace(0, ends[-1] + 1, stretches + 1).round().astype(np.int64)
    taken = np.round(share * begin).astype(np.int64)
    place = np.searchsorted(begin, ends, side="right") - 1
    within, length = ends - begin[place], np.diff(taken)[place]
    kept = within < length
    kept[-1] = True
    places = (taken[place] + np.minimum(within, length))[kept]
    return np.concatenate([first, np.diff(places, prepend=-1) - 1])


def _tasklets(lists: list[Longs]) -> Tasklets:
    """The tasklets of one core with these lists."""
    end = np.array([[own.sum() for own in lists]], np.int64)
    rows = np.array([[len(own) for own in lists]], np.int64)
    head = np.array([[own[0] if len(own) else 0 for own in lists]], np.int64)
    return Tasklets(np.zeros_like(end), end, rows, head)


class _Kernel:
    """Generates the steps of tasklets."""

    def __init__(self, model: CoreModel, strategy: Strategy) -> None:
        spec, form = model.spec, model.form
        self.strategy = strategy
        self.tasklets = spec.tasklets
        self.issue = spec.issue_cycles
        self.streams = form.streams
        buffer = spec.kernel.stream_buffer_bytes
        self.fill = Step("transfer", model.refill)
        self.clear = Step("run", spec.kernel.zero_row), Step("transfer", model.write_row)
        self.nonzero = Step("transfer", model.read_row), Step("run", model.instructions(strategy.format))
        self.finish = Step("run", spec.kernel.row + spec.kernel.row_element * form.columns)
        self.write = self.finish, Step("transfer", model.write_row)
        adding = Step("run", self.finish.amount + spec.kernel.add_element * form.columns)
        self.add = adding, Step("transfer", model.read_result), Step("transfer", model.write_row)
        self.barrier = Step("run", spec.kernel.barrier), Step("barrier")
        self.mutex = Step("run", spec.kernel.mutex)
        self.per_buffer = [max(1, buffer // size) for size in model.streamed_bytes(strategy.format)]
        self.rows_per_buffer = max(1, buffer // 4)

    def simulate(self, lists: list[Longs], core_rows: int) -> float:
        """Cycles until the last tasklet has ended; `lists` holds the rows of each, `core_rows` the core's number."""
        programs = [iter(self.steps(own.tolist(), index, core_rows)) for index, own in enumerate(lists)]
        return _Core(programs, self.issue).cycles()

    def steps(self, own: list[int], index: int, core_rows: int) -> list[Step]:
        """The steps of the tasklet with rows `own`, in a core with `core_rows` rows."""
        steps: list[Step] = []
        if self.strategy.format == "coo":
            if index == 0:  # all others wait meanwhile, so the rows can be combined
                steps += [Step(step.kind, step.amount * core_rows) for step in self.clear]
            steps += self.barrier
        if own:
            steps += [self.fill] * self.streams
        reading = self._reading(sum(own))
        for place, count in enumerate(own):
            if self.strategy.format == "csr" and place and place % self.rows_per_buffer == 0:
                steps.append(self.fill)
            steps += chain.from_iterable(islice(reading, count))
            steps += self._row(place, len(own), index)
        if not own:
            steps += self._synchronise(index)
        if self.strategy.sync == "lock-free":
            steps += self._fix_up(index)
        return steps

    def _reading(self, count: int) -> Iterator[tuple[Step, ...]]:
        """The steps of `count` non-zeros, one after another, with refills of buffers when due."""
        period = lcm(*self.per_buffer)
        fills = [sum(place % elements == 0 for elements in self.per_buffer) for place in range(period)]
        steps = [(self.fill,) * each + self.nonzero for each in fills]
        return chain([self.nonzero], islice(cycle(steps), 1, max(count, 1)))

    def _row(self, place: int, rows: int, index: int) -> tuple[Step, ...]:
        """The steps at the end of a row, the tasklet's first or a later one."""
        sync = self.strategy.sync
        if place:
            return self.add if sync == "lock" or (sync == "lock-free-2" and place == rows - 1) else self.write
        if sync == "none":
            return self.write
        first = (Step("lock"), self.mutex, *self.add, Step("unlock")) if sync == "lock" else (self.finish,)
        return first + self._synchronise(index)

    def _synchronise(self, index: int) -> tuple[Step, ...]:
        """The synchronisation after the first rows, which may be shared."""
        shared = self._fix_up(index) if self.strategy.sync == "lock-free-2" else ()
        return shared + (self.barrier if self.strategy.sync in ("lock", "lock-free-2") else ())

    def _fix_up(self, index: int) -> tuple[Step, ...]:
        """The steps in which one tasklet adds the shared rows of all."""
        return self.barrier + (self.add * self.tasklets if index == 0 else ())


class _Core:
    """The state of a core: a pipeline shared by tasklets, an engine for one transfer at a time, a lock, and queues."""

    def __init__(self, programs: list[Iterator[Step]], issue_cycles: int) -> None:
        self.programs = programs
        self.issue_cycles = issue_cycles
        self.clock = 0.0
        self.issued = 0.0  # instructions that a tasklet running since the start would have issued
        self.running: list[tuple[float, int]] = []  # sorted by the value of `issued` at which they end
        self.engine_until = inf
        self.transfers: deque[tuple[int, float]] = deque()  # the first one is in progress
        self.at_barrier: list[int] = []
        self.at_lock: deque[int] = deque()  # the first one holds it
        self.left = len(programs)

    def cycles(self) -> float:
        """Cycles until the last tasklet has ended."""
        for tasklet in range(self.left):
            self._resume(tasklet)
        running, transfers, programs = self.running, self.transfers, self.programs
        clock, issued, least = self.clock, self.issued, self.issue_cycles
        while running or transfers:
            pace = len(running)
            if pace < least:  # max() would take a sixth of the time of this loop
                pace = least
            until = self.engine_until
            run_until = clock + (running[0][0] - issued) * pace if running else inf
            if run_until <= until:
                clock, (issued, tasklet) = run_until, heappop(running)
            else:
                clock, issued = until, issued + (until - clock) / pace
                tasklet, _ = transfers.popleft()
                self.engine_until = clock + transfers[0][1] if transfers else inf
            self.clock, self.issued = clock, issued
            step = next(programs[tasklet], None)
            if step is not None and step[0] == "run":  # as in _take, without a call: most steps are of this kind
                heappush(running, (issued + step[1], tasklet))
            elif step is None or not self._take(tasklet, step):
                self._resume(tasklet)
        return clock

    def _resume(self, tasklet: int) -> None:
        """Starts a tasklet's next step, after all steps before it that take no time."""
        for step in self.programs[tasklet]:
            if self._take(tasklet, step):
                return
        self.left -= 1
        self._release_barrier()

    def _take(self, tasklet: int, step: Step) -> bool:
        """Starts a step; False if it takes no time."""
        kind, amount = step
        if kind == "run":
            heappush(self.running, (self.issued + amount, tasklet))
        elif kind == "transfer":
            self.transfers.append((tasklet, amount))
            if len(self.transfers) == 1:
                self.engine_until = self.clock + amount
        elif kind == "barrier":
            self.at_barrier.append(tasklet)
            self._release_barrier()
        elif kind == "lock":
            self.at_lock.append(tasklet)
            return len(self.at_lock) > 1
        else:
            self.at_lock.popleft()
            if self.at_lock:
                self._resume(self.at_lock[0])
            return False
        return True

    def _release_barrier(self) -> None:
        if len(self.at_barrier) < self.left or not self.at_barrier:
            return
        released, self.at_barrier = self.at_barrier, []
        for tasklet in released:
            self._resume(tasklet)
