"""One UPMEM core, cycle by cycle: shares no code with pimflow.

A tasklet is a list of steps: ("run", instructions), ("move", cycles), ("barrier",), ("lock",), ("unlock",).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

Step = tuple[object, ...]


def core_cycles(tasklets: Sequence[Sequence[Step]], issue_cycles: int = 11) -> int:
    programs = [deque(steps) for steps in tasklets]
    runs_left = [0] * len(programs)
    ready_at = [0] * len(programs)
    waiting: list[str] = [""] * len(programs)
    engine: deque[tuple[int, int]] = deque()
    engine_until, engine_of = 0, -1
    holder = -1
    turn = 0
    clock = 0
    while True:
        if engine_of >= 0 and clock >= engine_until:
            waiting[engine_of] = ""
            ready_at[engine_of] = max(ready_at[engine_of], clock)
            engine_of = -1
        for index, program in enumerate(programs):
            while not waiting[index] and not runs_left[index] and program:
                kind, *rest = program[0]
                if kind == "run":
                    runs_left[index] = int(rest[0])  # type: ignore[call-overload]
                    program.popleft()
                elif ready_at[index] > clock:
                    break
                elif kind == "move":
                    engine.append((index, int(rest[0])))  # type: ignore[call-overload]
                    waiting[index] = "move"
                    program.popleft()
                elif kind == "barrier":
                    waiting[index] = "barrier"
                    program.popleft()
                elif kind == "lock":
                    if holder >= 0:
                        break
                    holder = index
                    program.popleft()
                else:
                    holder = -1
                    program.popleft()
        if engine_of < 0 and engine:
            engine_of, length = engine.popleft()
            engine_until = clock + length
        if all(waiting[index] == "barrier" for index, program in enumerate(programs) if program or waiting[index]):
            for index in range(len(programs)):
                if waiting[index] == "barrier":
                    waiting[index] = ""
        if not any(programs) and not any(runs_left) and not any(waiting) and not engine:
            return max(clock, *ready_at)
        for offset in range(len(programs)):
            index = (turn + offset) % len(programs)
            if runs_left[index] and not waiting[index] and ready_at[index] <= clock:
                runs_left[index] -= 1
                ready_at[index] = clock + issue_cycles
                turn = index + 1
                break
        clock += 1
