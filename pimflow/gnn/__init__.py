"""Aggregations over graphs on UPMEM modules, tuned and computed; training epochs for each placement of the features.

from pimflow import gnn
graph = gnn.Graph.load("reddit.npz")
tuning = gnn.tune(graph, features=256, target="upmem", dtype="int32")
print(tuning.text())
result = gnn.aggregate(graph, x, tuning.strategy)
print(gnn.epoch("twitter7", "sage", target="rtx3090").text())
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast, get_args

import numpy as np
import numpy.typing as npt

from pimflow.codegen.upmem.strategy import Strategy
from pimflow.errors import InputDataError, OptionError, TargetError, choice
from pimflow.gnn.loop import epoch
from pimflow.gnn.sampled_epoch import LOADERS
from pimflow.ir import Builder, Refusal, Spmm
from pimflow.records import dataclass
from pimflow.report.epoch import Epoch
from pimflow.report.tuning import Tuning
from pimflow.runtime.backends import host_of, units_of
from pimflow.runtime.upmem.baselines import grande, published_tuner, sparsep
from pimflow.runtime.upmem.edge_parts import EdgeParts
from pimflow.runtime.upmem.pricing import Aggregation, AggregationCost, Pricing
from pimflow.runtime.upmem.quantize import overflow
from pimflow.runtime.upmem.tuner import Progress, Tuner
from pimflow.runtime.upmem.values import aggregated
from pimflow.sparse import Graph
from pimflow.targets import Target, load_target
from pimflow.targets.schema.upmem import ElementType, UpmemSpec

__all__ = ["LOADERS", "Aggregated", "Epoch", "Graph", "Strategy", "Tuning", "aggregate", "epoch", "tune"]

_MAX_FEATURES = 1 << 20


@dataclass(frozen=True, eq=False)
class Aggregated:
    """The values that an aggregation computed, and its cost.

    Args:
        values: float32 [destinations, features].
        strategy: how the work was divided among the modules.
        cost: time by stage, and energy of the modules.
    """

    values: npt.NDArray[np.float32]
    strategy: Strategy
    cost: AggregationCost

    def __repr__(self) -> str:
        return f"Aggregated({self.values.shape}, {self.strategy}, {self.cost.time_us / 1e3:,.2f} ms)"


def tune(
    graph: Graph,
    features: int,
    target: str | Target = "upmem",
    dtype: str | None = None,
    *,
    wide: bool = False,
    heads: int = 0,
    backward: bool = False,
    exhaustive: bool = False,
    baselines: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Tuning:
    """Rank all strategies for an aggregation over a graph, and compare with the machine's other devices.

    Args:
        graph: its rows are destinations.
        features: number of columns to aggregate.
        target: a machine with UPMEM modules: a name, a TOML file, or a `Target`.
        dtype: int8, int16, int32 or fp32; the target's own if None.
        wide: accumulate integers in int64.
        heads: number of weights per edge that are computed at run time, such as those of attention, each for an equal
            share of the features; they are loaded for every aggregation. 0: edges have the graph's own weights, which
            are loaded once.
        backward: also rank the aggregation of gradients, which follows the edges in the opposite direction.
        exhaustive: time every strategy core by core, instead of only the most promising ones.
        baselines: also price what SparseP, GraNDe and PyGim's published tuner would do on the same modules.
        progress: called with a line of text from time to time.

    Raises:
        OptionError: a value is out of range.
        TargetError: the target is unknown, or has no UPMEM modules.
    """
    machine, spec = modules_of(target)
    aggregation = _aggregation(features, dtype, wide, heads, spec)
    say: Progress = progress or (lambda line: None)
    tuner = Tuner(spec, graph, aggregation)
    ranking = tuner.exhaustive() if exhaustive else tuner.rank(say)
    reverse = None
    if backward:
        tuner_back = Tuner(spec, graph.transposed(), aggregation)
        reverse = tuner_back.exhaustive() if exhaustive else tuner_back.rank(say)
    published = _published(spec, graph, aggregation) if baselines else None
    others = (
        {"SparseP": sparsep(spec, graph, aggregation), "GraNDe": grande(spec, graph, aggregation)} if baselines else {}
    )
    return Tuning(
        machine.name,
        graph,
        aggregation,
        ranking,
        tuner.alternatives(ranking),
        other_devices_us(machine, graph, aggregation.features, heads),
        others,
        published,
        overflow(graph, aggregation.element, wide, computed=aggregation.computed),
        reverse,
    )


def aggregate(
    graph: Graph,
    features: npt.ArrayLike,
    strategy: Strategy | str | None = None,
    target: str | Target = "upmem",
    dtype: str | None = None,
    *,
    wide: bool = False,
    weights: npt.ArrayLike | None = None,
) -> Aggregated:
    """Sum the features of every destination's sources, computing the values exactly as the modules do under a strategy.

    Args:
        graph: its rows are destinations; edges with weights multiply by them.
        features: real numbers [sources, columns].
        strategy: a `Strategy`, its text, or None for the best one.
        target: a machine with UPMEM modules.
        dtype: int8, int16, int32 or fp32; the target's own if None.
        wide: accumulate integers in int64.
        weights: edge weights [edges] or [edges, heads] in the order of the graph's rows, computed for this aggregation
            and loaded for it. None: the graph's own.

    Raises:
        InputDataError: features or weights do not fit the graph, or their sums do not fit the accumulator.
        OptionError: the strategy is unknown, or cannot run on the machine.
        TargetError: the target is unknown, or has no UPMEM modules.
    """
    _, spec = modules_of(target)
    x = _checked_features(graph, features)
    computed = None if weights is None else _checked_weights(graph, weights, x.shape[1])
    aggregation = _aggregation(x.shape[1], dtype, wide, 0 if computed is None else computed[:1].size, spec)
    narrow = overflow(graph, aggregation.element, wide, computed)
    if narrow is not None:
        raise InputDataError(narrow.reason, narrow.remedy)
    chosen = Strategy.parse(strategy) if isinstance(strategy, str) else strategy
    if chosen is None:
        ranking = Tuner(spec, graph, aggregation).rank()
        if not ranking.rows:
            raise OptionError(*_no_strategy_error(ranking.refusals))
        chosen = ranking.best.strategy
    cost = Pricing(spec, aggregation, EdgeParts(graph)).cost(chosen)
    if isinstance(cost, Refusal):
        raise OptionError(f"{chosen}: {cost.reason}", cost.remedy)
    return Aggregated(aggregated(spec, graph, x, chosen, aggregation, computed), chosen, cost)


def other_devices_us(machine: Target, graph: Graph, features: int, heads: int = 0) -> dict[str, float]:
    """The time in microseconds of an aggregation on each device of a machine that is not a UPMEM module.

    These devices are the host and any other unit that accepts the aggregation, including copies to it and back. With
    `heads`, edges have that many weights, computed at run time; with 0, the graph's own.
    """
    build = Builder("aggregation")
    x = build.input(graph.num_src, *((heads, features // heads) if heads else (features,)), name="x")
    known = (graph.rowptr, graph.col) if heads else (graph.rowptr, graph.col, graph.weight)
    edges = [build.constant(array) for array in known if array is not None]
    if heads:
        edges.append(build.input(graph.num_edges, heads, name="weights"))
    program = build.graph(build.op(Spmm(), x, *edges, name="spmm"))
    (node,) = program.nodes
    found = {machine.host: host_of(machine).cost(program, node)}
    times = {device: sum(cost.time_parts_us.values()) for device, cost in found.items()}
    for device, unit in units_of(machine).items():
        work = Refusal("") if isinstance(machine.units[device], UpmemSpec) else unit.work(program, node)
        cost = work if isinstance(work, Refusal) else unit.cost(work, unit.resolve(""))
        if not isinstance(cost, Refusal):
            moved = unit.transfer(graph.num_src * features, graph.num_dst * features)
            times[device] = cost.time_us + (0.0 if moved is None else moved.load_us + moved.store_us)
    return times


def modules_of(target: str | Target) -> tuple[Target, UpmemSpec]:
    """A target and its UPMEM modules.

    Raises:
        TargetError: it is unknown, or has none.
    """
    machine = target if isinstance(target, Target) else load_target(target)
    for unit in machine.units.values():
        if isinstance(unit, UpmemSpec):
            return machine, unit
    raise TargetError(f"target {machine.name!r} has no UPMEM modules", "choose upmem or upmem-gpu")


def _aggregation(features: int, dtype: str | None, wide: bool, heads: int, spec: UpmemSpec) -> Aggregation:
    if not _is_whole(features) or not 0 < features <= _MAX_FEATURES:
        raise OptionError(f"features is {features!r}", f"give a whole number between 1 and {_MAX_FEATURES}")
    element = spec.operand if dtype is None else choice("dtype", dtype, get_args(ElementType))
    if wide and element == "fp32":
        raise OptionError("fp32 cannot be accumulated in int64", "leave out wide, or choose an integer dtype")
    if not _is_whole(heads) or heads < 0 or features % max(heads, 1):
        raise OptionError(f"heads is {heads!r}", f"give a number that divides {features} features, or 0 for none")
    return Aggregation(int(features), cast("ElementType", element), wide, max(int(heads), 1), heads > 0)


def _is_whole(number: object) -> bool:
    return isinstance(number, (int, np.integer)) and not isinstance(number, bool)


def _checked_features(graph: Graph, features: npt.ArrayLike) -> npt.NDArray[Any]:
    x = np.asarray(features)
    if x.ndim != 2 or x.shape[0] != graph.num_src or x.shape[1] == 0:
        raise InputDataError(
            f"features have shape {list(x.shape)}, but the graph has {graph.num_src} sources",
            "give one row per source: [sources, columns]",
        )
    return _finite("features", x)


def _checked_weights(graph: Graph, weights: npt.ArrayLike, columns: int) -> npt.NDArray[Any]:
    values = np.asarray(weights)
    heads = values.shape[1] if values.ndim == 2 else 1
    if values.ndim not in (1, 2) or len(values) != graph.num_edges or not heads or columns % heads:
        raise InputDataError(
            f"weights have shape {list(values.shape)} for {graph.num_edges} edges and {columns} columns",
            "give [edges], or [edges, heads] with heads that divide the columns",
        )
    return _finite("weights", values)


def _finite(what: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if values.dtype.kind not in "iuf" or not np.isfinite(values).all():
        raise InputDataError(f"{what} hold {values.dtype.name} that are not all finite numbers", "give real numbers")
    return values


def _published(spec: UpmemSpec, graph: Graph, aggregation: Aggregation) -> Any:
    choice = published_tuner(spec, graph, aggregation)
    if isinstance(choice, Refusal):
        return choice
    cost = Pricing(spec, aggregation, EdgeParts(graph)).cost(choice.strategy)
    return cost if isinstance(cost, Refusal) else (choice, cost)


def _no_strategy_error(refusals: dict[Strategy, Refusal]) -> tuple[str, str]:
    least = min(refusals.values(), key=lambda refusal: refusal.gap or 0)
    return f"no strategy can run: {least.reason}", least.remedy or "choose a machine with more ranks"
