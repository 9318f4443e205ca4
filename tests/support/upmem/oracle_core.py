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
            for index in range(len(self.programs)):
                self.take_steps(index)
            if self.engine_of < 0 and self.engine:
                self.engine_of, length = self.engine.popleft()
                self.engine_until = self.clock + length
            self.pass_barrier()
            self.step_at = self.next_step_at()
            if not any(self.programs) and not any(self.runs_left) and not any(self.waiting) and not self.engine:
                return max(self.clock, *self.ready_at)
            while not self.issue_until_something_ends():
                pass

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
        at_work = [index for index, program in enumerate(self.programs) if program or self.waiting[index]]
        if all(self.waiting[index] == "barrier" for index in at_work):
            for index in at_work:
                self.waiting[index] = ""

    def next_step_at(self) -> float:
        """The earliest time at which a tasklet that neither runs nor waits reaches its next step."""
        states = zip(self.programs, self.runs_left, self.waiting, self.ready_at, strict=True)
        moments = [ready for program, left, waiting, ready in states if program and not left and not waiting]
        return min(moments, default=inf)

    def issue_until_something_ends(self) -> bool:
        """Advance one cycle, or to the next event if nothing issues; return whether steps of other kinds may follow."""
        tasklets = len(self.programs)
        for offset in range(tasklets):
            index = (self.turn + offset) % tasklets
            if self.runs_left[index] and not self.waiting[index] and self.ready_at[index] <= self.clock:
                self.runs_left[index] -= 1
                self.ready_at[index] = self.clock + self.issue_cycles
                self.turn = index + 1
                self.clock += 1
                return not self.runs_left[index] or self.clock >= min(self.step_at, self.engine_until)
        until = min([*(ready for ready in self.ready_at if ready > self.clock), self.engine_until])
        self.clock = int(until) if until < inf else self.clock + 1
        return True


def core_cycles(tasklets: Sequence[Sequence[Step]], issue_cycles: int = 11) -> int:
    return Core(tasklets, issue_cycles).cycles()
