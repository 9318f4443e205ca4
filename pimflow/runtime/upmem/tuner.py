"""Which strategy is best for a graph: all are predicted, the most promising ones are timed core by core."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from pimflow.codegen.upmem.strategy import Format, Strategy, strategies_of
from pimflow.ir import Refusal
from pimflow.runtime.upmem.edge_parts import EdgeParts
from pimflow.runtime.upmem.pricing import Aggregation, AggregationCost, Pricing, refused
from pimflow.sparse import Graph
from pimflow.targets.schema.upmem import UpmemSpec

Progress = Callable[[str], None]

LEVELS: dict[str, Callable[[Strategy], object]] = {
    "clusters": lambda strategy: (strategy.edge_parts, strategy.feature_parts),
    "cores": lambda strategy: strategy.cores,
    "tasklets": lambda strategy: (strategy.tasklets, strategy.sync),
    "format": lambda strategy: strategy.format,
}
"""What a strategy decides at every level of parallelism, and how edges are stored."""

TIMED = 4
"""Strategies that are timed exactly, at most: those of the least predicted time."""

_BALANCED, _PREDICTED, _EXACT = range(3)


@dataclass(frozen=True)
class Ranked:
    """A strategy with its price.

    Args:
        strategy: it.
        cost: what it takes.
        exact: whether every core was counted; else only those that are likely to be the slowest.
    """

    strategy: Strategy
    cost: AggregationCost
    exact: bool


@dataclass(frozen=True)
class Ranking:
    """Strategies for one aggregation over one graph, the best first.

    Args:
        rows: those that can run, by time; exact ones are what they say, the others predictions.
        refusals: why the others cannot, by strategy.
    """

    rows: tuple[Ranked, ...]
    refusals: dict[Strategy, Refusal]

    @property
    def best(self) -> Ranked:
        """The best one, timed exactly."""
        return self.rows[0]


class Tuner:
    """Ranks strategies of aggregations over one graph on one machine.

    Args:
        spec: the machine.
        graph: the edges.
        asked: the aggregation.
        formats: CSR and COO, if none is named.
    """

    def __init__(self, spec: UpmemSpec, graph: Graph, asked: Aggregation, formats: Sequence[Format] = ()) -> None:
        self.refusals: dict[Strategy, Refusal] = {}
        self.strategies: list[Strategy] = []
        for strategy in strategies_of(spec.ranks, *formats):
            refusal = refused(spec, asked, graph.num_src, strategy)
            if refusal is None:
                self.strategies.append(strategy)
            else:
                self.refusals[strategy] = refusal
        self.pricing = Pricing(spec, asked, EdgeParts(graph, {strategy.edge_parts for strategy in self.strategies}))

    def rank(self, progress: Progress = lambda line: None) -> Ranking:
        """All strategies: predicted, and the best few timed exactly.

        The search is best first. At once every strategy is priced as if all shares were equal; the one that then seems
        best is predicted from the heaviest edge part, and of it the cores that are likely to be the slowest; if it
        still does, it is timed exactly. The search ends with the first exact one that nothing else seems to beat, or
        with `TIMED` of them.
        """
        waiting: list[tuple[float, int, Strategy]] = []
        known: dict[Strategy, Ranked] = {}
        for strategy in self.strategies:
            self._look(known, waiting, strategy, _BALANCED)
        timed = 0
        while waiting:
            _, looks, strategy = heappop(waiting)
            if looks == _EXACT:
                break
            if looks == _PREDICTED:
                if timed == TIMED:
                    continue
                timed += 1
                progress(f"timing {strategy}")
            self._look(known, waiting, strategy, looks + 1)
        rows = sorted(known.values(), key=_by_time)
        best = min((row for row in rows if row.exact), key=_by_time, default=None)
        rows = [] if best is None else [best, *(row for row in rows if row is not best)]
        return Ranking(tuple(rows), self.refusals)

    def alternatives(self, ranking: Ranking) -> dict[str, Ranked]:
        """The best strategy that differs from the winner in one level of parallelism, by the level."""
        found = {level: self._alternative(ranking.rows, level) for level in LEVELS}
        return {level: row for level, row in found.items() if row is not None}

    def _look(
        self, known: dict[Strategy, Ranked], waiting: list[tuple[float, int, Strategy]], strategy: Strategy, looks: int
    ) -> None:
        """Prices a strategy, more closely than before."""
        price = (self.pricing.balanced, self.pricing.estimate, self.pricing.cost)[looks]
        rows: list[Ranked] = []
        known.pop(strategy, None)
        self._put(rows, strategy, price(strategy), exact=looks == _EXACT)
        for row in rows:
            known[strategy] = row
            heappush(waiting, (row.cost.time_us, looks, strategy))

    def exhaustive(self) -> Ranking:
        """All strategies, timed exactly."""
        rows: list[Ranked] = []
        for strategy in self.strategies:
            self._put(rows, strategy, self.pricing.cost(strategy), exact=True)
        rows.sort(key=_by_time)
        return Ranking(tuple(rows), self.refusals)

    def _alternative(self, rows: Sequence[Ranked], level: str) -> Ranked | None:
        """The best strategy that differs in a level, predicted from the graph and not by equal shares alone."""
        found: list[Ranked] = []
        for row in _differing(rows, level):
            if found and min(found, key=_by_time).cost.time_us <= row.cost.time_us:
                break
            if row.exact:
                found.append(row)
            else:
                self._put(found, row.strategy, self.pricing.estimate(row.strategy), exact=False)
            if len(found) == TIMED:
                break
        return min(found, key=_by_time, default=None)

    def _put(self, rows: list[Ranked], strategy: Strategy, cost: AggregationCost | Refusal, exact: bool) -> None:
        if isinstance(cost, Refusal):
            self.refusals[strategy] = cost
        else:
            rows.append(Ranked(strategy, cost, exact))


def _differing(rows: Sequence[Ranked], level: str) -> Iterator[Ranked]:
    """Those that differ from the first in a level of parallelism, the best first."""
    return (row for row in rows[1:] if LEVELS[level](row.strategy) != LEVELS[level](rows[0].strategy))


def _by_time(row: Ranked) -> tuple[float, Strategy]:
    return row.cost.time_us, row.strategy
