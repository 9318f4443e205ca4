"""The same problem as an integer program, solved by CBC or HiGHS: the oracle of the dynamic program.

One binary variable per interval; every position is covered by exactly one chosen interval; minimum total cost. It
shares the candidates and their costs with the dynamic program, but not the method of finding the best set.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, Literal, TypeVar

import pulp

from pimflow.errors import OptionError
from pimflow.search.chain import Interval

Payload = TypeVar("Payload")
SolverName = Literal["cbc", "highs"]


def available_solvers() -> tuple[SolverName, ...]:
    """The integer-program solvers available on this machine, the preferred one first."""
    found: list[SolverName] = []
    if _highs().available():
        found.append("highs")
    if _cbc().available():
        found.append("cbc")
    return tuple(found)


def solve_intervals(
    n: int, intervals: Iterable[Interval[Payload]], solver: SolverName | None = None
) -> tuple[float, tuple[Interval[Payload], ...]]:
    """The cheapest exact cover of n positions by an integer program: (cost, chosen intervals in order).

    Args:
        n: number of positions.
        intervals: the candidates.
        solver: "highs" or "cbc"; None selects HiGHS if it is installed, otherwise CBC.

    Raises:
        OptionError: the solver is not available here.
        ValueError: there is no exact cover.
    """
    candidates = list(intervals)
    if n == 0:
        return 0.0, ()
    problem = pulp.LpProblem("exact_cover", pulp.LpMinimize)
    new_variable = getattr(problem, "add_variable", pulp.LpVariable)  # PuLP before 3.3 has only the class
    take = [new_variable(f"x{index}", cat=pulp.LpBinary) for index in range(len(candidates))]
    covering: list[list[pulp.LpVariable]] = [[] for _ in range(n)]
    for interval, variable in zip(candidates, take, strict=True):
        if interval.stop > n:
            raise ValueError(f"interval [{interval.start}, {interval.stop}) ends beyond {n}")
        for position in range(interval.start, interval.stop):
            covering[position].append(variable)
    if not all(covering):
        raise ValueError(f"no interval covers position {covering.index([])}")
    problem += pulp.lpSum(interval.cost * variable for interval, variable in zip(candidates, take, strict=True))
    for variables in covering:
        problem += pulp.lpSum(variables) == 1
    status = status_name(problem.solve(_solver(solver)))
    if status != "Optimal":
        raise ValueError(f"the integer program is {status.lower()}: no exact cover")
    chosen = [interval for interval, variable in zip(candidates, take, strict=True) if variable.value() > 0.5]
    chosen.sort(key=lambda interval: interval.start)
    return sum(interval.cost for interval in chosen), tuple(chosen)


def status_name(outcome: Any) -> str:
    """The result of a solver, "Optimal" or another word. PuLP returns a number; from version 4 on, statistics."""
    return str(outcome.status.name if hasattr(outcome, "status") else pulp.LpStatus[outcome])


def _solver(name: SolverName | None) -> pulp.LpSolver:
    usable = available_solvers()
    wanted = name or (usable[0] if usable else "cbc")
    if wanted not in usable:
        raise OptionError(f"integer program solver {wanted!r} is not available", f"usable here: {', '.join(usable)}")
    return _highs() if wanted == "highs" else _cbc()


def _highs() -> pulp.LpSolver:
    return pulp.HiGHS(msg=False, gapRel=0)


def _cbc() -> pulp.LpSolver:
    command = getattr(pulp, "PULP_CBC_CMD", pulp.COIN_CMD)  # PuLP includes a CBC up to version 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return command(msg=False, gapRel=0)
