"""A lower bound on the time of a run: several waists in one decision, each in two parts or more (`meeting_bound`).

For any prices of device time that add up to one, a run takes at least, summed over the devices, the price of each times
its work, what precedes that and what follows it. A unit has nothing to work on before a part of every waist that only
the host computes in front of it, one after the other, and nothing it does is over before such parts of all waists
behind; likewise for the host. So a waist costs

- what its parts cost, on the host, on units, or on both;
- its smallest part at the price of the other devices too, if these compute no waist in front of it, or none behind it.

A dynamic program over the waists finds the cheapest way at each price, over all starts of a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


_HOST, _UNITS, _BOTH, _ON_HOST, _ON_UNITS, _HOST_LEFT, _UNITS_LEFT = range(7)
"""The states of a run up to a step: only the host, or only units, have computed anything; both compute the last step;
both have computed steps, and the last one is on the host, or on units; only the host, or only units, still compute."""
_SO_FAR = (_BOTH, _ON_HOST, _ON_UNITS)
_TURNS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("only_host", (_HOST,)),
    ("only_units", (_UNITS,)),
    ("both", (_HOST, _UNITS, *_SO_FAR)),
    ("host", (_UNITS, *_SO_FAR)),
    ("units", (_HOST, *_SO_FAR)),
    ("only_host", (_UNITS, _BOTH, _ON_UNITS, _HOST_LEFT)),
    ("only_units", (_HOST, _BOTH, _ON_HOST, _UNITS_LEFT)),
)
"""By state, the costs of a step that leads to it, and the states that may precede it."""
_ROUNDING = 1 + 1e-9
_STARTS = (_HOST, _UNITS, _BOTH)
_ENDS = (_HOST, _UNITS, _BOTH, _HOST_LEFT, _UNITS_LEFT)
_SOURCES = np.array([(sources * len(_TURNS))[: len(_TURNS)] for _, sources in _TURNS])
"""By state, those that may precede it, repeated to the same number."""


class Ways:
    """The costs of a step of a run at all prices, by what computes it; infinite where that cannot.

    Args:
        host: on the host alone.
        units: on units alone.
        both: on the host and on units.
        only_host: on the host, while units have nothing to do yet, or nothing any more.
        only_units: on units, while the host has nothing to do yet, or nothing any more.
    """

    def __init__(self, host: Array, units: Array, both: Array, only_host: Array, only_units: Array) -> None:
        self.host, self.units, self.both = host, units, both
        self.only_host, self.only_units = only_host, only_units

    @classmethod
    def anywhere(cls, cost: Array) -> Ways:
        """Those of a step about which nothing is known but what it costs at least."""
        return cls(cost, cost, cost, cost, cost)

    @cached_property
    def by_state(self) -> Array:
        """[state behind the step, price]"""
        return np.array([getattr(self, way) for way, _ in _TURNS])

    @cached_property
    def as_first(self) -> Array:
        """[state behind the step, price], if it is the first of a run."""
        return np.where(np.isin(np.arange(len(_TURNS)), _STARTS)[:, None], self.by_state, np.inf)


class Runs:
    """The cheapest runs that end with a step and may continue, with what precedes them: [state, price]."""

    def __init__(self, us: Array) -> None:
        self._us = us

    @classmethod
    def from_step(cls, before_us: float, ways: Ways) -> Runs:
        """The runs that start with a step."""
        return cls(before_us + ways.as_first)

    def with_step(self, ways: Ways) -> Runs:
        """The runs with the next step."""
        return Runs(self._us[_SOURCES].min(axis=1) + ways.by_state)

    def or_from_step(self, before_us: float, ways: Ways) -> Runs:
        """These runs, or those that start with a step, whichever are cheaper."""
        return Runs(np.minimum(self._us, before_us + ways.as_first))

    @property
    def least_us(self) -> Array:
        """By price, the cost of the cheapest run that ends here."""
        least: Array = self._us[_ENDS, :].min(axis=0)
        return least


def costs_of_run(steps: Iterable[tuple[Ways, float]], price: int, least_us: float) -> list[float]:
    """The costs of the steps, the last one first, of a run of two or more that is among the cheapest.

    Args:
        steps: the steps that may be in it, the last one of the run first, each with the time of all that precedes a run
            that starts with it.
        price: the place of the price.
        least_us: the cost of the cheapest run at that price, with what precedes it (`Runs.least_us`).
    """
    behind = [[0.0 if state in _ENDS else math.inf for state in range(len(_TURNS))]]  # by state up to the last step
    costs: list[list[float]] = []
    for ways, started_us in steps:
        costs.append(ways.by_state[:, price].tolist())
        starts = [(started_us + costs[-1][state] + behind[-1][state], state) for state in _STARTS]
        if len(costs) > 1 and min(starts)[0] <= least_us * _ROUNDING:
            return _steps_from(min(starts)[1], costs, behind)
        behind.append(_behind(costs[-1], behind[-1]))
    raise AssertionError("one of the runs costs this")


def _behind(cost: Sequence[float], behind: Sequence[float]) -> list[float]:
    """By state up to a step, the least cost of all behind it, given the costs of the next step and of all behind
    that."""
    found = [math.inf] * len(_TURNS)
    for state, (_, sources) in enumerate(_TURNS):
        us = cost[state] + behind[state]
        for source in sources:
            found[source] = min(found[source], us)
    return found


def _steps_from(state: int, costs: Sequence[Sequence[float]], behind: Sequence[Sequence[float]]) -> list[float]:
    """The costs of the steps of the cheapest run whose first step leads to a state, the last step first."""
    found = [costs[-1][state]]
    for cost, after in zip(costs[-2::-1], behind[-2::-1], strict=True):
        following = [turn for turn, (_, sources) in enumerate(_TURNS) if state in sources]
        state = min(following, key=lambda turn: cost[turn] + after[turn])
        found.append(cost[state])
    return found[::-1]
