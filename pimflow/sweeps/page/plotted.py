"""What the charts of a sweep's page are made from: points with their settings and costs as text and numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pimflow.sweeps.fronts import Objective
from pimflow.sweeps.result import SweepResult, figure_text

MOST_POINTS = 2_000
"""In a chart: more are too many to tell apart, and make the page large."""


@dataclass(frozen=True)
class Dot:
    """One point in the charts.

    Args:
        number: in the sweep.
        settings: what it has for every varied key, as text.
        costs: its objectives.
        on_front: whether it is one of the best of its model.
        told: what it is, in a line.
    """

    number: int
    settings: Mapping[str, str]
    costs: Sequence[float]
    on_front: bool
    told: str


@dataclass(frozen=True)
class Plotted:
    """The points of one model on one graph.

    Args:
        title: the model, and the graph if there is one.
        dots: those that are ok; of very many all that are on the front, and some of the others.
        left_out: how many others there are.
    """

    title: str
    dots: Sequence[Dot]
    left_out: int


def axes_of(objectives: Sequence[Objective]) -> tuple[Objective, Objective]:
    """The two figures that a front is drawn over: the first two objectives, or the one and time or energy."""
    if len(objectives) > 1:
        return objectives[0], objectives[1]
    other = "energy_mj" if objectives[0].name == "time_us" else "time_us"
    return objectives[0], Objective(other)


def plotted(result: SweepResult) -> list[Plotted]:
    """The points of every model on every graph that has any."""
    found = []
    for one in result.fronts:
        mine = [
            index
            for index, at in enumerate(result.found)
            if at.is_ok and (at.point.model, at.point.graph) == (one.model, one.graph)
        ]
        best = set(one.points)
        step = -(-len(mine) // MOST_POINTS)
        kept = [index for place, index in enumerate(mine) if index in best or place % step == 0]
        dots = [_dot(result, index, index in best) for index in kept]
        title = f"{one.model} on {one.graph}" if one.graph else one.model
        if dots:
            found.append(Plotted(title, dots, len(mine) - len(kept)))
    return found


def _dot(result: SweepResult, index: int, on_front: bool) -> Dot:
    outcome = result.found[index].outcome
    settings = {key: result.setting(index, key) for key in result.varied}
    figures = [f"{o.name} {figure_text(o.value(outcome))}" for o in result.objectives]
    told = ", ".join([*(f"{key} {value}" for key, value in settings.items()), *figures])
    costs = [objective.value(outcome) for objective in (*result.objectives, *axes_of(result.objectives))]
    return Dot(index, settings, costs, on_front, told)


def ordered(values: Sequence[str]) -> list[str]:
    """Different settings in the order that people expect: numbers by size, all else as it comes."""
    different = list(dict.fromkeys(values))
    try:
        return sorted(different, key=float)
    except ValueError:
        return different
