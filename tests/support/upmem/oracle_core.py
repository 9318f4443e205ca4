"""One UPMEM core, cycle by cycle: shares no code with pimflow.

A tasklet is a list of steps: ("run", instructions), ("move", cycles), ("barrier",), ("lock",), ("unlock",). Cycles in
which nothing can happen are skipped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf

Step = tuple[object, ...]


class Core:
    """A core's tasklets: their remaining steps, what they wait for, and when their next instruction may issue."""

    def __init__(self, tasklets: Sequence[Sequence[Step]], issue_cycles: int) -> None:
        self.programs = [deque(steps) for steps in tasklets]
        self.issue_cycles = issue_cycles
        self.runs_left = [0] * len(tasklets)
        self.ready_at = [0] * len(tasklets)
        self.waiting = [""] * len(tasklets)
        self.engine: deque[tuple[int, int]] = deque()
        self.engine_until, self.engine_of = inf, -1
        self.holder = -1
        self.turn = 0
        self.clock = 0
        self.step_at = 0.0

    def cycles(self) -> int:
        """The number of cycles until all have ended."""
        while True:
            self.end_transfer()
            for index, left in enumerate(self.runs_left):
                if not left and not self.waiting[index]:
                    self.take_steps(index)
            if self.engine_of < 0 and self.engine:
                self.engine_of, length = self.engine.popleft()
                self.engine_until = self.clock + length
            self.pass_barrier()
            self.step_at = self.next_step_at()
            if not any(self.programs) and not any(self.runs_left) and not any(self.waiting) and not self.engine:
                return max(self.clock, *self.ready_at)
            self.issue_until_something_ends()

    def end_transfer(self) -> None:
        if self.engine_of >= 0 and self.clock >= self.engine_until:
            self.waiting[self.engine_of] = ""
            self.ready_at[self.engine_of] = max(self.ready_at[self.engine_of], self.clock)
            self.engine_of, self.engine_until = -1, inf

    def take_steps(self, index: int) -> None:
        program = self.programs[index]
        while not self.waiting[index] and not self.runs_left[index] and program:
            kind, *rest = program[0]
            if kind == "run":
                self.runs_left[index] = int(rest[0])  # type: ignore[call-overload]
            elif self.ready_at[index] > self.clock or (kind == "lock" and self.holder >= 0):
                return
            elif kind == "move":
                self.engine.append((index, int(rest[0])))  # type: ignore[call-overload]
                self.waiting[index] = "move"
            elif kind == "barrier":
                self.waiting[index] = "barrier"
            else:
                self.holder = index if kind == "lock" else -1
            program.popleft()

    def pass_barrier(self) -> None:
        if "barrier" not in self.waiting:
            return
        at_work = [index for index, program in enumerate(self.programs) if program or self.waiting[index]]
        if all(self.waiting[index] == "barrier" for index in at_work):
            for index in at_work:
                self.waiting[index] = ""

    def next_step_at(self) -> float:
        """The earliest time at which a tasklet that neither runs nor waits reaches its next step."""
        states = zip(self.programs, self.runs_left, self.waiting, self.ready_at, strict=True)
        moments = [ready for program, left, waiting, ready in states if program and not left and not waiting]
        return min(moments, default=inf)

    def issue_until_something_ends(self) -> None:
        """Advance cycle by cycle, or to the next that issues, until steps of other kinds may follow."""
        left, ready_at, stop = self.runs_left, self.ready_at, min(self.step_at, self.engine_until)
        running = deque(index for index, runs in enumerate(left) if runs and not self.waiting[index])
        running.rotate(-sum(index < self.turn for index in running))
        while True:
            for place, index in enumerate(running):
                if ready_at[index] <= self.clock:
                    running.rotate(-place - 1)
                    break
            else:
                until = min([*(ready for ready in ready_at if ready > self.clock), self.engine_until])
                self.clock = int(until) if until < inf else self.clock + 1
                if until >= stop:
                    return
                continue
            left[index] -= 1
            ready_at[index] = self.clock + self.issue_cycles
            self.turn = index + 1
            self.clock += 1
            if not left[index] or self.clock >= stop:
                return


def core_cycles(tasklets: Sequence[Sequence[Step]], issue_cycles: int = 11) -> int:
    return Core(tasklets, issue_cycles).cycles()
