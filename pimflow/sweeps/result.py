"""The result of a sweep: every point, the fronts, and the effect of each key of the machine on the objectives."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from pimflow.data import encode
from pimflow.errors import counted
from pimflow.records import dataclass
from pimflow.report.records import Records, Row
from pimflow.report.tables import number, render_table, significant, wrapped
from pimflow.sweeps.evaluate import FIGURES
from pimflow.sweeps.fronts import Effect, Objective, figure_text, front, mean_values
from pimflow.sweeps.page.plotted import MAX_POINTS, Dot, Plotted, axes_of
from pimflow.sweeps.store import Outcome
from pimflow.sweeps.study import Point, Study

_MAX_SHOWN = 20
_MAX_REASONS = 5
_MAX_FRONTS = 4  # in a notebook


@dataclass(frozen=True)
class PointResult:
    """A point and its outcome."""

    point: Point
    outcome: Outcome

    @property
    def is_ok(self) -> bool:
        """Whether it has figures."""
        return self.outcome.status == "ok"


@dataclass(frozen=True)
class Front:
    """The best points of one model on one graph.

    Args:
        model, graph: the model and graph.
        points: indexes into the points of the sweep, in the order of the first objective.
    """

    model: str
    graph: str
    points: tuple[int, ...]


@dataclass(frozen=True)
class Mean:
    """A machine and a policy, averaged over all models of the sweep.

    Args:
        target, policy, values: of the point; `values` are the changed values of the machine.
        objectives: by name, the mean over the models.
        on_front: whether no other dominates it in the means.
    """

    target: str
    policy: str
    values: Mapping[str, Any]
    objectives: Mapping[str, float]
    on_front: bool


@dataclass(frozen=True, repr=False)
class SweepResult(Records):
    """A sweep, a row per point.

    Args:
        study: what was varied.
        objectives: the objectives of the fronts.
        found: the points with their outcomes, in the order of the study.
        computed: how many were computed in this run; the others were already known.
    """

    study: Study
    objectives: tuple[Objective, ...]
    found: tuple[PointResult, ...]
    computed: int

    @property
    def title(self) -> str:
        """The models and the number of points."""
        models = ", ".join(self.study.models[:_MAX_REASONS])
        return f"{models}{', ..' if len(self.study.models) > _MAX_REASONS else ''}: {counted(len(self.found), 'point')}"

    @cached_property
    def fronts(self) -> tuple[Front, ...]:
        """The best points of every model, on every graph."""
        found = []
        for model in self.study.models:
            for graph in self.study.graphs:
                mine = [
                    i
                    for i, at in enumerate(self.found)
                    if at.is_ok and (at.point.model, at.point.graph) == (model, graph)
                ]
                best = [mine[i] for i in front([self._costs(i) for i in mine], self.objectives)]
                found.append(Front(model, graph, tuple(sorted(best, key=self._costs))))
        return tuple(found)

    @cached_property
    def means(self) -> tuple[Mean, ...]:
        """The means over all models for machines and policies that ran all of them; empty if there is one model."""
        places = len(self.study.models) * len(self.study.graphs)
        groups: dict[tuple[Any, ...], list[int]] = {}
        for index, at in enumerate(self.found):
            if at.is_ok:
                groups.setdefault((at.point.target, at.point.policy, at.point.values), []).append(index)
        whole = {group: members for group, members in groups.items() if places > 1 and len(members) == places}
        means = [mean_values([self._named(index) for index in members]) for members in whole.values()]
        best = set(front([list(mean.values()) for mean in means], self.objectives))
        return tuple(
            Mean(target, policy, dict(values), mean, index in best)
            for index, ((target, policy, values), mean) in enumerate(zip(whole, means, strict=True))
        )

    @cached_property
    def effects(self) -> tuple[Effect, ...]:
        """The effect of every varied key on every objective, the strongest first."""
        pairs = [(key, objective) for key in self.varied for objective in self.objectives if objective.is_figure]
        found = [effect for pair in pairs if (effect := self._effect(*pair)) is not None]
        return tuple(sorted(found, key=lambda effect: -effect.share))

    @cached_property
    def varied(self) -> tuple[str, ...]:
        """The keys of the machine in which points differ, and "policy" and "target" if they differ."""
        keys = dict.fromkeys(key for at in self.found for key in at.point.values)
        given = {"target": self.study.targets, "policy": self.study.policies}
        return (*(name for name, several in given.items() if len(several) > 1), *keys)

    def setting(self, index: int, key: str) -> str:
        """The value of a varied key for a point, as text."""
        point = self.found[index].point
        value = getattr(point, key) if key in ("target", "policy") else point.values.get(key, "")
        return value if isinstance(value, str) else str(encode(value))

    def count(self, status: str) -> int:
        """The number of points with a status."""
        return sum(at.outcome.status == status for at in self.found)

    def records(self) -> list[Row]:
        """A row per point: its settings, its status, its figures, and whether it is on a front."""
        best = {index for one in self.fronts for index in one.points}
        rows = []
        for index, at in enumerate(self.found):
            point, outcome = at.point, at.outcome
            about = {"model": point.model, "graph": point.graph, "target": point.target, "policy": point.policy}
            values = {key: _cell(point.values.get(key)) for key in self.varied if key not in about}
            state = {"status": outcome.status, "reason": outcome.reason, "on_front": index in best}
            rows.append({**about, **values, **state, **{name: outcome.figures.get(name) for name in FIGURES}})
        return rows

    def as_json(self) -> dict[str, Any]:
        """One JSON object: the study, every point, the fronts, means and effects."""
        points = [
            {**at.point.as_json(), **{name: value for name, value in vars(at.outcome).items() if name != "seconds"}}
            for at in self.found
        ]
        data: dict[str, Any] = encode(
            {
                "study": _study_json(self.study),
                "points": points,
                "fronts": [vars(one) for one in self.fronts],
                "means": [vars(mean) for mean in self.means],
                "effects": [vars(effect) for effect in self.effects],
            }
        )
        return data

    def csv(self) -> str:
        """The rows as CSV, a column for every figure."""
        columns = dict.fromkeys(key for row in self._rows for key in row)
        text = io.StringIO()
        writer = csv.DictWriter(text, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows)
        return text.getvalue()

    def charts(self) -> str:
        """The points of every model over two figures, with the front; of many models only the first ones."""
        from pimflow.report.page.notebook import in_notebook
        from pimflow.sweeps.page.charts import front_chart, sheet

        drawn = (front_chart(place, self.objectives) for place in self.plotted[:_MAX_FRONTS])
        return in_notebook(*drawn, style=sheet())

    @cached_property
    def plotted(self) -> tuple[Plotted, ...]:
        """The points of every model and graph that has any, for charts."""
        found = []
        for one in self.fronts:
            mine = [
                index
                for index, at in enumerate(self.found)
                if at.is_ok and (at.point.model, at.point.graph) == (one.model, one.graph)
            ]
            best = set(one.points)
            step = -(-len(mine) // MAX_POINTS)
            dots = [self._dot(i, i in best) for place, i in enumerate(mine) if i in best or place % step == 0]
            title = f"{one.model} on {one.graph}" if one.graph else one.model
            if dots:
                found.append(Plotted(title, dots, len(mine) - len(dots)))
        return tuple(found)

    def _dot(self, index: int, on_front: bool) -> Dot:
        outcome = self.found[index].outcome
        settings = {key: self.setting(index, key) for key in self.varied}
        figures = [f"{o.name} {figure_text(o.value(outcome))}" for o in self.objectives]
        label = ", ".join([*(f"{key} {value}" for key, value in settings.items()), *figures])
        costs = [objective.value(outcome) for objective in (*self.objectives, *axes_of(self.objectives))]
        return Dot(index, settings, costs, on_front, label)

    def text(self) -> str:
        """The number of points, the fronts as tables, why points are invalid, and which keys matter."""
        parts = [self._counts(), *(self._front_table(one) for one in self.fronts if one.points)]
        return "\n\n".join(
            [*parts, *filter(None, (self._mean_table(), self._effect_lines(), self._memory_note(), self._reasons()))]
        )

    def _costs(self, index: int) -> list[float]:
        return [objective.value(self.found[index].outcome) for objective in self.objectives]

    def _named(self, index: int) -> dict[str, float]:
        return {objective.name: objective.value(self.found[index].outcome) for objective in self.objectives}

    def _effect(self, key: str, objective: Objective) -> Effect | None:
        """The effect of a key; None unless at least two of its values have points."""
        values: dict[str, list[dict[str, float]]] = {}
        for index, at in enumerate(self.found):
            if at.is_ok:
                values.setdefault(self.setting(index, key), []).append(self._named(index))
        means = {value: mean_values(at)[objective.name] for value, at in values.items()}
        if len(means) < 2:
            return None
        low = min(means.values())
        return Effect(key, objective.name, means, (max(means.values()) - low) / abs(low) if low else 0.0)

    def _counts(self) -> str:
        kinds = [("ok", "ok"), ("invalid", "invalid"), ("failed", "failed, to be retried")]
        counts = ", ".join(f"{self.count(status):,} {words}" for status, words in kinds if self.count(status))
        known = len(self.found) - self.computed
        points, more = counted(len(self.found), "point"), f"; {known:,} already known" if known > 0 else ""
        return f"{points}: {counts or 'none'}{more}"

    def _table(self, rows: Iterable[tuple[str, str, Mapping[str, Any], Sequence[float]]]) -> str:
        own_columns = {"target", "policy", *(objective.name for objective in self.objectives)}
        keys = [key for key in self.varied if key not in own_columns]
        named = [name for name in ("target", "policy") if name in self.varied]
        header = [*named, *keys, *(objective.name for objective in self.objectives)]
        body = []
        for target, policy, values, costs in rows:
            places = {"target": target, "policy": policy}
            cells = [*(places[name] for name in named), *(str(_cell(values.get(key))) for key in keys)]
            body.append([*cells, *map(figure_text, costs)])
        return render_table(header, body, right=range(len(named), len(header)))

    def _front_table(self, one: Front) -> str:
        shown = one.points[:_MAX_SHOWN]
        points = [(self.found[i].point, self._costs(i)) for i in shown]
        table = self._table((point.target, point.policy, point.values, costs) for point, costs in points)
        place = f"{one.model} on {one.graph}" if one.graph else one.model
        return f"front of {place}: {counted(len(one.points), 'point')}\n{table}{_more(len(one.points))}"

    def _mean_table(self) -> str:
        best = sorted((mean for mean in self.means if mean.on_front), key=lambda mean: [*mean.objectives.values()])
        if not best:
            return ""
        rows = ((mean.target, mean.policy, mean.values, [*mean.objectives.values()]) for mean in best[:_MAX_SHOWN])
        points = counted(len(best), "point")
        return f"front of the mean over all models: {points}\n{self._table(rows)}{_more(len(best))}"

    def _effect_lines(self) -> str:
        lines = [
            f"{effect.key} changes {effect.objective} by {number(100 * effect.share)} % on average: "
            + ", ".join(f"{value} {significant(mean)}" for value, mean in effect.means.items())
            for effect in self.effects[:_MAX_SHOWN]
        ]
        return "\n".join(wrapped(line, "  ") for line in lines)

    def _memory_note(self) -> str:
        """A note on points whose activations do not fit into the GPU's memory; "" if there are none."""
        figures = [at.outcome.figures for at in self.found if at.is_ok]
        short = [one for one in figures if not one["fits"] or one["spilled_us"] != one["time_us"]]
        if not short:
            return ""
        fits = sum(bool(one["fits"]) for one in short)
        need = counted(len(short), "point needs more than its GPU's memory", "points need more than their GPU's memory")
        return wrapped(
            f"{need}; with offloaded or recomputed activations {counted(fits, 'fits', 'fit')}: `spilled_us` and "
            "`spilled_energy_mj` include that, `fits` says which",
            "  ",
        )

    def _reasons(self) -> str:
        reasons: dict[str, int] = {}
        for at in self.found:
            if not at.is_ok:
                reasons[at.outcome.reason] = reasons.get(at.outcome.reason, 0) + 1
        most = sorted(reasons.items(), key=lambda item: -item[1])
        lines = [wrapped(f"{count:,} x {reason}", "  ") for reason, count in most[:_MAX_REASONS]]
        left = len(most) - _MAX_REASONS
        return "\n".join([*lines, *([counted(left, "other reason")] if left > 0 else [])])


def _study_json(study: Study) -> dict[str, Any]:
    data: dict[str, Any] = encode(study)
    return data


def _cell(value: Any) -> Any:
    """A value as a cell of a row: lists become text."""
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(encode(value))


def _more(count: int) -> str:
    return f"\n{count - _MAX_SHOWN:,} more" if count > _MAX_SHOWN else ""
