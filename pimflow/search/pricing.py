"""The cost of a candidate: the makespan of the timeline of its rewritten region, cached by content.

One mechanism prices everything: cut the nodes out of the graph, carry out the decisions on them, schedule the result.
All devices synchronise at the end of a region, so the costs of the chosen candidates add up to the makespan of the
whole rewritten graph.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Protocol, TypeVar

from pimflow.errors import PlanError
from pimflow.ir import (
    Decision,
    Graph,
    Node,
    OnDevice,
    Op,
    Parallel,
    Pipeline,
    Plan,
    Refusal,
    SplitColumns,
    SplitEdges,
    SplitK,
    SplitRows,
)
from pimflow.ir.analysis.content import content_of
from pimflow.ir.analysis.padding import uneven_padding
from pimflow.ir.analysis.regions import cut_subgraph, node_columns, node_k, node_rows
from pimflow.passes import Pass, place
from pimflow.passes.rowwise.stages import Spans, rows_made
from pimflow.runtime import timeline
from pimflow.runtime.timeline import Timeline, build_timeline
from pimflow.search import bounds, least_times
from pimflow.search.capacity import Memories, kept_by
from pimflow.search.joined_ways import Variation
from pimflow.search.least_times import LeastTimes
from pimflow.search.price_cache import PriceCache, key_of
from pimflow.search.stage_times import StageTimes


class Costs(least_times.Costs, timeline.Costs, Memories, Protocol):
    """The interface that the search needs from a cost model."""

    @property
    def identity(self) -> str:
        """Everything that prices depend on besides the code, as text."""

    def host_only(self) -> timeline.Costs:
        """The same machine with only the host in use."""

    def refusal(self, graph: Graph, node: Node, device: str, choice: str) -> Refusal | None:
        """Why a node cannot run on a unit under a choice, or None."""

    @property
    def channel_switch_us(self) -> float | None:
        """How long it takes for memory channels to change hands; None if units hold theirs for the whole run."""

    def static_energy_mj(self, makespan_us: float) -> float:
        """The static energy of the board over a run, whatever it does."""

    def workspaces(self, graph: Graph) -> Mapping[str, int]:
        """Bytes that nodes of a placed graph need in addition to their operands and results, by name."""


LONG = 1_500
"""In graphs with more nodes than this, pipelines are listed by rates alone, and only the most promising are bounded by
their stages: tables of the stages of every run take 130 kB per node, and as much time as the rest of the search."""

_TEXTS = 1_000
"""The number of regions whose text, which cache keys are made from, is cached."""


Found = TypeVar("Found")


class _ByName(dict[str, Found]):
    """Lower bounds on the times of nodes, by name, computed when first needed."""

    def __init__(self, graph: Graph, find: Callable[[Node], Found]) -> None:
        super().__init__()
        self._graph, self._find = graph, find

    def __missing__(self, name: str) -> Found:
        found = self[name] = self._find(self._graph.node(name))
        return found


class Pricer:
    """Prices decisions over nodes of one graph in microseconds, each content once.

    `built` counts the candidates that had to be rewritten.
    """

    def __init__(self, graph: Graph, costs: Costs, prices: PriceCache) -> None:
        self.graph = graph
        self.costs = costs
        self.built = 0
        self._prices = prices
        self._outputs = frozenset(graph.outputs)
        self._capable: dict[tuple[str, str, str], bool] = {}
        self._bounds = bounds.Bounds(graph, costs)
        self._times = LeastTimes(graph, costs)
        self._stages = StageTimes(self._bounds, costs.target.host)
        devices = (costs.target.host, *costs.units)
        whole_us, first_us = self._times.whole_us, self._times.first_us
        self._whole_us = {device: _ByName(graph, partial(whole_us, device=device)) for device in devices}
        self._first_us = {device: _ByName(graph, partial(first_us, device=device)) for device in devices}
        rows, columns = self._times.rows_on, self._times.columns_on
        self._rows = {device: _ByName(graph, partial(rows, device=device)) for device in devices}
        self._columns = {device: _ByName(graph, partial(columns, device=device)) for device in devices}
        self._last_run: tuple[tuple[str, ...], tuple[str, ...], float] = ((), (), 0.0)
        self._balanced: dict[tuple[str, str, str], int] = {}
        self._kept: dict[tuple[Decision, ...], Mapping[str, int]] = {(): {}}
        self._nodes_text = lru_cache(maxsize=_TEXTS)(partial(_nodes_text, graph, self._outputs))

    def least(self, decisions: tuple[Decision, ...]) -> float:
        """A lower bound on the time of the decisions before anything is laid out: by stages for pipelines, by rates for
        other divided nodes."""
        if len(decisions) != 1:
            return self._bounds.lower_bound_us(decisions)
        (only,) = decisions
        if isinstance(only, Pipeline):
            by_stages = 0.0 if len(self.graph.nodes) > LONG else self._stages.lower_bound_us(only)
            return by_stages or self._busiest_us(only)
        if isinstance(only, Parallel):
            return self._bounds.joined_us(only)
        if isinstance(only, SplitRows | SplitColumns | SplitK):
            return self._least_split_us(only)
        return self._bounds.lower_bound_us(decisions)

    def _least_split_us(self, split: SplitRows | SplitColumns | SplitK) -> float:
        """The longer of the minimum times of both parts of a node: at the best rate of any share, and, of rows and
        columns, for as many of them."""
        node, host, unit = split.node, self.costs.target.host, split.device
        on_host, size = self._count_on_host(split)
        part, whole_us, first_us = on_host / size, self._whole_us, self._first_us
        least_us = max(part * whole_us[host][node], (1 - part) * whole_us[unit][node])
        if isinstance(split, SplitK):
            return least_us + self._bounds.added_us(split)
        if isinstance(split, SplitRows):
            least_us = max(least_us, first_us[host][node], first_us[unit][node])
        if not 0 < on_host < size:
            return least_us
        shares = self._rows if isinstance(split, SplitRows) else self._columns
        return max(least_us, shares[host][node].least_us(on_host), shares[unit][node].least_us(size - on_host))

    def least_varied(self, variation: Variation) -> float:
        """`least` for a variation of joined decisions, without putting it together."""
        return self._bounds.varied_us(variation.joined, variation.changes)

    def _busiest_us(self, pipeline: Pipeline) -> float:
        """A lower bound on the time of a pipeline's busiest device by rates alone, which does not depend on the number
        of stages."""
        run, devices, us = self._last_run
        if pipeline.host_rows:
            return self._busiest_of_shares_us(pipeline)
        if run is not pipeline.run or devices is not pipeline.devices:  # versions that differ in stages are adjacent
            busy = dict.fromkeys([self.costs.target.host, *pipeline.devices], 0.0)
            for name, device in zip(pipeline.run, pipeline.devices, strict=True):
                busy[device] += self._whole_us[device][name]
            us = max(busy.values())
            self._last_run = pipeline.run, pipeline.devices, us
        return us

    def _busiest_of_shares_us(self, pipeline: Pipeline) -> float:
        """Like `_busiest_us`, for rows divided within stages."""
        whole_us, host = self._whole_us, self.costs.target.host
        busy = dict.fromkeys([host, *pipeline.devices], 0.0)
        for name, device, rows in zip(pipeline.run, pipeline.devices, pipeline.host_rows, strict=True):
            on_host = sum(rows) / node_rows(self.graph, self.graph.node(name)) if rows else 0.0
            busy[device] += (1 - on_host) * whole_us[device][name]
            busy[host] += on_host * whole_us[host][name] if rows else 0.0
        return max(busy.values())

    def _count_on_host(self, split: SplitRows | SplitColumns | SplitK) -> tuple[int, int]:
        """How many of a node's rows, columns or inner elements the host has, and how many there are."""
        node = self.graph.node(split.node)
        if isinstance(split, SplitRows):
            return split.gpu_rows, node_rows(self.graph, node)
        if isinstance(split, SplitK):
            return split.gpu_k, node_k(self.graph, node)
        return split.gpu_columns, node_columns(self.graph, node)

    def refine(self, decisions: tuple[Decision, ...], least: float) -> tuple[float | None, bool]:
        """A refined lower bound on the cost of the decisions, or the price, and whether it is the price (None: they
        cannot be carried out).

        Bounds come before prices: parts are laid out, and scheduled if the price follows from them. Otherwise the work
        of units is priced piece by piece as long as the bound does not exceed `least`, and only then are the decisions
        carried out.

        A cached price replaces only the last step: parts are priced in any case, because bounds of other decisions
        contain them, and the search would go another way if those were lower.
        """
        known = self._by_rows(decisions[0])
        if known <= least and isinstance(decisions[0], Pipeline):
            known = self._stages.shortest_us(decisions[0])
        if known <= least:
            known = self._bounds.lower_bound_us(decisions)
        if known > least:
            return known, False
        time_us = self._bounds.time_from_parts_us(decisions)
        if time_us is not None:
            return self._keep(key_of(self.content_text(decisions)), time_us), True
        known = self._bounds.tighten(decisions)
        if known > least:
            return known, False
        key = key_of(self.content_text(decisions))
        if key not in self._prices:
            return self._keep(key, self._carried_out_us(decisions)), True
        return self._prices.get(key), True

    def _by_rows(self, decision: Decision) -> float:
        """A lower bound on a decision's time by the rows of its parts, if that was not computed when it was listed;
        otherwise 0."""
        if isinstance(decision, SplitRows):
            return self._bounds.split_us(decision)
        if isinstance(decision, Pipeline) and len(self.graph.nodes) > LONG:
            return self._stages.lower_bound_us(decision)
        return 0.0

    def cost(self, decisions: tuple[Decision, ...]) -> float | None:
        """The cost of the decisions; None if they cannot be carried out."""
        key = key_of(self.content_text(decisions))
        return self._prices.get(key) if key in self._prices else self._price(key, decisions)

    def content_text(self, decisions: Sequence[Decision]) -> str:
        """`content_text` of decisions over nodes of the graph; the text of the nodes is shared by all decisions about
        them."""
        names = _names(decisions)
        return _content_text(self._nodes_text(names), names, decisions)

    def time_us(self, decisions: tuple[Decision, ...]) -> float:
        """The time of decisions that can be carried out, from the start of the first to the end of the last."""
        cost = self.cost(decisions)
        assert cost is not None, "the decisions have been priced"
        return cost

    def _price(self, key: str, decisions: tuple[Decision, ...]) -> float | None:
        time_us = self._bounds.time_from_parts_us(decisions)
        return self._keep(key, self._carried_out_us(decisions) if time_us is None else time_us)

    def _keep(self, key: str, us: float | None) -> float | None:
        """The cost for a time, stored in the cache; None for an infinite time, which cannot be carried out."""
        cost = us if us is not None and math.isfinite(us) else None
        self._prices.put(key, cost)
        return cost

    def _carried_out_us(self, decisions: tuple[Decision, ...]) -> float | None:
        rewritten = self._rewritten(decisions)
        timeline = None if rewritten is None else self._timeline(rewritten)
        return None if timeline is None else timeline.makespan_us

    def kept(self, decisions: tuple[Decision, ...]) -> Mapping[str, int]:
        """What decisions that can be carried out store in the memories of units, by device."""
        found = self._kept.get(decisions)
        if found is None:
            text = self.content_text(decisions)
            found = self._kept[decisions] = self._kept_by(decisions, text)
        return found

    def _kept_by(self, decisions: tuple[Decision, ...], text: str) -> dict[str, int]:
        keys = {device: key_of(f"kept by {device} of\n{text}") for device in self.costs.capacities}
        if not all(key in self._prices for key in keys.values()):
            rewritten = self._rewritten(decisions)
            assert rewritten is not None, "the decisions have been priced"
            for device, amount in kept_by(rewritten, self.costs).items():
                self._prices.put(keys[device], float(amount))
        return {device: int(self._prices.get(key) or 0) for device, key in keys.items()}

    def can_run(self, node: Node, device: str, choice: str) -> bool:
        """Whether the whole node can run on a unit under a choice of its backend."""
        key = (node.name, device, choice)
        if key not in self._capable:
            self._capable[key] = self.costs.refusal(self.graph, node, device, choice) is None
        return self._capable[key]

    def rows_made(self, run: tuple[str, ...], stage_rows: tuple[int, ...]) -> Mapping[str, Spans] | Refusal:
        """By node of a run, the rows of it that every stage makes, top ones first; runs with the same end share
        them."""
        end = self._bounds.runs.end(run, stage_rows, bottom_first=False)
        if end is None:
            return rows_made(self.graph, run, stage_rows, bottom_first=False)
        return {name: end.layers[end.place[name]].rows for name in run}

    def balanced_rows(self, node: Node, device: str, choice: str) -> int:
        """The number of a node's rows on the host, of two rows or more, for which the host and a unit take about the
        same time."""
        key = (node.name, device, choice)
        if key not in self._balanced:
            self._balanced[key] = self._balance(node, *key[1:])
        return self._balanced[key]

    def _balance(self, node: Node, device: str, choice: str) -> int:
        def times(on_host: int) -> tuple[float, float]:
            return self._bounds.shares_us(node, on_host, device, choice)

        rows = node_rows(self.graph, node)
        first = bisect_left(range(1, rows), True, key=lambda count: times(count)[0] >= times(count)[1])
        around = [count for count in (first, first + 1) if 0 < count < rows]
        return min(around, key=lambda count: max(times(count)), default=0)

    def _rewritten(self, decisions: tuple[Decision, ...]) -> Graph | None:
        """The region with the decisions carried out; None if they cannot be."""
        self.built += 1
        region = cut_subgraph(self.graph, [name for decision in decisions for name in decision.nodes])
        plan = Plan("candidate", decisions, 0.0, 0.0, host=self.costs.target.host)
        try:
            for step in rewrites(plan, self.costs):
                region = step.run(region).graph
        except PlanError:  # for example, a stage lies wholly in padding: asking first would lay everything out twice
            return None
        return region

    def _timeline(self, graph: Graph) -> Timeline | None:
        """The schedule of a rewritten region; None if a unit refuses a part of it."""
        for node in graph.nodes:
            device, choice = node.device or "", node.placement.choice or ""
            if device in self.costs.units and self.costs.refusal(graph, node, device, choice) is not None:
                return None
        return build_timeline(graph, self.costs.target, self.costs, switching=False)


def rewrites(plan: Plan, costs: Costs) -> tuple[Pass, ...]:
    """The passes that turn a cleaned-up graph into the one that runs according to a plan, on the machine that is
    priced."""
    return place(plan, costs.readouts, costs.symmetric_padding)


def host_alone(graph: Graph, costs: Costs) -> Graph:
    """A cleaned-up graph as the host alone runs it, including the Pads that its library's convolutions need.

    If `MovementElimination` was left out, movements are decided within a region each, as in any other plan.
    """
    padded = costs.symmetric_padding and any(any(uneven_padding(node.op)) for node in graph.nodes)
    if not padded and all(node.placement.movement is not None for node in graph.nodes if node.op.is_movement):
        return graph
    host = costs.target.host
    plan = Plan("host", tuple(OnDevice(node.name, host) for node in graph.nodes), 0.0, 0.0, host=host)
    for step in rewrites(plan, costs):
        graph = step.run(graph).graph
    return graph


def alone_times_us(graph: Graph, costs: Costs) -> dict[str, float]:
    """The time of every node of a cleaned-up graph by itself on the host, including the Pad inserted before it."""
    alone, host = host_alone(graph, costs), costs.host_only()
    times = {node.name: 0.0 for node in graph.nodes}
    for node in alone.nodes:
        name = node.placement.origin or node.name
        times[name] = times.get(name, 0.0) + host.node_cost(alone, node).time_us
    return times


def content_text(graph: Graph, graph_outputs: frozenset[str], decisions: Sequence[Decision]) -> str:
    """The text that the cost of decisions depends on, without names: ops, shapes, types, wiring, and what is decided.

    Values are numbered in order of appearance. A value from outside is identified by whether it is a constant (its
    content does not matter, except for the positions in `Op.content_positions`), a value made inside by whether it is
    read outside.
    """
    names = _names(decisions)
    return _content_text(_nodes_text(graph, graph_outputs, names), names, decisions)


def _names(decisions: Sequence[Decision]) -> tuple[str, ...]:
    return tuple([name for decision in decisions for name in decision.nodes])


def _content_text(of_nodes: str, names: Sequence[str], decisions: Sequence[Decision]) -> str:
    number = {name: index for index, name in enumerate(names)}
    return "\n".join([of_nodes, *[_decision_text(decision, number) for decision in decisions]])


def _nodes_text(graph: Graph, graph_outputs: frozenset[str], names: Sequence[str]) -> str:
    """The part of `content_text` about the nodes themselves."""
    nodes = [graph.node(name) for name in names]
    number = {name: index for index, name in enumerate(names)}
    values: dict[str, int] = {}
    lines: list[str] = []

    def refer(name: str) -> str:
        if not name:
            return "-"
        if name in values:
            return str(values[name])
        values[name] = len(values)
        value = graph.value(name)
        kind = "c" if graph.is_constant(name) else "i" if name in graph.inputs else "v"
        return f"{values[name]}{kind}{value.shape}{value.dtype}"

    for node in nodes:
        inputs = " ".join(refer(name) for name in node.inputs)
        outputs = " ".join(
            refer(name) + ("!" if _leaves(graph, name, number, graph_outputs) else "") for name in node.outputs
        )
        fused, verdict = node.placement.fused_into, node.placement.movement
        into = "" if fused is None else f" fused {number.get(fused, 'outside')}"
        moved = "" if verdict is None else f" free={verdict.free} copied={verdict.copied}"
        padding = node.placement.padding
        moved += "" if padding is None else f" padding={padding.free}"
        narrow = node.placement.narrow
        moved += "" if narrow is None else f" narrow={narrow.dtype}"
        access = node.placement.access
        moved += "" if access is None else f" access={access}"
        content = content_of(graph, node)
        moved += f" content={content}" if content else ""
        lines.append(f"{_op_text(node.op)} {inputs} -> {outputs}{into}{moved}")
    return "\n".join(lines)


@lru_cache(maxsize=4096)
def _op_text(op: Op) -> str:
    return repr(op)


def _leaves(graph: Graph, value: str, inside: Mapping[str, int], graph_outputs: frozenset[str]) -> bool:
    return value in graph_outputs or any(user.name not in inside for user in graph.users(value))


def _decision_text(decision: Decision, number: Mapping[str, int]) -> str:
    if isinstance(decision, OnDevice):
        return f"on {decision.device} {number[decision.node]} {decision.choice}"
    if isinstance(decision, SplitRows):
        followers = [number[name] for name in decision.followers]
        return f"split {number[decision.node]} {decision.gpu_rows} {decision.device} {decision.choice} {followers}"
    if isinstance(decision, SplitColumns):
        followers = [number[name] for name in decision.followers]
        columns, device, choice = decision.gpu_columns, decision.device, decision.choice
        return f"columns {number[decision.node]} {columns} {device} {choice} {followers}"
    if isinstance(decision, SplitK):
        return f"k {number[decision.node]} {decision.gpu_k} {decision.device} {decision.choice}"
    if isinstance(decision, SplitEdges):
        group, at_least, device, choice = decision.group, decision.at_least, decision.device, decision.choice
        return f"edges {number[decision.node]} {group} {at_least} {device} {choice}"
    if isinstance(decision, Parallel):
        return f"parallel {[[_decision_text(item, number) for item in branch] for branch in decision.branches]}"
    run = [number[name] for name in decision.run]
    divided = f" {decision.host_rows}" if decision.host_rows else ""
    return f"pipeline {run} {decision.devices} {decision.stage_rows} {decision.choice} {decision.bottom_first}{divided}"
