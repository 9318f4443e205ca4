"""Evaluates one machine of a sweep under its policies: the work of one worker, in this process or another."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from functools import cache, cached_property, lru_cache
from typing import Any

from pimflow.bundle.source import model_source
from pimflow.compiled import Machine
from pimflow.compiled.original import read_model
from pimflow.compiler import clean_up, multiplies_narrow, tidy
from pimflow.data import encode
from pimflow.errors import PimflowError, printable
from pimflow.frontend import Loaded
from pimflow.ir import Graph
from pimflow.options import Options, graph_of
from pimflow.records import dataclass
from pimflow.report.policies import compare_graph
from pimflow.runtime.backends import unit_of
from pimflow.runtime.costs import CostModel
from pimflow.search.policy import policy_of, require_offered
from pimflow.search.price_cache import PriceCache, code_fingerprint
from pimflow.search.solver import cache_scope
from pimflow.sweeps.store import Outcome
from pimflow.sweeps.study import Point
from pimflow.targets import Target, load_target, override

FIGURES = (
    "time_us",
    "energy_mj",
    "conv_us",
    "baseline_us",
    "baseline_energy_mj",
    "baseline_conv_us",
    "interval_us",
    "speedup",
    "conv_speedup",
    "rate_speedup",
    "energy_change",
    "candidates",
    "unknown_nodes",
    "spilled_us",
    "spilled_energy_mj",
    "fits",
)
"""The figures stored for a point, by their names in the rows of `PolicyResult`."""
_EXTRA_PACKAGES = ("frontend", "report")
"""Packages that affect figures but not prices."""
_CACHED_MODELS, _CACHED_UNITS = 4, 16


@dataclass(frozen=True)
class Task:
    """Points that differ only in policy, and the identity of their inputs.

    Args:
        points: the points, of one model, graph and machine.
        keys: their keys.
        model_sha256, graph_sha256: digests of the inputs.
        options: other options of `compile`, for all points.
        shown: the keys of the machine whose values are requested.
    """

    points: tuple[Point, ...]
    keys: tuple[str, ...]
    model_sha256: str
    graph_sha256: str
    options: Mapping[str, Any]
    shown: tuple[str, ...]


def key_of(point: Point, model_sha256: str, graph_sha256: str, options: Mapping[str, Any]) -> str:
    """The digest of everything that a point's result depends on: inputs, machine, policy, options, and the code.

    For an invalid machine this includes the values that were set; for a valid one everything that figures depend on,
    but not its name.
    """
    try:
        target = machine_of(point)
        kinds = {device: target.kind(device) for device in target.devices}
        machine: Any = [kinds, {key: encode(value) for key, value in sorted(target.values.items())}]
    except PimflowError:
        machine = [point.target, encode(load_target(point.target)), encode(point.values)]
    saved = [point.policy, {name: encode(value) for name, value in sorted(options.items())}]
    parts = [code_fingerprint(_EXTRA_PACKAGES), model_sha256, graph_sha256, machine, saved]
    return hashlib.sha256(json.dumps(parts, allow_nan=True).encode()).hexdigest()[:32]


def machine_of(point: Point) -> Target:
    """The machine of a point.

    Raises:
        OptionError, TargetError: the machine is invalid.
    """
    return override(_target(point.target), point.values)


def options_of(point: Point, given: Mapping[str, Any], graph_sha256: str = "") -> Options:
    """The options with which a point is compiled.

    Args:
        point: the point.
        given: options of all points.
        graph_sha256: the digest of its graph, by which a graph that was read before is found; "" reads it.

    Raises:
        OptionError, TargetError: the machine is invalid.
        GraphDataError: its graph cannot be read.
    """
    graph = _graph(point.graph, graph_sha256) if point.graph else None
    return Options.of(**given, target=machine_of(point), policy=point.policy, graph=graph)


def evaluate(task: Task) -> list[Outcome]:
    """The outcomes of all points of a task. An error in one point is its outcome."""
    bench = _Bench(task)
    return [bench.outcome(point, key) for point, key in zip(task.points, task.keys, strict=True)]


class _Bench:
    """One model on one machine; its policies share prices, only in memory: a sweep would flood the cache on disk."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def outcome(self, point: Point, key: str) -> Outcome:
        """The outcome of one policy."""
        started = time.perf_counter()
        figures: dict[str, Any] = {}
        shown: dict[str, Any] = {}
        status, reason = "ok", ""
        try:
            options = options_of(point, self.task.options, self.task.graph_sha256)
            shown = {name: encode(self.machine.target.values[name]) for name in self.task.shown}
            require_offered(policy_of(options), self.costs.units)
            (result,) = compare_graph(
                self.graph,
                options,
                (point.policy,),
                costs=self.costs,
                measured=self.machine.measured is not None,
                prices=self.prices,
            )
            row = result.as_json()
            figures = {name: row[name] for name in FIGURES}
        except PimflowError as error:
            status, reason = "invalid", str(error)
        except Exception as error:  # the sweep continues; the next run tries this point again
            status, reason = "failed", printable(f"{type(error).__name__}: {' '.join(str(error).split())}")
        return Outcome(key, status, reason, figures, shown, round(time.perf_counter() - started, 3))

    @cached_property
    def options(self) -> Options:
        return options_of(self.task.points[0], self.task.options, self.task.graph_sha256)

    @cached_property
    def machine(self) -> Machine:
        return Machine.of(self.options)

    @cached_property
    def costs(self) -> CostModel:
        machine = self.machine
        return CostModel(machine.target, measured=machine.measured, units=_units(machine.target))

    @cached_property
    def prices(self) -> PriceCache:
        return PriceCache(None, cache_scope(self.costs))

    @cached_property
    def graph(self) -> Graph:
        point, task = self.task.points[0], self.task
        options_json = json.dumps({name: encode(value) for name, value in task.options.items()})
        read = (point.model, task.model_sha256, point.graph, task.graph_sha256, options_json)
        if point.graph:  # the order of its sums depends on the machine
            return clean_up(_loaded(*read).graph, self.machine, self.options).graph
        return _cleaned_up(*read, multiplies_narrow(self.costs))


def _graph(path: str, sha256: str) -> Any:
    return _cached_graph(path, sha256) if sha256 else graph_of(path)


@lru_cache(maxsize=_CACHED_MODELS)
def _cached_graph(path: str, _sha256: str) -> Any:
    return graph_of(path)


@cache
def _target(name: str) -> Target:
    return load_target(name)


@lru_cache(maxsize=_CACHED_MODELS)
def _loaded(model: str, _model_sha256: str, graph: str, graph_sha256: str, options_json: str) -> Loaded:
    """A model in the IR; the digests are part of the cache key, as a worker may outlive a file."""
    return read_model(model_source(model), _read_options(options_json, graph, graph_sha256))


@lru_cache(maxsize=_CACHED_MODELS)
def _cleaned_up(model: str, model_sha256: str, graph: str, graph_sha256: str, options_json: str, narrow: bool) -> Graph:
    """A model that reads no graph, cleaned up: the same for all machines, so that results cached for it are shared."""
    loaded = _loaded(model, model_sha256, graph, graph_sha256, options_json)
    return tidy(loaded.graph, narrow, _read_options(options_json, graph, graph_sha256)).graph


def _read_options(options_json: str, graph: str, graph_sha256: str) -> Options:
    return Options.of(**json.loads(options_json), graph=_graph(graph, graph_sha256) if graph else None)


def _units(target: Target) -> dict[str, Any]:
    """The machine's units: a unit that another machine also has keeps what it has already priced."""
    return {device: _unit(device, target.kind(device), target.units[device]) for device in target.devices[1:]}


@lru_cache(maxsize=_CACHED_UNITS)
def _unit(device: str, kind: str, spec: Any) -> Any:
    return unit_of(kind, device, spec)
