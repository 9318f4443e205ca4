"""Pareto fronts: the points that no other point dominates (as good in every objective, and better in one)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from pimflow.errors import OptionError, choose_one
from pimflow.records import dataclass
from pimflow.report.tables import number, significant
from pimflow.sweeps.evaluate import FIGURES
from pimflow.sweeps.store import Outcome
from pimflow.targets import load_target


@dataclass(frozen=True)
class Objective:
    """A figure of a point, or a key of its machine.

    Args:
        name: the figure or key.
        larger: whether larger is better.
    """

    name: str
    larger: bool = False

    @classmethod
    def of(cls, text: str, targets: Sequence[str]) -> Objective:
        """An objective as written in a sweep file, with a leading "-" if larger is better.

        Raises:
            OptionError: there is no such figure or key, or the key is not a number on one of the machines.
        """
        name = text.removeprefix("-")
        if name in FIGURES:
            return cls(name, text != name)
        for target in map(load_target, targets):
            value = target.values.get(name)
            if name not in target.values:
                figures = choose_one(name, FIGURES)
                raise OptionError(f"unknown objective {name!r}", f"{figures}, or a key of the machine")
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise OptionError(f"objective {name!r} is {value!r} on {target.name}", "give a key that is a number")
        return cls(name, text != name)

    @property
    def is_figure(self) -> bool:
        """Whether it is a figure rather than a key of the machine."""
        return self.name in FIGURES

    def value(self, outcome: Outcome) -> float:
        """Its value for a point that is ok."""
        return float((outcome.figures if self.is_figure else outcome.machine)[self.name])

    @property
    def text(self) -> str:
        """The objective as written in a sweep file."""
        return f"-{self.name}" if self.larger else self.name


def front(values: Sequence[Sequence[float]], objectives: Sequence[Objective]) -> list[int]:
    """The indexes of the points on the front, in order. Points that are equal in all objectives are all on it.

    Args:
        values: by point, its objectives.
        objectives: which direction of each is better.
    """
    if not values:
        return []
    signs = np.array([-1.0 if objective.larger else 1.0 for objective in objectives])
    costs = np.asarray(values, dtype=np.float64) * signs
    order = np.lexsort(costs.T[::-1])  # a point that dominates another comes before it
    best = np.empty((0, costs.shape[1]))
    found: list[int] = []
    for index in order:
        cost = costs[index]
        no_worse = (best <= cost).all(axis=1)
        if bool((no_worse & (best < cost).any(axis=1)).any()):
            continue
        found.append(int(index))
        best = np.vstack([best, cost])
    return sorted(found)


def mean_values(of_models: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The means of objectives over models: geometric if all are positive, so that no large model outweighs the rest.

    Args:
        of_models: objectives by name, for one machine and policy on every model.
    """
    return {name: _mean([values[name] for values in of_models]) for name in of_models[0]}


def _mean(values: Sequence[float]) -> float:
    if all(value > 0 for value in values):
        return math.exp(math.fsum(map(math.log, values)) / len(values))
    return math.fsum(values) / len(values)


@dataclass(frozen=True)
class Effect:
    """The effect of a key of the machine on an objective, averaged over all other keys.

    Args:
        key: the machine's key, or "policy" or "target".
        objective: its name.
        means: by value of the key, as text: the mean of the objective over all points with that value.
        share: the spread of the means relative to the smallest: 0.1 is 10 %.
    """

    key: str
    objective: str
    means: Mapping[str, float]
    share: float


def figure_text(value: float) -> str:
    """The text of a figure; whole numbers, such as the machine's, are printed in full, and so are means that equal
    one."""
    return number(value, 0) if math.isclose(value, round(value), rel_tol=1e-12) else significant(value)
