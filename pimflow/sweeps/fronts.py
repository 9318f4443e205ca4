"""Pareto fronts: the points that no other is at least as good as in every objective, and better in one."""

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
        name: which.
        larger: whether larger is better.
    """

    name: str
    larger: bool = False

    @classmethod
    def of(cls, text: str, targets: Sequence[str]) -> Objective:
        """An objective as a sweep file spells it, with "-" in front where larger is better.

        Raises:
            OptionError: there is no such figure or key, or the key is no number on one of the machines.
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
        """Whether it is a figure, and no key of the machine."""
        return self.name in FIGURES

    def value(self, outcome: Outcome) -> float:
        """Its value for a point that is ok."""
        return float((outcome.figures if self.is_figure else outcome.machine)[self.name])

    @property
    def text(self) -> str:
        """As a sweep file spells it."""
        return f"-{self.name}" if self.larger else self.name


def front(values: Sequence[Sequence[float]], objectives: Sequence[Objective]) -> list[int]:
    """Which points are on the front, in their order. Of points that are alike in all objectives all are.

    Args:
        values: of every point, by objective.
        objectives: which way each is better.
    """
    if not values:
        return []
    signs = np.array([-1.0 if objective.larger else 1.0 for objective in objectives])
    costs = np.asarray(values, dtype=np.float64) * signs
    order = np.lexsort(costs.T[::-1])  # whoever is better than a point in all stands before it
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
    """Objectives in the mean over models: geometric where all are positive, so that no large model outweighs the rest.

    Args:
        of_models: objectives by name, of one machine and policy on every model.
    """
    return {name: _mean([values[name] for values in of_models]) for name in of_models[0]}


def _mean(values: Sequence[float]) -> float:
    if all(value > 0 for value in values):
        return math.exp(math.fsum(map(math.log, values)) / len(values))
    return math.fsum(values) / len(values)


@dataclass(frozen=True)
class Effect:
    """What a key of the machine does to an objective, whatever the others are.

    Args:
        key: of the machine; "policy" and "target" are told as well.
        objective: its name.
        means: the mean of the objective over all points with a value, by that value as text.
        share: how far the means are apart, over the smallest: 0.1 is 10 %.
    """

    key: str
    objective: str
    means: Mapping[str, float]
    share: float


def figure_text(value: float) -> str:
    """A figure, or a whole number of the machine's as it is; of a mean, as good as that."""
    return number(value, 0) if math.isclose(value, round(value), rel_tol=1e-12) else significant(value)
