"""What a sweep varies, as given in its file, and the points that follow from it."""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pimflow.data import NOT_DATA, Limits, Table, decode, read_file
from pimflow.errors import DataError, OptionError, choose_one
from pimflow.options import DEFAULT_POLICY, Options, saved_options
from pimflow.records import dataclass
from pimflow.search.policy import find_policy
from pimflow.targets import DEFAULT_TARGET, load_target
from pimflow.targets.overrides import nearest_key
from pimflow.targets.schema.origin import frozen

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Values = Table[Any]
"""New values of a machine's keys, in the order of the study."""
Sampler = Literal["nsga2", "tpe", "random"]

MAX_POINTS = 1_000_000
HINT = "docs/sweep.md describes sweep files"
_RANGE = {"low", "high", "step", "log"}
_TOLERANCE = 1e-9  # tolerance, as a share of a step, for reaching the end


@dataclass(frozen=True)
class Range:
    """Numbers between two ends, both included.

    Args:
        low, high: the ends.
        step: the distance between numbers; None is 1 for whole numbers, and any number otherwise.
        log: whether to draw on a logarithmic scale.
        whole: only whole numbers; this is the case if a file gives both ends, and the step, without a decimal point.
    """

    low: Annotated[float, Limits()]
    high: Annotated[float, Limits()]
    step: Annotated[float, Limits(above=0)] | None = None
    log: bool = False
    whole: bool = field(default=False, metadata=NOT_DATA)

    @classmethod
    def of(cls, data: Mapping[str, Any], where: str) -> Range:
        """A range from plain data; `where` is the path to them, for errors."""
        numbers = [data[key] for key in ("low", "high", "step") if key in data]
        return replace(decode(cls, data, path=where), whole=all(type(number) is int for number in numbers))

    def draw(self, source: random.Random) -> float:
        """Draw a random number from the range."""
        low, high = (math.log(end) for end in (self.low, self.high)) if self.log else (self.low, self.high)
        anywhere = source.uniform(low, high)
        value = math.exp(anywhere) if self.log else anywhere
        step = self.step or (1.0 if self.whole else None)
        if step is None:
            return min(max(value, self.low), self.high)
        last = math.floor((self.high - self.low) / step + _TOLERANCE)
        number = round((value - self.low) / step) if self.log else source.randint(0, last)
        value = self.low + min(number, last) * step
        return round(value) if self.whole else value

    def check(self, where: str) -> None:
        """Raise an OptionError if the range is empty, or starts at or below 0 on a logarithmic scale."""
        if self.low > self.high:
            raise OptionError(f"{where} goes from {self.low} to {self.high}", "give the lower end as 'low'")
        if self.log and self.low <= 0:
            raise OptionError(f"{where} is logarithmic from {self.low}", "start it above 0")


@dataclass(frozen=True)
class Random:
    """Machines drawn at random.

    Args:
        points: how many.
        values: by key, the values to choose among, or a range to draw from.
        seed: different seeds draw different machines.
    """

    points: Annotated[int, Limits(least=1, most=MAX_POINTS)]
    values: Mapping[str, Any]
    seed: Annotated[int, Limits(least=0)] = 0

    def draws(self) -> Iterator[dict[str, Any]]:
        """The machines' values; a longer list begins with the values of a shorter one."""
        for number in range(self.points):
            source = random.Random(f"{self.seed} {number}")
            yield {key: _drawn(values, source) for key, values in self.values.items()}


@dataclass(frozen=True)
class Search:
    """A search among the points of the grid by Optuna, instead of evaluating all of them.

    Args:
        trials: the number of points to evaluate, for every model, machine and policy.
        sampler: how the next points are chosen.
        seed: different seeds choose different points.
        parallel: the number of trials chosen at once, before the outcome of any of them is known.
    """

    trials: Annotated[int, Limits(least=1, most=MAX_POINTS)]
    sampler: Sampler = "nsga2"
    seed: Annotated[int, Limits(least=0)] = 0
    parallel: Annotated[int, Limits(least=1, most=10_000)] = 8


@dataclass(frozen=True)
class Point:
    """One compilation: a model, on a graph if it is a graph network, for a machine, under a policy.

    Args:
        model: a path, or "zoo:NAME".
        graph: the path of a graph; "" for the model's own, or none.
        target: the base machine, a name or a file.
        policy: its name.
        values: by key, the changed values of the machine.
    """

    model: str
    graph: str
    target: str
    policy: str
    values: Values

    def as_json(self) -> dict[str, Any]:
        """The point as plain values."""
        return {**vars(self), "values": dict(self.values)}


@dataclass(frozen=True)
class Study:
    """What a sweep varies.

    Args:
        models: paths, or "zoo:NAME".
        graphs: paths of graphs, for graph networks; none for other models.
        targets: base machines, names or files.
        policies: search policies.
        objectives: the objectives of the fronts: figures of a point, or keys of its machine. Smaller is better; with a
            leading "-", larger is better.
        options: other options of `compile`, for all points.
        grid: by key of the machine, its values, in all combinations.
        lists: like `grid`, but taken together: first with first, second with second.
        random: machines drawn at random.
        search: evaluates only some points of the grid.
    """

    models: tuple[str, ...]
    graphs: tuple[str, ...] = ("",)
    targets: tuple[str, ...] = (DEFAULT_TARGET,)
    policies: tuple[str, ...] = (DEFAULT_POLICY,)
    objectives: tuple[str, ...] = ("time_us", "energy_mj")
    options: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Any] = field(default_factory=dict)
    lists: Mapping[str, Any] = field(default_factory=dict)
    random: Random | None = None
    search: Search | None = None

    @classmethod
    def of(cls, data: Mapping[str, Any], where: str = "the sweep") -> Study:
        """A study from plain data, for example from a TOML file.

        Args:
            data: the keys of a sweep file.
            where: what to call it in errors.

        Raises:
            OptionError: a key or a value is wrong.
            TargetError: a machine does not exist, or its file is not valid.
        """
        try:
            study = decode(cls, _with_keys(data))
        except DataError as error:
            raise OptionError(f"{where}: {error.what}", error.hint or HINT) from None
        return study.checked(where)

    @classmethod
    def load(cls, path: Path) -> Study:
        """A study from a TOML file; paths of models, graphs and machines in it are relative to the file.

        Raises:
            OptionError: it cannot be read, or a key or a value is wrong.
            TargetError: a machine does not exist, or its file is not valid.
        """
        try:
            data = tomllib.loads(read_file(path).decode("utf-8-sig"))
        except OSError as error:
            raise OptionError(f"cannot read {path}: {error.strerror}", "check the path") from None
        except (ValueError, RecursionError) as error:
            raise OptionError(f"{path} is not valid TOML: {error}", "correct the file") from None
        return cls.of(_with_resolved_paths(data, path.parent), str(path))

    def checked(self, where: str) -> Study:
        """The study itself, if it is valid, with inputs fixed to infinities or NaN as JSON can hold them.

        Raises:
            OptionError, TargetError: see `of`.
        """
        for name in ("models", "graphs", "targets", "policies", "objectives"):
            given = getattr(self, name)
            if not given:
                raise OptionError(f"{where}: {name!r} is empty", HINT)
            if len(set(given)) < len(given):
                raise OptionError(f"{where}: {name!r} has a duplicate", "list each one once")
        for policy in self.policies:
            find_policy(policy)
        read = self._read_options(where)
        self._check_values(where)
        if self.search and (self.random or not (self.grid or self.lists)):
            raise OptionError(f"{where}: [search] chooses among the points of a grid", "give [grid], and no [random]")
        if self.count > MAX_POINTS:
            raise OptionError(f"{where} has {self.count:,} points", f"give fewer than {MAX_POINTS:,}, or [search]")
        return self if "fixed" not in self.options else replace(self, options={**self.options, "fixed": read.fixed})

    def _read_options(self, where: str) -> Options:
        names = [name for name in saved_options() if name != "policy"]  # every point has its own policy
        for name in self.options:
            if name not in names:
                raise OptionError(f"{where}: unknown option {name!r}", choose_one(name, names))
        return Options.of(**self.options)

    def _check_values(self, where: str) -> None:
        drawn = self.random.values if self.random else {}
        for table, values in (("grid", self.grid), ("lists", self.lists)):
            for key, items in values.items():
                if not isinstance(items, Sequence) or isinstance(items, str) or not items:
                    raise OptionError(f"{where}: {table} has no list of values for {key!r}", HINT)
        for key, items in drawn.items():
            if isinstance(items, Range):
                items.check(f"{where}: the range of {key!r}")
            elif not isinstance(items, Sequence) or isinstance(items, str) or not items:
                raise OptionError(f"{where}: random has neither a list nor a range for {key!r}", HINT)
        if len({len(items) for items in self.lists.values()}) > 1:
            lengths = ", ".join(f"{key} {len(items)}" for key, items in self.lists.items())
            raise OptionError(f"{where}: the lists differ in length ({lengths})", "give them the same length")
        keys = [*self.grid, *self.lists, *drawn]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise OptionError(f"{where}: {twice!r} is varied twice", "name it in one of grid, lists and random")
        self._check_json(where, {**self.grid, **self.lists, **drawn})
        self._check_keys(where, keys)

    def _check_json(self, where: str, values: Mapping[str, Any]) -> None:
        """That JSON can hold all values: no key takes others."""
        for key, items in values.items():
            if not isinstance(items, Range) and not _has_json(items):
                raise OptionError(f"{where}: {key!r} has a value that is no finite number, text or list", "correct it")

    def _check_keys(self, where: str, keys: Sequence[str]) -> None:
        for name in self.targets:
            target = load_target(name)
            for key in keys:
                if key not in target.values:
                    near = nearest_key(key, target.values)
                    raise OptionError(f"{where}: target {target.name!r} has no key {key!r}", near)

    @cached_property
    def axes(self) -> dict[str, tuple[Any, ...]]:
        """The grid's lists by key; values that go together are one axis, of indexes, under the name ""."""
        lists = {"": tuple(range(len(next(iter(self.lists.values())))))} if self.lists else {}
        return {**{key: tuple(items) for key, items in self.grid.items()}, **lists}

    def values_at(self, choices: Mapping[str, Any]) -> dict[str, Any]:
        """The machine's new values for these choices on the axes."""
        values = {key: frozen(choice) for key, choice in choices.items() if key}
        if "" in choices:
            values |= {key: frozen(items[choices[""]]) for key, items in self.lists.items()}
        return values

    @cached_property
    def count(self) -> int:
        """The number of points."""
        places = len(self.models) * len(self.graphs) * len(self.targets) * len(self.policies)
        if self.search:
            return places * self.search.trials
        return places * math.prod(map(len, self.axes.values())) * (self.random.points if self.random else 1)

    def machines(self) -> Iterator[Values]:
        """The changed values of the machine, point by point; empty values if nothing is varied."""
        for choices in itertools.product(*self.axes.values()):
            values = self.values_at(dict(zip(self.axes, choices, strict=True)))
            for drawn in self.random.draws() if self.random else ({},):
                yield Table({**values, **drawn})

    def places(self) -> Iterator[Point]:
        """Models, graphs, machines and policies, with each machine unchanged."""
        for model, graph, target in itertools.product(self.models, self.graphs, self.targets):
            for policy in self.policies:
                yield Point(model, graph, target, policy, Table({}))

    def points(self) -> Iterator[Point]:
        """All points except those of a search, in order: the policies of one machine are adjacent."""
        for model, graph, target in itertools.product(self.models, self.graphs, self.targets):
            for values in self.machines():
                for policy in self.policies:
                    yield Point(model, graph, target, policy, values)


def _has_json(item: Any) -> bool:
    """Whether a value, or all values of a list, are finite numbers, text, booleans or None."""
    if isinstance(item, Sequence) and not isinstance(item, (str, bytes)):
        return all(map(_has_json, item))
    return math.isfinite(item) if isinstance(item, float) else item is None or isinstance(item, (int, str))


def _drawn(values: Any, source: random.Random) -> Any:
    return values.draw(source) if isinstance(values, Range) else frozen(source.choice(values))


def _with_keys(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data of a sweep file with its tables of values keyed by dotted name."""
    flat = {key: _flat(value) if key in ("grid", "lists") else value for key, value in data.items()}
    drawn = flat.get("random")
    if isinstance(drawn, Mapping) and "values" in drawn:
        flat["random"] = {**drawn, "values": _flat(drawn["values"])}
    return flat


def _flat(data: Any, start: str = "") -> Any:
    """Values by dotted key: without quotes, TOML reads pim.banks as a nested table."""
    if not isinstance(data, Mapping):
        return data
    found: dict[str, Any] = {}
    for key, value in data.items():
        if not isinstance(value, Mapping):
            found[f"{start}{key}"] = value
        elif value and value.keys() <= _RANGE:
            found[f"{start}{key}"] = Range.of(value, f"{start}{key}")
        else:
            found |= _flat(value, f"{start}{key}.")
    return found


def _with_resolved_paths(data: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Plain data with paths relative to the current folder; values that are not lists are left for the reader to
    refuse."""
    moved = dict(data)
    for name in ("models", "graphs"):
        if isinstance(data.get(name), list):
            moved[name] = [_path(item, folder) for item in data[name]]
    if isinstance(data.get("targets"), list):
        is_file = [isinstance(item, str) and item.endswith(".toml") for item in data["targets"]]
        moved["targets"] = [
            _path(item, folder) if file else item for item, file in zip(data["targets"], is_file, strict=True)
        ]
    options = data.get("options")
    if isinstance(options, Mapping) and isinstance(options.get("profile"), str):
        moved["options"] = {**options, "profile": _path(options["profile"], folder)}
    return moved


def _path(item: Any, folder: Path) -> Any:
    if not isinstance(item, str) or not item or item.lower().startswith("zoo:"):
        return item
    return str(folder / item)
