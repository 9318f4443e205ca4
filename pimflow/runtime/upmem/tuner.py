"""Finds the best strategy for a graph: all are estimated, and the most promising ones are timed core by core."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush

from pimflow.codegen.upmem.strategy import Format, Strategy, strategies_of
from pimflow.ir import Refusal
from pimflow.records import dataclass
from pimflow.runtime.upmem.edge_parts import EdgeParts
from pimflow.runtime.upmem.pricing import Aggregation, AggregationCost, Pricing, refusal_of
from pimflow.sparse import Graph
from pimflow.targets.schema.upmem import UpmemSpec

Progress = Callable[[str], None]

LEVELS: dict[str, Callable[[Strategy], object]] = {
    "clusters": lambda strategy: (strategy.edge_parts, strategy.feature_parts),
    "cores": lambda strategy: strategy.cores,
    "tasklets": lambda strategy: (strategy.tasklets, strategy.sync),
    "format": lambda strategy: strategy.format,
}
"""The decisions of a strategy at each level of parallelism, and the format of edges."""

TIMED = 4
"""The maximum number of strategies to time exactly: those with the lowest estimates."""

FEW_CORES = 64
"""With up to this many cores, all strategies are timed exactly: that takes no longer than a search."""

PASS_GAIN = 0.02
"""The relative gain that justifies counting all edges for a strategy, which takes longer than the search."""

_BALANCED, _GUESSED, _PREDICTED, _EXACT = range(4)


@dataclass(frozen=True)
class Ranked:
    """A strategy with its cost.

    Args:
        strategy: the strategy.
        cost: its cost.
        exact: whether all cores were considered, or only those likely to be the slowest.
    """

    strategy: Strategy
    cost: AggregationCost
    exact: bool


@dataclass(frozen=True)
class Ranking:
    """Strategies for one aggregation over one graph, the best first.

    Args:
        rows: the strategies that can run, by time; costs that are not exact are estimates.
        refusals: for each other strategy, why it cannot run.
    """

    rows: tuple[Ranked, ...]
    refusals: dict[Strategy, Refusal]

    @property
    def best(self) -> Ranked:
        """The best strategy, timed exactly."""
        return self.rows[0]


class _Search:
    """A best-first search; `known` holds the current cost of each strategy, `waiting` the queue."""

    def __init__(
        self, pricing: Pricing, refusals: dict[Strategy, Refusal], strategies: Sequence[Strategy], progress: Progress
    ) -> None:
        self.pricing = pricing
        self.refusals = refusals
        self.progress = progress
        self.known = {
            strategy: Ranked(strategy, cost, exact=False) for strategy, cost in pricing.balanced(strategies).items()
        }
        self.waiting: list[tuple[float, int, Strategy]] = []
        self.best: Ranked | None = None
        self.timed = 0

    def run(self, strategies: Iterable[Strategy], most: int) -> None:
        """Continues with more strategies until none seems to beat the best, or `most` are timed in total."""
        for strategy in strategies:
            heappush(self.waiting, (self.known[strategy].cost.time_us, _BALANCED, strategy))
        while self.waiting and not self._beaten(self.waiting[0][0]):
            _, stage, strategy = heappop(self.waiting)
            if stage == _BALANCED:
                counted = self.pricing.parts.counted(strategy.edge_parts)
                self._price(strategy, self.pricing.estimate(strategy), _PREDICTED if counted else _GUESSED)
            elif stage == _GUESSED and self._worth_a_pass(strategy):
                if not self.pricing.parts.counted(strategy.edge_parts):
                    self.pricing.parts.count(strategy.edge_parts)
                self._price(strategy, self.pricing.estimate(strategy), _PREDICTED)
            elif stage == _PREDICTED and self.timed < most:
                self.timed += 1
                self.progress(f"timing {strategy}")
                self._price(strategy, self.pricing.cost(strategy), _EXACT)

    def ranked(self) -> tuple[Ranked, ...]:
        """All strategies, the best exact one first; empty if none can run."""
        rows = sorted(self.known.values(), key=_by_time)
        return () if self.best is None else (self.best, *(row for row in rows if row is not self.best))

    def _price(self, strategy: Strategy, cost: AggregationCost | Refusal, stage: int) -> None:
        if isinstance(cost, Refusal):
            del self.known[strategy]
            self.refusals[strategy] = cost
            return
        row = self.known[strategy] = Ranked(strategy, cost, exact=stage == _EXACT)
        if not row.exact:
            heappush(self.waiting, (cost.time_us, stage, strategy))
        elif self.best is None or _by_time(row) < _by_time(self.best):
            self.best = row

    def _beaten(self, time_us: float) -> bool:
        return self.best is not None and self.best.cost.time_us <= time_us

    def _worth_a_pass(self, strategy: Strategy) -> bool:
        """Whether its edges are counted, or the possible gain justifies counting them."""
        if self.best is None or self.pricing.parts.counted(strategy.edge_parts):
            return True
        return self.known[strategy].cost.time_us < (1 - PASS_GAIN) * self.best.cost.time_us


class Tuner:
    """Ranks strategies of aggregations over one graph on one machine.

    Args:
        spec: the machine.
        graph: the edges.
        aggregation: what to aggregate, and in which type.
        formats: edge formats; CSR and COO if none is given.
    """

    def __init__(self, spec: UpmemSpec, graph: Graph, aggregation: Aggregation, formats: Sequence[Format] = ()) -> None:
        self.refusals: dict[Strategy, Refusal] = {}
        self.strategies: list[Strategy] = []
        for strategy in strategies_of(spec.ranks, *formats):
            refusal = refusal_of(spec, aggregation, graph.num_src, strategy)
            if refusal is None:
                self.strategies.append(strategy)
            else:
                self.refusals[strategy] = refusal
        self.pricing = Pricing(spec, aggregation, EdgeParts(graph))

    def rank(self, progress: Progress = lambda line: None) -> Ranking:
        """All strategies with estimates, the best few timed exactly.

        The search is best-first. First, each strategy is priced as if all shares were equal. The one that seems best is
        then estimated from the heaviest edge part and its cores likely to be the slowest; if it still seems best, it is
        timed exactly. The search ends with the first exact time that no other strategy seems to beat, or after `TIMED`
        exact times. Strategies with several edge parts, which require counting all edges, come last, and only if they
        promise `PASS_GAIN`. On machines with up to `FEW_CORES` cores, all are timed.
        """
        if self.pricing.spec.cores <= FEW_CORES:
            return self.exhaustive()
        search = _Search(self.pricing, self.refusals, self.strategies, progress)
        search.run([strategy for strategy in self.strategies if strategy.edge_parts == 1], TIMED - 1)
        search.run([strategy for strategy in self.strategies if strategy.edge_parts > 1], TIMED)
        return Ranking(search.ranked(), self.refusals)

    def alternatives(self, ranking: Ranking) -> dict[str, Ranked]:
        """For each level of parallelism, the best strategy that differs from the winner in that level."""
        found = {level: self._alternative(ranking.rows, level) for level in LEVELS}
        return {level: row for level, row in found.items() if row is not None}

    def exhaustive(self) -> Ranking:
        """All strategies, timed exactly."""
        rows: list[Ranked] = []
        parts = {strategy.edge_parts for strategy in self.strategies} - {1}
        if parts:
            self.pricing.parts.count(*parts)
        for strategy in self.strategies:
            self._put(rows, strategy, self.pricing.cost(strategy), exact=True)
        rows.sort(key=_by_time)
        return Ranking(tuple(rows), self.refusals)

    def _alternative(self, rows: Sequence[Ranked], level: str) -> Ranked | None:
        """The best strategy that differs in a level, estimated from the graph and not only with equal shares."""
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
    """The rows that differ from the first in a level of parallelism, best first."""
    return (row for row in rows[1:] if LEVELS[level](row.strategy) != LEVELS[level](rows[0].strategy))


def _by_time(row: Ranked) -> tuple[float, Strategy]:
    return row.cost.time_us, row.strategy
