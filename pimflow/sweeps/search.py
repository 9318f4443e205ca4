"""A search among the points of a grid by Optuna: multi-objective, seeded, the same again wherever it is broken off."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pimflow.data import Table
from pimflow.errors import OptionError
from pimflow.sweeps.fronts import Objective
from pimflow.sweeps.store import Outcome
from pimflow.sweeps.study import Point, Search, Study

Tell = Callable[[Sequence[Outcome]], None]

_MOST_ASKED = 5
"""Trials for each that is asked for, where the sampler comes back to points that it has seen."""


class Searching:
    """One model, graph, machine and policy: which points to look at next, by what came of those before.

    Trials are asked for in batches of `Search.parallel`, however many workers there are: the same seed looks at the
    same points.

    Args:
        study: what is varied.
        search: how.
        place: the point whose machine is as it is.
        objectives: what is weighed.

    Raises:
        OptionError: Optuna is not installed.
    """

    def __init__(self, study: Study, search: Search, place: Point, objectives: Sequence[Objective]) -> None:
        optuna = _optuna()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        samplers = {
            "nsga2": lambda: optuna.samplers.NSGAIISampler(seed=search.seed, population_size=max(2, search.parallel)),
            "tpe": lambda: optuna.samplers.TPESampler(seed=search.seed),
            "random": lambda: optuna.samplers.RandomSampler(seed=search.seed),
        }
        directions = ["maximize" if objective.larger else "minimize" for objective in objectives]
        self._optuna = optuna
        self._trials = optuna.create_study(directions=directions, sampler=samplers[search.sampler]())
        self._study, self._search, self._place, self._objectives = study, search, place, tuple(objectives)
        self._seen: dict[Point, None] = {}
        self._asked = 0

    @property
    def points(self) -> tuple[Point, ...]:
        """What has been looked at so far, each point once."""
        return tuple(self._seen)

    def batches(self) -> Iterator[tuple[list[Point], Tell]]:
        """Points to look at, and what takes their outcomes, in order, before the next are asked for."""
        while len(self._seen) < self._search.trials and self._asked < _MOST_ASKED * self._search.trials:
            count = min(self._search.parallel, self._search.trials - len(self._seen))
            trials = [self._trials.ask() for _ in range(count)]
            self._asked += count
            points = [self._point(trial) for trial in trials]
            self._seen.update(dict.fromkeys(points))
            yield points, partial(self._tell, trials)

    def _point(self, trial: Any) -> Point:
        axes = self._study.axes
        choices = {key: items[trial.suggest_int(key or "lists", 0, len(items) - 1)] for key, items in axes.items()}
        return replace(self._place, values=Table(self._study.values_at(choices)))

    def _tell(self, trials: Sequence[Any], outcomes: Sequence[Outcome]) -> None:
        for trial, outcome in zip(trials, outcomes, strict=True):
            if outcome.status == "ok":
                self._trials.tell(trial, [objective.value(outcome) for objective in self._objectives])
            else:
                self._trials.tell(trial, state=self._optuna.trial.TrialState.FAIL)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise OptionError("[search] needs Optuna", "type: pip install 'pimflow[optuna]'") from None
    return optuna
