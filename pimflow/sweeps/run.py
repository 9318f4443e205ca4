"""Runs a sweep: computes points that are not known yet, stores each outcome at once, and reports progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from pimflow.bundle.files import sha256_of
from pimflow.bundle.source import model_source
from pimflow.data import encode
from pimflow.errors import InputDataError, ModelError, counted
from pimflow.options import graph_of
from pimflow.records import dataclass
from pimflow.sweeps.engines import Engine
from pimflow.sweeps.evaluate import Task, key_of, machine_of
from pimflow.sweeps.fronts import Objective, front
from pimflow.sweeps.result import PointResult, SweepResult
from pimflow.sweeps.search import PointSearch
from pimflow.sweeps.store import Outcome, Store
from pimflow.sweeps.study import Point, Study

Tell = Callable[[str], None]
_FRONT_EVERY_S = 2.0


@dataclass(frozen=True)
class Setup:
    """What a sweep needs before its first point.

    Args:
        objectives: the objectives.
        models, graphs: digests of the inputs, by name.
        options: the options of all points as used in their keys: a file is replaced by its digest.
    """

    objectives: tuple[Objective, ...]
    models: Mapping[str, str]
    graphs: Mapping[str, str]
    options: Mapping[str, Any]

    @classmethod
    def of(cls, study: Study) -> Setup:
        """Read the inputs.

        Raises:
            OptionError: there is no such objective.
            PimflowError: a model or a graph does not exist, or is not valid.
        """
        objectives = tuple(Objective.of(text, study.targets) for text in study.objectives)
        models = {name: _digest_of(name) for name in study.models}
        graphs = {name: graph_of(name).sha256 if name else "" for name in study.graphs}
        table = study.options.get("profile")
        options = {**study.options, **({} if table is None else {"profile": _digest_of_table(table)})}
        return cls(objectives, models, graphs, options)


def _digest_of(model: str) -> str:
    try:
        return model_source(model).sha256
    except OSError as error:
        raise ModelError(f"cannot read {model}: {error.strerror}", "check the path") from None


def _digest_of_table(path: str) -> str:
    try:
        return sha256_of(Path(path))
    except OSError as error:
        raise InputDataError(f"cannot read {path}: {error.strerror}", "check the path") from None


def run_study(study: Study, setup: Setup, store: Store, engine: Engine, progress: Tell) -> SweepResult:
    """Evaluate the points of a study that are not in the store, and compare all of them.

    Args:
        study: what is varied.
        setup: its objectives, models and graphs.
        store: open; receives every outcome as soon as it is known.
        engine: evaluates the points.
        progress: receives progress messages as lines of text.

    Raises:
        OutputError: an outcome cannot be stored.
    """
    return _Run(study, setup, store, engine, progress).result()


@dataclass
class _Run:
    study: Study
    setup: Setup
    store: Store
    engine: Engine
    progress: Tell
    computed: int = 0

    def __post_init__(self) -> None:
        self._shown = {objective.name for objective in self.setup.objectives if not objective.is_figure}
        self._clock = _Clock(self.study.count, self.progress)

    def result(self) -> SweepResult:
        if self.study.search is None:
            points = list(self.study.points())
            keys = self._compute(points)
        else:
            points = [point for place in self.study.places() for point in self._search_points(place)]
            keys = [self._key(point) for point in points]
        found = tuple(PointResult(point, self._outcome(point, key)) for point, key in zip(points, keys, strict=True))
        return SweepResult(self.study, self.setup.objectives, found, self.computed)

    def _search_points(self, place: Point) -> tuple[Point, ...]:
        """The points of one place that a search chooses."""
        assert self.study.search is not None
        search = PointSearch(self.study, self.study.search, place, self.setup.objectives)
        for points, tell in search.batches():
            tell([self._outcome(point, key) for point, key in zip(points, self._compute(points), strict=True)])
        return search.points

    def _compute(self, points: Sequence[Point]) -> list[str]:
        """Make sure that all points are known, and return their keys."""
        keys = [self._key(point) for point in points]
        about = dict(zip(keys, points, strict=True))
        fresh = {key: point for key, point in about.items() if key not in self.store}
        self._clock.count_known(len(keys) - len(fresh))
        for _, outcomes in self.engine(self._tasks(fresh.items())):
            for outcome in outcomes:
                self._add(outcome, about[outcome.key])
        return keys

    def _tasks(self, fresh: Iterable[tuple[str, Point]]) -> Iterator[Task]:
        """Tasks for workers: all policies of one machine, on one model."""
        for _, group in groupby(fresh, lambda item: replace(item[1], policy="")):
            keys, points = zip(*group, strict=True)
            first = points[0]
            yield Task(
                points,
                keys,
                self.setup.models[first.model],
                self.setup.graphs[first.graph],
                self.study.options,
                tuple(sorted(self._shown)),
            )

    def _add(self, outcome: Outcome, point: Point) -> None:
        self.computed += 1
        self.store.add(outcome, point.as_json())
        self._clock.count_finished(outcome, self.setup.objectives)

    def _outcome(self, point: Point, key: str) -> Outcome:
        """The stored outcome of a point, with values for the current objectives: it may have been stored for others."""
        stored = self.store[key]
        if stored.status != "ok" or self._shown == stored.machine.keys():
            return stored
        values = machine_of(point).values
        return replace(stored, machine={name: encode(values[name]) for name in sorted(self._shown)})

    def _key(self, point: Point) -> str:
        return key_of(point, self.setup.models[point.model], self.setup.graphs[point.graph], self.setup.options)


class _Clock:
    """Reports how many points are done, how large the front is, and how long the rest may take."""

    def __init__(self, total: int, progress: Tell) -> None:
        self._total = total
        self._progress = progress
        self._started = time.monotonic()
        self._known = self._done = 0
        self._values: list[list[float]] = []
        self._front = 0
        self._front_at = 0.0

    def count_known(self, count: int) -> None:
        """Count points that need no work."""
        self._known += count

    def count_finished(self, outcome: Outcome, objectives: Sequence[Objective]) -> None:
        """Count a finished point, and report."""
        self._done += 1
        now = time.monotonic()
        if outcome.status == "ok":
            self._values.append([objective.value(outcome) for objective in objectives])
        if now - self._front_at > _FRONT_EVERY_S:
            best = front(self._values, objectives)
            self._values = [self._values[index] for index in best]  # the others are dominated for good
            self._front, self._front_at = len(best), now
        done = min(self._total, self._known + self._done)  # a search may return to known points
        left_s = (now - self._started) / self._done * (self._total - done)
        self._progress(
            f"sweep: {done:,} of {counted(self._total, 'point')} ({100 * done / self._total:.0f} %), "
            f"about {_duration_text(left_s)} to go, {self._front:,} on the front"
        )


def _duration_text(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
