"""A search among the points of a grid by Optuna: multi-objective, seeded, and reproducible after an interruption."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pimflow.data import Table
from pimflow.errors import OptionError
from pimflow.sweeps.fronts import Objective
from pimflow.sweeps.store import Outcome
from pimflow.sweeps.study import Point, Search, Study

Tell = Callable[[Sequence[Outcome]], None]
_LISTS = "lists"  # the name that Optuna sees for the axis of values that go together


class PointSearch:
    """For one model, graph, machine and policy: chooses the next points based on the outcomes of those before.

    Trials are requested in batches of `Search.parallel`, however many workers there are, so the same seed gives the
    same points.

    Args:
        study: what is varied.
        search: how to search.
        place: the point with the unchanged machine.
        objectives: the objectives.

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
        self._random = random.Random(search.seed)

    @property
    def points(self) -> tuple[Point, ...]:
        """The points chosen so far, each once."""
        return tuple(self._seen)

    def batches(self) -> Iterator[tuple[list[Point], Tell]]:
        """Points to evaluate, and a function that takes their outcomes, in order, before the next batch is
        requested."""
        wanted = min(self._search.trials, math.prod(map(len, self._study.axes.values())))
        while len(self._seen) < wanted:
            known = len(self._seen)
            trials = [self._trials.ask() for _ in range(min(self._search.parallel, wanted - known))]
            points = [self._suggest(trial) for trial in trials]
            self._seen.update(dict.fromkeys(points))
            if len(self._seen) == known:
                self._enqueue_unseen()
            yield points, partial(self._tell, trials)

    def _suggest(self, trial: Any) -> Point:
        axes = self._study.axes
        return self._point({key: trial.suggest_int(key or _LISTS, 0, len(items) - 1) for key, items in axes.items()})

    def _point(self, places: Mapping[str, int]) -> Point:
        """The point at these places of the axes."""
        choices = {key: self._study.axes[key][place] for key, place in places.items()}
        return replace(self._place, values=Table(self._study.values_at(choices)))

    def _enqueue_unseen(self) -> None:
        """Make the next trial an unseen one, because the sampler only returns to seen ones."""
        while True:
            places = {key: self._random.randrange(len(items)) for key, items in self._study.axes.items()}
            if self._point(places) not in self._seen:
                break
        self._trials.enqueue_trial({key or _LISTS: place for key, place in places.items()})

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
