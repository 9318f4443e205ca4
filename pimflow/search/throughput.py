"""Plans for throughput: inferences follow each other so closely that the busiest resource never idles.

With several inferences in flight, neither data dependences nor synchronisation points keep a resource idle: while one
inference waits, another uses it. So the interval between two inferences is the time that the busiest resource works on
one of them, and a modulo schedule that reaches it always exists (`runtime/steady_state.py`). The plan is the cover of
the execution order by candidates that minimises the largest load: an integer program with a variable per candidate (it
is in the plan or not), flow conservation at the cuts between nodes, and a row per resource and per memory of a unit.

Candidates are whole nodes and divided ones. Pipelines and concurrent branches gain next to nothing here: their parts
are the work of whole nodes, in more kernels. Of eleven networks, adding them shortened only the interval of GoogLeNet,
by 0.4 %, and the search took up to fifteen times as long. Of the row counts of a split, only those matter at which one
more row would cost the host another wave.

Few candidates are priced. The others are represented by lower bounds on their loads until they are chosen: the linear
program, which may take fractions of candidates, is solved repeatedly until everything it chooses is priced, and the
integer program then chooses among the priced candidates (if there are few candidates, it also asks for prices until
everything it chooses is priced).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pimflow.ir import Decision, Graph, SplitRows
from pimflow.records import dataclass
from pimflow.search.candidates import Candidate, Candidates
from pimflow.search.chain import Interval
from pimflow.search.columns import Column, Columns, Loads
from pimflow.search.policy import Policy
from pimflow.search.price_cache import key_of
from pimflow.search.pricing import Pricer

if TYPE_CHECKING:
    from scipy.optimize import LinearConstraint

Array = npt.NDArray[np.float64]

GAP = 1e-3
"""The optimality gap: by how much the chosen interval may exceed the minimum, as a share."""
_TOTAL = 1e-3
"""The weight of a microsecond of any resource's load relative to one of the interval: a tie-break for less work."""
_ROUNDING = 1e-9
_FEW_COLUMNS = 400
"""The maximum number of candidates for which the integer program itself asks for prices; with more, only the linear one
does."""
_NEAR_COLUMNS, _ROUNDS = 150, 3
"""How many candidates that may have a place in a better cover are tried, and how often prices turn out to be higher
before that is given up."""
_MAX_BRANCHES = 1_000
"""The node limit of the integer program; the best solution found by then is used."""


class LoadPricer(Pricer):
    """Prices decisions by the load they put on every resource, each content once."""

    def least_loads(self, decisions: tuple[Decision, ...]) -> Loads | None:
        """Lower bounds on the loads of the decisions; None if they cannot be carried out."""
        loads = self._bounds.least_busy_us(decisions)
        return None if any(map(math.isinf, loads.values())) else loads

    def loads(self, decisions: tuple[Decision, ...]) -> Loads | None:
        """The loads of the decisions; None if they cannot be carried out."""
        key = key_of(f"loads of\n{self.content_text(decisions)}")
        text = self._prices.texts.get(key)
        if text is not None:
            hex_loads: dict[str, str] | None = json.loads(text)
            return None if hex_loads is None else {resource: float.fromhex(us) for resource, us in hex_loads.items()}
        rewritten = self._rewritten(decisions)
        timeline = None if rewritten is None else self._timeline(rewritten)
        busy = None if timeline is None else {name: us for name, us in timeline.busy_us.items() if us > 0}
        hex_loads = None if busy is None else {name: us.hex() for name, us in busy.items()}
        self._prices.put_text(key, json.dumps(hex_loads, separators=(",", ":")))
        return busy


@dataclass(frozen=True)
class Balanced:
    """A cover that minimises the largest load.

    Args:
        interval_us: the largest load.
        bound_us: the lower bound of the linear program on the interval of any cover by the candidates.
        chosen: the decisions, stretch by stretch.
        entered: the number of candidates.
        complete: whether there was time for all of them.
    """

    interval_us: float
    bound_us: float
    chosen: tuple[tuple[Decision, ...], ...]
    entered: int
    complete: bool


def balance(graph: Graph, policy: Policy, pricer: LoadPricer, budget_s: float | None = None) -> Balanced | None:
    """The cover of a graph by a policy's candidates that minimises the largest load; None if there is none.

    The weights of what units run fit into their memories. If time runs out, the cover consists of what was priced by
    then.
    """
    deadline = math.inf if budget_s is None else time.perf_counter() + budget_s
    candidates = Candidates(graph, _without_overlap(policy), pricer)
    search = _Search(pricer, len(candidates.order), deadline)
    search.enter(candidates if policy.spaces else ())
    if not search.columns:
        return None
    tried: set[Decision] = set()
    while True:
        search.price_promising()
        found = search.cover()
        if found is None:
            return None
        fresh = [column for column in found[1] if not tried.issuperset(column.decisions)]
        if not fresh or search.out_of_time:
            return _balanced(*found, search)
        for column in fresh:
            tried.update(column.decisions)
            search.enter(candidates.variations(Interval(column.start, column.stop, 0.0, column.decisions)))


def _balanced(interval_us: float, taken: Sequence[Column], search: _Search) -> Balanced:
    chosen = tuple(column.decisions for column in sorted(taken, key=lambda column: column.start))
    return Balanced(interval_us, min(search.bound_us(), interval_us), chosen, search.entered, not search.out_of_time)


def _without_overlap(policy: Policy) -> Policy:
    """The policy without pipelines and concurrency, which gain nothing if inferences overlap."""
    spaces = (replace(space, runs="none", concurrent=False) for space in policy.spaces)
    return replace(policy, spaces=tuple(dict.fromkeys(spaces)))


def _without_late_steps(columns: Sequence[Column]) -> list[Column]:
    """The columns without splits of rows for which the host could make more rows in the same time.

    A unit takes no longer for fewer rows; the host's time rises in steps, as its kernels run in waves.
    """
    kept: list[Column] = []
    most: dict[tuple[object, ...], set[float]] = {}
    for column in sorted(columns, key=_host_rows, reverse=True):
        split = column.decisions[0]
        if isinstance(split, SplitRows):
            taken = most.setdefault((column.start, column.stop, replace(split, gpu_rows=0)), set())
            host_us = sum(us for device, us in column.loads.items() if device != split.device)
            if host_us in taken:
                continue
            taken.add(host_us)
        kept.append(column)
    return kept


def _host_rows(column: Column) -> int:
    split = column.decisions[0]
    return split.gpu_rows if isinstance(split, SplitRows) else 0


class _Search:
    """The columns so far, and the program over them."""

    def __init__(self, pricer: LoadPricer, size: int, deadline: float) -> None:
        self.columns = Columns()
        self.entered = 0
        self.out_of_time = False
        self._pricer = pricer
        self._size = size
        self._deadline = deadline
        self._is_limited = False
        self._known: set[tuple[Decision, ...]] = set()

    def enter(self, candidates: Iterable[Candidate]) -> None:
        """Add candidates; those that a plan needs (`certain`) are priced at once."""
        found: list[Column] = []
        for candidate in candidates:
            if time.perf_counter() > self._deadline and not candidate.certain:
                self.out_of_time = True
                break
            if candidate.decisions in self._known:
                continue
            self._known.add(candidate.decisions)
            self.entered += 1
            exactly = candidate.certain
            price = self._pricer.loads if exactly else self._pricer.least_loads
            loads = price(candidate.decisions)
            if loads is not None:
                found.append(Column(candidate.start, candidate.stop, candidate.decisions, loads, exactly))
        self.columns.add(_without_late_steps(found))

    def price_promising(self) -> None:
        """Price the columns that the linear program takes shares of, until all of them are priced."""
        while True:
            if time.perf_counter() > self._deadline:
                self.out_of_time = True
                return
            _, taken = self._relaxed(_TOTAL)
            unsure = [column for column in taken if not column.priced]
            if not unsure:
                return
            for column in unsure:
                self._price(column)

    def bound_us(self) -> float:
        """A lower bound on the largest load of any cover by the columns."""
        return self._relaxed(0.0)[0]

    def _relaxed(self, total: float) -> tuple[float, list[Column]]:
        """The linear program over all columns (see `_Program.relaxed`); memories limit what it may mix."""
        within = list(self.columns) if self._is_limited else self.columns.on_hulls()
        return self._program(within).relaxed(total)

    def cover(self) -> tuple[float, list[Column]] | None:
        """The cover by priced columns that minimises the largest load, with that load; None if none fits.

        If there are few columns, it is the best cover by any of them.
        """
        while True:
            within = self._few_or_priced()
            found = self._program(within).solved()
            if found is None:
                return None
            unsure = [column for column in found[1] if not column.priced]
            for column in unsure:
                self._price(column)
            if not unsure and self._fit(found[1]):
                return found if len(within) == len(self.columns) else self._improved(*found)
            if self._is_limited:
                self.price_promising()

    def _improved(self, interval_us: float, taken: list[Column]) -> tuple[float, list[Column]]:
        """A cover that may also use the columns that are not priced, if they have a place in a better one, as far as
        those are few; the given cover if there is none."""
        for _ in range(_ROUNDS):
            if time.perf_counter() > self._deadline:
                break
            near = self._program(list(self.columns)).near(self._program(taken).cost)[:_NEAR_COLUMNS]
            found = self._program(near).solved() if near else None
            if found is None or found[0] >= interval_us * (1 - _ROUNDING):
                break
            unsure = [column for column in found[1] if not column.priced]
            for column in unsure:
                self._price(column)
            if not unsure:
                return found if self._fit(found[1]) else (interval_us, taken)
        return interval_us, taken

    def _few_or_priced(self) -> list[Column]:
        if len(self.columns) <= _FEW_COLUMNS and time.perf_counter() <= self._deadline:
            return list(self.columns)
        return [column for column in self.columns if column.priced]

    def _program(self, columns: Sequence[Column]) -> _Program:
        return _Program(columns, self._size, self._kept(columns))

    def _fit(self, taken: Sequence[Column]) -> bool:
        """Whether the memories of units hold what the columns store there; if not, they become constraints."""
        if self._is_limited:
            return True
        kept = [self._pricer.kept(column.decisions) for column in taken]
        for device, capacity in self._pricer.costs.capacities.items():
            self._is_limited |= sum(amounts.get(device, 0) for amounts in kept) > capacity.amount
        return not self._is_limited

    def _kept(self, columns: Sequence[Column]) -> list[tuple[Array, int]]:
        """By memory, what every priced column stores there, and the capacity."""
        if not self._is_limited:
            return []
        kept = [self._pricer.kept(column.decisions) if column.priced else {} for column in columns]
        return [
            (np.array([amounts.get(device, 0) for amounts in kept], float), capacity.amount)
            for device, capacity in self._pricer.costs.capacities.items()
        ]

    def _price(self, column: Column) -> None:
        self.columns.price(column, self._pricer.loads(column.decisions))


@dataclass
class _Program:
    """The program: a variable per column, and the interval.

    Args:
        columns: the columns to choose from.
        size: positions to cover.
        kept: by memory, what every column stores there, and its capacity.
    """

    columns: Sequence[Column]
    size: int
    kept: Sequence[tuple[Array, int]]

    def relaxed(self, total: float) -> tuple[float, list[Column]]:
        """The interval of the linear program, which may take shares of columns, and the columns with a share.

        Args:
            total: the weight of a microsecond of any load relative to one of the interval.
        """
        found = self._solve(total, relaxed=True)
        if found is None:
            return math.inf, []
        interval_us, shares = found
        return interval_us, [column for column, share in zip(self.columns, shares, strict=True) if share > _ROUNDING]

    @property
    def cost(self) -> float:
        """What the program minimises, for a cover of all its columns."""
        loads = self._loads()
        return float(loads.sum(axis=0).max(initial=0.0) + _TOTAL * loads.sum())

    def near(self, cost: float) -> list[Column]:
        """The columns that a cover of less than this cost may use, those that raise it least first.

        No cover with a column costs less than the linear program and the column's reduced cost, by its dual.
        """
        from scipy.optimize import linprog
        from scipy.sparse import csr_array, vstack

        loads = self._loads()
        flow, *others = self._constraints(loads.T)
        prices = np.append(_TOTAL * loads.sum(axis=1), 1.0)
        above = vstack([csr_array(other.A) for other in others], format="csr")
        most = np.concatenate([np.broadcast_to(other.ub, other.A.shape[0]) for other in others])
        found = linprog(prices, A_ub=above, b_ub=most, A_eq=flow.A, b_eq=flow.ub, bounds=(0.0, None), method="highs")
        if found.x is None:
            return []
        reduced = prices - flow.A.T @ found.eqlin.marginals - above.T @ found.ineqlin.marginals
        order = np.argsort(reduced[:-1], kind="stable")
        return [self.columns[at] for at in order if found.fun + reduced[at] < cost]

    def solved(self) -> tuple[float, list[Column]] | None:
        """The largest load and the chosen columns; None if no cover fits into the memories."""
        found = self._solve(_TOTAL, relaxed=False)
        if found is None:
            return None
        _, shares = found
        taken = [column for column, share in zip(self.columns, shares, strict=True) if share > 0.5]
        loads = (sum(column.loads.get(name, 0.0) for column in taken) for name in self._resources)
        return max(loads, default=0.0), taken

    @property
    def _resources(self) -> list[str]:
        return sorted({name for column in self.columns for name in column.loads})

    def _solve(self, total: float, *, relaxed: bool) -> tuple[float, Array] | None:
        """The interval, and the share of every column; None if no cover fits into the memories."""
        from scipy.optimize import Bounds, milp  # importing it is slow

        count, loads = len(self.columns), self._loads()
        found = milp(
            np.append(total * loads.sum(axis=1), 1.0),
            integrality=np.append(np.full(count, not relaxed), 0),
            bounds=Bounds(0.0, np.append(np.ones(count), np.inf)),
            constraints=self._constraints(loads.T),
            options={"mip_rel_gap": GAP, "node_limit": _MAX_BRANCHES},
        )
        return None if found.x is None else (float(found.x[-1]), found.x[:-1])

    def _loads(self) -> Array:
        """The loads of resources, by column."""
        resources = self._resources
        return np.array([[column.loads.get(name, 0.0) for name in resources] for column in self.columns])

    def _constraints(self, loads: Array) -> list[LinearConstraint]:
        """Flow is conserved at every cut; no load exceeds the interval; no memory overflows."""
        from scipy.optimize import LinearConstraint
        from scipy.sparse import coo_array, csr_array

        count = len(self.columns)
        places = np.arange(count)
        starts, stops = (np.array([getattr(column, end) for column in self.columns]) for end in ("start", "stop"))
        signs = np.concatenate([np.ones(count), -np.ones(count)])
        cuts = coo_array(
            (signs, (np.concatenate([starts, stops]), np.tile(places, 2))), shape=(self.size + 1, count + 1)
        )
        flow = np.zeros(self.size + 1)
        flow[0], flow[-1] = 1.0, -1.0
        above = csr_array(np.hstack([loads, -np.ones((len(loads), 1))]))
        held = [LinearConstraint([np.append(amounts, 0.0)], -np.inf, most) for amounts, most in self.kept]
        return [LinearConstraint(cuts.tocsr(), flow, flow), LinearConstraint(above, -np.inf, 0.0), *held]
