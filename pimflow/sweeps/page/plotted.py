"""The input of the charts of a sweep's page: points with their settings as text and their costs as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pimflow.records import dataclass
from pimflow.sweeps.fronts import Objective

MAX_POINTS = 2_000
"""The maximum number of points in a chart: more cannot be told apart, and make the page large."""


@dataclass(frozen=True)
class Dot:
    """One point in the charts.

    Args:
        number: its number in the sweep.
        settings: by varied key, its value as text.
        costs: its objectives.
        on_front: whether it is one of the best of its model.
        label: a description in one line.
    """

    number: int
    settings: Mapping[str, str]
    costs: Sequence[float]
    on_front: bool
    label: str


@dataclass(frozen=True)
class Plotted:
    """The points of one model on one graph.

    Args:
        title: the model, and the graph if there is one.
        dots: the points that are ok; if there are very many, all on the front and some of the others.
        left_out: the number of points left out.
    """

    title: str
    dots: Sequence[Dot]
    left_out: int


def axes_of(objectives: Sequence[Objective]) -> tuple[Objective, Objective]:
    """The two figures over which a front is drawn: the first two objectives, or a single one and time or energy."""
    if len(objectives) > 1:
        return objectives[0], objectives[1]
    other = "energy_mj" if objectives[0].name == "time_us" else "time_us"
    return objectives[0], Objective(other)


def ordered(values: Sequence[str]) -> list[str]:
    """The distinct settings in natural order: numbers by size, all others as they come."""
    different = list(dict.fromkeys(values))
    try:
        return sorted(different, key=float)
    except ValueError:
        return different
