"""Prices the ways to run a node, alone on the machine, and determines how every unit compares with the host."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pimflow.errors import ArgumentError, did_you_mean
from pimflow.ir import (
    Decision,
    Graph,
    Node,
    OnDevice,
    Pipeline,
    Plan,
    Refusal,
    SplitColumns,
    SplitEdges,
    SplitK,
    SplitRows,
)
from pimflow.ir.analysis.regions import cut_subgraph, node_columns, node_k, node_rows
from pimflow.ir.plan import Single, singles
from pimflow.records import NamedTuple
from pimflow.report.break_even import Slower, break_even_needs, compare_with_host, rewritten
from pimflow.report.explanation import Alternative, Explanation, Need, Verdict
from pimflow.report.measures import measure
from pimflow.report.plan_report import PlanReport
from pimflow.report.roofline import moved_bytes
from pimflow.runtime.costs import CostModel
from pimflow.runtime.gpu.measured import MeasuredTable
from pimflow.runtime.gpu.work import node_work
from pimflow.search.candidates import Candidates
from pimflow.search.order import Unit, execution_order, units_of
from pimflow.search.policy import TENTHS, Policy, Space
from pimflow.search.price_cache import PriceCache
from pimflow.search.pricing import Pricer, content_text
from pimflow.targets import TargetRecord


def explain_node(
    graph: Graph,
    plan: Plan,
    report: PlanReport,
    name: str,
    costs: CostModel,
    measured: MeasuredTable | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Explanation:
    """Prices the ways to run one node.

    Args:
        graph: after the clean-up passes, as the search saw it.
        plan: what runs where.
        report: the report on the plan.
        name: the node; for a node that is fused into another, everything refers to both.
        costs: of the machine.
        measured: kernel times that take precedence over the host's model.
        progress: called with a line of text from time to time.

    Raises:
        ArgumentError: there is no such node.
    """
    rows = {row.name: row for row in report.nodes}
    if name not in rows:
        raise ArgumentError(
            f"the model has no node {name!r}", did_you_mean(name, rows, 3) or "`pimflow inspect` lists them"
        )
    unit = next(unit for unit in units_of(execution_order(graph)) if any(node.name == name for node in unit.nodes))
    region, anchor, decision = _region_of(graph, plan, unit)
    work = None if anchor.op.is_movement else node_work(graph, anchor, element_bytes=0)
    return Explanation(
        machine=TargetRecord.of(costs.target),
        node=rows[name],
        shape=graph.value(anchor.output).type_text if anchor.output else "",
        macs=0 if work is None else work.macs,
        bytes=moved_bytes(region, costs.host.element_bytes),
        run_us=report.result.time_us,
        part_of=_decided_with(decision, anchor, name),
        host=costs.target.host,
        alternatives=tuple(_alternatives(region, anchor, decision, costs)),
        verdicts=tuple(_verdict(region, anchor, device, costs, measured, progress) for device in costs.units),
    )


def price_nodes(
    graph: Graph, plan: Plan, names: Collection[str], costs: CostModel, progress: Callable[[str], None]
) -> dict[str, tuple[Alternative, ...]]:
    """The ways to run some nodes, by name: those of `explain_node`, without what would change the decision.

    Args:
        graph: after the clean-up passes, as the search saw it.
        plan: what runs where.
        names: nodes that are not fused into others.
        costs: of the machine.
        progress: called with a line of text from time to time.
    """
    found: dict[str, tuple[Alternative, ...]] = {}
    known: dict[str, tuple[Alternative, ...]] = {}
    for unit in units_of(execution_order(graph)):
        name = unit.anchor.name
        if name in names:
            progress(f"pricing alternatives: {len(found)} of {len(names)} nodes")
            region, anchor, decision = _region_of(graph, plan, unit)
            key = _content_key(region, _own_decision(decision, anchor), costs.target.host)
            if key not in known:
                known[key] = tuple(_alternatives(region, anchor, decision, costs))
            found[name] = known[key]
    return found


def _content_key(region: Graph, decision: Single, host: str) -> str:
    """Everything that a region's alternatives depend on: the nodes without their names, and the decision on them."""
    inside = [decision] if region.node_by_name.keys() >= set(decision.nodes) else []
    decided = {name for one in inside for name in one.nodes}
    others = [OnDevice(node.name, host) for node in region.nodes if node.name not in decided]
    text = content_text(region, frozenset(region.outputs), [*inside, *others])
    return text if inside else f"{text}\nwith others"


def _own_decision(decision: Decision, anchor: Node) -> Single:
    """The part of a region's decision that is about a node."""
    return next(item for item in singles(decision) if anchor.name in item.nodes)


def compare_units(
    graph: Graph,
    plan: Plan,
    names: Sequence[str],
    most: int,
    costs: CostModel,
    measured: MeasuredTable | None,
    progress: Callable[[str], None],
) -> dict[str, tuple[Verdict, ...]]:
    """The verdicts of `explain_node` on the units except the host for some nodes, by name.

    What would change a decision takes long to find out: it is done once for equal work, and for the first `most` kinds
    of work in the order of `names`.

    Args:
        graph, plan, costs, measured, progress: see `explain_node`.
        names: nodes; those that are fused into others are omitted.
        most: the maximum number of kinds of work to examine.
    """
    units = {unit.anchor.name: unit for unit in units_of(execution_order(graph))}
    compared: dict[str, dict[str, _Compared]] = {}
    examined: dict[str, dict[Any, Slower]] = {device: {} for device in costs.units}
    for name in filter(units.__contains__, names):
        region, anchor, _ = _region_of(graph, plan, units[name])
        compared[name] = {device: _compare(region, anchor, device, costs) for device in costs.units}
        for device, found in compared[name].items():
            if found.slower is not None and sum(map(len, examined.values())) < most:
                examined[device].setdefault(found.work, found.slower)
    needs = {
        device: dict(zip(nodes, break_even_needs([*nodes.values()], device, costs, measured, progress), strict=True))
        for device, nodes in examined.items()
    }
    return {
        name: tuple([found.with_needs(needs[device].get(found.work)) for device, found in by_device.items()])
        for name, by_device in compared.items()
    }


class _Compared(NamedTuple):
    """How a unit compares with the host for a node.

    Args:
        verdict: without what would change it.
        work: the unit's work and the host's time; nodes with equal ones have the same break-even values.
        slower: the node, if the unit is slower.
    """

    verdict: Verdict
    work: Any
    slower: Slower | None

    def with_needs(self, needs: tuple[Need, ...] | None) -> Verdict:
        """The verdict with what would change it, if anything has to."""
        return self.verdict if self.slower is None else replace(self.verdict, needs=needs)


def _compare(region: Graph, anchor: Node, device: str, costs: CostModel) -> _Compared:
    host_us = costs.host_only().node_cost(region, anchor).time_us
    verdict = compare_with_host(region, anchor, device, costs)
    time_us = verdict.time_us
    slower = None if time_us is None or time_us <= host_us else Slower(region, anchor, time_us)
    return _Compared(verdict, (costs.work(region, anchor, device), host_us), slower)


def _region_of(graph: Graph, plan: Plan, unit: Unit) -> tuple[Graph, Node, Decision]:
    """A node with everything fused into it as a separate graph, the node there, and the plan's decision."""
    region = cut_subgraph(graph, [node.name for node in unit.nodes])
    name = unit.anchor.name
    return region, region.node(name), next(item for item in plan.decisions if name in item.nodes)


def _alternatives(region: Graph, anchor: Node, region_decision: Decision, costs: CostModel) -> Iterator[Alternative]:
    host, chosen = costs.target.host, _own_decision(region_decision, anchor)
    alone = Plan("explain", tuple(OnDevice(node.name, host) for node in region.nodes), 0.0, 0.0, host=host)
    on_host = isinstance(chosen, OnDevice) and chosen.device == host
    for what, model, is_chosen in (("alone", costs.host_only(), on_host), ("beside the others", costs, False)):
        yield Alternative(f"{host.upper()} {what}", "", measure(rewritten(region, alone, model), model), is_chosen)
    for decisions in _possible_decisions(region, chosen, costs):
        graph = rewritten(region, replace(alone, decisions=decisions), costs)
        decision = next(item for item in decisions if anchor.name in item.nodes)
        arranged = "; ".join(dict.fromkeys(filter(None, (_arrangement(graph, node, costs) for node in graph.nodes))))
        yield Alternative(
            _decision_text(decision, region, anchor, host), arranged, measure(graph, costs), decision == chosen
        )


def _possible_decisions(region: Graph, chosen: Single, costs: CostModel) -> Iterator[tuple[Decision, ...]]:
    """The possible decisions for a region: units' choices one by one, splits on a grid, and the plan's decision."""
    choices = dict.fromkeys(choice for unit in costs.units.values() for choice in unit.choices)
    spaces = (*(Space(choice) for choice in choices), Space("auto", split=TENTHS, columns=True, inner=True, edges=True))
    pricer = Pricer(region, costs, PriceCache(None, "explain"))
    found = dict.fromkeys(candidate.decisions for candidate in Candidates(region, Policy("", "", spaces), pricer))
    if isinstance(chosen, SplitRows | SplitColumns | SplitK | SplitEdges):
        others = [OnDevice(node.name, costs.target.host) for node in region.nodes if node.name not in chosen.nodes]
        found |= dict.fromkeys([(chosen, *others)])
    for decisions in found:
        names = sorted(name for decision in decisions for name in decision.nodes)
        leaves = any(not isinstance(item, OnDevice) or item.device in costs.units for item in decisions)
        if leaves and names == sorted(region.node_by_name) and pricer.cost(decisions) is not None:
            yield decisions


def _arrangement(graph: Graph, node: Node, costs: CostModel) -> str:
    unit = costs.units.get(node.device or "")
    if unit is None:
        return ""
    work = costs.work(graph, node, unit.device)
    program = work if isinstance(work, Refusal) else unit.program(work, unit.resolve(node.placement.choice or ""))
    return "" if isinstance(program, Refusal) else str(unit.describe(program))


def _decision_text(decision: Decision, region: Graph, anchor: Node, host: str) -> str:
    if isinstance(decision, SplitRows):
        rows = node_rows(region, anchor)
        return f"{rows - decision.gpu_rows} of {rows} rows on {decision.device.upper()}"
    if isinstance(decision, SplitColumns):
        columns = node_columns(region, anchor)
        return f"{columns - decision.gpu_columns} of {columns} columns on {decision.device.upper()}"
    if isinstance(decision, SplitK):
        inner = node_k(region, anchor)
        return f"{inner - decision.gpu_k} of K = {inner} on {decision.device.upper()}"
    if isinstance(decision, SplitEdges):
        return f"groups of {decision.group} sources with {decision.at_least} edges or more on {decision.device.upper()}"
    assert isinstance(decision, OnDevice)
    return f"{decision.device.upper()}, {decision.choice}" if decision.device != host else host.upper()


def _decided_with(decision: Decision, anchor: Node, name: str) -> str:
    if name != anchor.name:
        return f"fused into {anchor.name}, to which all of this refers"
    if isinstance(decision, Pipeline):
        return f"a pipeline of {decision.stages} over {', '.join(decision.run)}"
    others = [other for other in decision.nodes if other != name]
    return f"decided with {', '.join(others)}" if others else ""


def _verdict(
    region: Graph,
    anchor: Node,
    device: str,
    costs: CostModel,
    measured: MeasuredTable | None,
    progress: Callable[[str], None],
) -> Verdict:
    found = _compare(region, anchor, device, costs)
    if found.slower is None:
        return found.verdict
    (needs,) = break_even_needs([found.slower], device, costs, measured, progress)
    return found.with_needs(needs)
