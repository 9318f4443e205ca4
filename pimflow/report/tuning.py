"""The ranking of strategies for a graph, for readers and programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, field
from typing import Any

from pimflow.codegen.upmem.strategy import Strategy
from pimflow.errors import counted
from pimflow.ir import Refusal
from pimflow.records import dataclass
from pimflow.report.tables import number, render_table
from pimflow.runtime.upmem.baselines import Published
from pimflow.runtime.upmem.pricing import Aggregation, AggregationCost
from pimflow.runtime.upmem.tuner import Ranked, Ranking
from pimflow.sparse import Graph

_STAGES = ("load", "kernel", "retrieve", "merge")
_SHOWN = 12


@dataclass(frozen=True)
class TuningRow:
    """One way to run an aggregation: a strategy, or the name of a device that runs it alone.

    Args:
        strategy: in the form that `Strategy.parse` reads, or a device's name.
        load_us, kernel_us, retrieve_us, merge_us, total_us: microseconds by stage; for a device alone, all is kernel.
        exact: whether the cost is based on the counts of every core; otherwise it is a prediction.
    """

    strategy: str
    load_us: float
    kernel_us: float
    retrieve_us: float
    merge_us: float
    total_us: float
    exact: bool


@dataclass(frozen=True)
class Tuning:
    """The ranking of strategies for one aggregation.

    Args:
        target: the machine's name.
        graph: the graph of the aggregation.
        asked: features, element type and accumulator.
        ranking: strategies, best first.
        alternatives: the best strategy that differs from the winner in one level of parallelism, by level.
        alone: microseconds on other devices of the machine, without PIM, by device.
        baselines: the cost of other implementations on the same modules, by name, or why they cannot run.
        published: the choice of PyGim's published tuner, and its cost.
        overflow: why sums may exceed their accumulator; None if they cannot.
        backward: the ranking for the gradients, which flow along the reversed edges, if requested.
    """

    target: str
    graph: Graph
    asked: Aggregation
    ranking: Ranking
    alternatives: Mapping[str, Ranked] = field(default_factory=dict)
    alone: Mapping[str, float] = field(default_factory=dict)
    baselines: Mapping[str, AggregationCost | Refusal] = field(default_factory=dict)
    published: tuple[Published, AggregationCost] | Refusal | None = None
    overflow: Refusal | None = None
    backward: Ranking | None = None

    def __repr__(self) -> str:
        return f"Tuning({self.graph!r}, {self.asked.features} features, {self.target}: {self.best})"

    @property
    def rows(self) -> tuple[TuningRow, ...]:
        """All ways to run it, the best first; the first one is exact."""
        return rows_of(self.ranking, self.alone)

    @property
    def best(self) -> str:
        """The best strategy, or the device that is faster without PIM."""
        return self.rows[0].strategy

    @property
    def on_pim(self) -> bool:
        """Whether the best way is a strategy rather than a device alone."""
        return self.best not in self.alone

    @property
    def strategy(self) -> Strategy | None:
        """The best strategy on PIM, whether or not another device is faster; None if none can run."""
        return self.ranking.rows[0].strategy if self.ranking.rows else None

    @property
    def why(self) -> str:
        """Why the winner is best: the cost of changing one level of parallelism, and the alternatives."""
        return "; ".join(self._reasons())

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        document: dict[str, Any] = {
            "target": self.target,
            "graph": {
                "sha256": self.graph.sha256,
                "sources": self.graph.num_src,
                "destinations": self.graph.num_dst,
                "edges": self.graph.num_edges,
                "weighted": self.graph.weight is not None,
            },
            **asdict(self.asked),
            "best": self.best,
            "why": self.why,
            "overflow": self.overflow.reason if self.overflow else None,
            "ranking": [asdict(row) for row in self.rows],
            "refused": {str(strategy): refusal.reason for strategy, refusal in self.ranking.refusals.items()},
            "baselines": {name: _baseline(cost) for name, cost in self.baselines.items()},
            "published_tuner": self._published(),
        }
        if self.backward is not None:
            backward = rows_of(self.backward, {})
            document["backward"] = {"best": backward[0].strategy, "ranking": [asdict(row) for row in backward]}
        return document

    def text(self) -> str:
        """A table of the best ways, and why the first one is best."""
        vertices, edges = counted(self.graph.num_dst, "vertex", "vertices"), counted(self.graph.num_edges, "edge")
        head = f"{vertices}, {edges}, {counted(self.asked.features, 'feature')}"
        if self.asked.computed:
            head += f" of {counted(self.asked.heads, 'head')} with weights computed at run time"
        lines = [f"{head}, {self.asked.element}{' in int64' if self.asked.widened else ''}, on {self.target}", ""]
        lines += [_table(self.rows), "", f"best: {self.best}: {self.why}"]
        lines += [f"{name}: {self._beside(cost)}" for name, cost in self.baselines.items()]
        if isinstance(self.published, tuple):
            choice, cost = self.published
            lines.append(f"published tuner: {choice.strategy}, {self._beside(cost)}")
        if self.overflow is not None:
            lines.append(f"note: {self.overflow.reason}; {self.overflow.remedy}")
        if self.backward is not None:
            lines += ["", "gradients (edges reversed)", _table(rows_of(self.backward, {}))]
        return "\n".join(lines)

    def _beside(self, cost: AggregationCost | Refusal) -> str:
        if isinstance(cost, Refusal):
            return cost.reason
        return f"{number(cost.time_us / 1e3, 2)} ms, {cost.time_us / self.rows[0].total_us:.2f} times the best"

    def _published(self) -> dict[str, Any] | None:
        if not isinstance(self.published, tuple):
            return None
        choice, cost = self.published
        return {
            "strategy": str(choice.strategy),
            "predicted_us": choice.predicted_us,
            "total_us": cost.time_us,
        }

    def _reasons(self) -> Iterator[str]:
        if not self.ranking.rows:
            yield "no strategy can run: " + next((refusal.reason for refusal in self.ranking.refusals.values()), "none")
            return
        best = self.ranking.best
        for device, time_us in self.alone.items():
            if time_us < best.cost.time_us:
                yield f"{device} alone takes {time_us / best.cost.time_us:.2f} of the time of {best.strategy}"
            else:
                yield f"{time_us / best.cost.time_us:.2f} times as fast as {device} alone"
        stage = max(_STAGES, key=lambda name: best.cost.time_parts_us[name])
        yield f"{stage} is {100 * best.cost.time_parts_us[stage] / best.cost.time_us:.0f} % of it"
        for level, other in self.alternatives.items():
            yield f"other {level}: {other.strategy} +{_more(other, best)}"


def rows_of(ranking: Ranking, alone: Mapping[str, float]) -> tuple[TuningRow, ...]:
    """Strategies and devices by time; no prediction comes before the best exact one."""
    rows = [_row(ranked) for ranked in ranking.rows]
    rows += [TuningRow(device, 0.0, time_us, 0.0, 0.0, time_us, True) for device, time_us in alone.items()]
    rows.sort(key=lambda row: row.total_us)
    best = min((row for row in rows if row.exact), key=lambda row: row.total_us, default=None)
    return () if best is None else (best, *(row for row in rows if row is not best))


def _row(ranked: Ranked) -> TuningRow:
    cost = ranked.cost
    return TuningRow(
        str(ranked.strategy),
        cost.load_us,
        cost.kernel_us,
        cost.retrieve_us,
        cost.merge_us,
        cost.time_us,
        ranked.exact,
    )


def _table(rows: tuple[TuningRow, ...]) -> str:
    header = ("strategy", "load", "kernel", "retrieve", "merge", "total ms", "")
    cells = [
        (
            row.strategy,
            *(number(getattr(row, f"{stage}_us") / 1e3, 2) for stage in _STAGES),
            number(row.total_us / 1e3, 2),
            "exact" if row.exact else "predicted",
        )
        for row in rows[:_SHOWN]
    ]
    table = render_table(header, cells, right=(1, 2, 3, 4, 5))
    more = len(rows) - _SHOWN
    return f"{table}\n… and {more} more" if more > 0 else table


def _more(other: Ranked, best: Ranked) -> str:
    """The additional time in percent, and the stage with most of it."""
    more = {name: other.cost.time_parts_us[name] - best.cost.time_parts_us[name] for name in _STAGES}
    stage = max(more, key=lambda name: more[name])
    percent = 100 * (other.cost.time_us / best.cost.time_us - 1)
    return f"{percent:.1f} % ({stage})" if more[stage] > 0 else f"{percent:.1f} %"


def _baseline(cost: AggregationCost | Refusal) -> dict[str, Any]:
    if isinstance(cost, Refusal):
        return {"refused": cost.reason}
    return {"total_us": cost.time_us, **{f"{name}_us": time for name, time in cost.time_parts_us.items()}}
