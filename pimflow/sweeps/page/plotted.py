"""What the charts of a sweep's page are made from: points with their settings and costs as text and numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pimflow.records import dataclass
from pimflow.sweeps.fronts import Objective

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


def ordered(values: Sequence[str]) -> list[str]:
    """Different settings in the order that people expect: numbers by size, all else as it comes."""
    different = list(dict.fromkeys(values))
    try:
        return sorted(different, key=float)
    except ValueError:
        return different
