"""The steps of a core's tasklets in an aggregation, non-zero by non-zero: shares no code with pimflow.

Instructions and cycles of a step are whole numbers here; fractions carry over from step to step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from support.upmem.oracle_core import Step


@dataclass
class Costs:
    """Per event, in instructions or in cycles of a transfer."""

    nonzero: float
    row: float
    add: float
    zero_row: float
    barrier: float
    mutex: float
    read_row: float
    read_result: float
    write_row: float
    refill: float
    elements_per_refill: Sequence[int]
    lists: int = 3


class Program:
    """Collects one tasklet's steps."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.owed = {"run": 0.0, "move": 0.0}

    def add(self, kind: str, amount: float) -> None:
        whole = int(self.owed[kind] + amount)
        self.owed[kind] += amount - whole
        if whole:
            self.steps.append((kind, whole))

    def sync(self, kind: str) -> None:
        self.steps.append((kind,))


def nonzeros(program: Program, count: int, done: int, costs: Costs) -> None:
    for place in range(done, done + count):
        for elements in costs.elements_per_refill:
            if place and place % elements == 0:
                program.add("move", costs.refill)
        program.add("move", costs.read_row)
        program.add("run", costs.nonzero)


def write(program: Program, costs: Costs) -> None:
    program.add("run", costs.row)
    program.add("move", costs.write_row)


def add(program: Program, costs: Costs) -> None:
    program.add("run", costs.row + costs.add)
    program.add("move", costs.read_result)
    program.add("move", costs.write_row)


def csr(rows: Sequence[Sequence[int]], costs: Costs) -> list[list[Step]]:
    """The steps of every tasklet, from the number of non-zeros in each of its rows."""
    programs = []
    for own in rows:
        program = Program()
        if own:
            for _ in range(costs.lists):
                program.add("move", costs.refill)
        done = 0
        for place, count in enumerate(own):
            if place and place % (8) == 0:
                program.add("move", costs.refill)
            nonzeros(program, count, done, costs)
            done += count
            write(program, costs)
        programs.append(program.steps)
    return programs


def coo(rows: Sequence[Sequence[int]], sync: str, core_rows: int, costs: Costs) -> list[list[Step]]:
    """The steps of every tasklet, from the number of non-zeros in each non-empty row; the first may be shared."""
    programs = []
    for index, own in enumerate(rows):
        program = Program()
        if index == 0:
            for _ in range(core_rows):
                program.add("run", costs.zero_row)
                program.add("move", costs.write_row)
        program.add("run", costs.barrier)
        program.sync("barrier")
        if own:
            for _ in range(costs.lists):
                program.add("move", costs.refill)
        _body(program, own, index, len(rows), sync, costs)
        programs.append(program.steps)
    return programs


def _body(program: Program, own: Sequence[int], index: int, tasklets: int, sync: str, costs: Costs) -> None:
    done = 0
    for place, count in enumerate(own):
        nonzeros(program, count, done, costs)
        done += count
        if sync == "none" or (sync == "lock-free" and place):
            write(program, costs)
        elif place == 0 and sync == "lock":
            program.sync("lock")
            program.add("run", costs.mutex)
            add(program, costs)
            program.sync("unlock")
        elif place == 0:
            program.add("run", costs.row)
        elif sync == "lock" or place == len(own) - 1:
            add(program, costs)
        else:
            write(program, costs)
        if place == 0 and sync in ("lock", "lock-free-2"):
            _meet(program, index, tasklets, sync, costs)
    if not own and sync in ("lock", "lock-free-2"):
        _meet(program, index, tasklets, sync, costs)
    if sync == "lock-free":
        program.add("run", costs.barrier)
        program.sync("barrier")
        if index == 0:
            for _ in range(tasklets):
                add(program, costs)


def _meet(program: Program, index: int, tasklets: int, sync: str, costs: Costs) -> None:
    program.add("run", costs.barrier)
    program.sync("barrier")
    if sync == "lock-free-2":
        if index == 0:
            for _ in range(tasklets):
                add(program, costs)
        program.add("run", costs.barrier)
        program.sync("barrier")
