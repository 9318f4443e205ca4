"""Why a node runs where it does: the ways to run it with their prices, and what would turn the answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pimflow.errors import ArgumentError, TargetError, did_you_mean
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
from pimflow.ir.expansion import is_expandable
from pimflow.ir.plan import Single, singles
from pimflow.passes import PassManager
from pimflow.report.plan_report import Measure, NodeRow, PlanReport, measure
from pimflow.report.records import Records, Row
from pimflow.report.roofline import moved_bytes
from pimflow.report.tables import number, render_fields, render_table, wrapped
from pimflow.runtime.costs import CostModel
from pimflow.runtime.gpu.measured import MeasuredTable
from pimflow.runtime.gpu.work import node_work
from pimflow.runtime.spending import PartsByPlace, total
from pimflow.search.candidates import Candidates
from pimflow.search.order import Unit, execution_order, units_of
from pimflow.search.policy import TENTHS, Policy, Space
from pimflow.search.price_cache import PriceCache
from pimflow.search.pricing import Pricer, rewrites
from pimflow.targets import Target, TargetRecord, override
from pimflow.targets.schema.origin import spelled

FACTORS = (2, 4, 8)
"""By how much a key of the machine is changed, up or down, to see whether another device would win."""
_MOST_LETTERS = 24  # of an alternative's name beside its bar
_FELT = 0.995  # a change that leaves more of the time than this is none


@dataclass(frozen=True)
class Alternative:
    """One way to run a node, alone on the machine: what is fused into it comes along, its neighbours do not.

    Args:
        what: where it runs, as people say it.
        arranged: how units do their part: mappings, strategies.
        measure: what it comes to, static power included.
        is_chosen: whether the plan does so.
    """

    what: str
    arranged: str
    measure: Measure
    is_chosen: bool = False

    def as_json(self) -> dict[str, Any]:
        """As one object of "alternatives"."""
        spent = self.measure.spent
        return {
            "what": self.what,
            "arranged": self.arranged,
            "time_us": self.measure.time_us,
            "energy_mj": self.measure.energy_mj,
            "time_parts_us": spent.share_parts_us,
            "energy_parts_mj": spent.energy_parts_mj,
            "chosen": self.is_chosen,
        }


@dataclass(frozen=True)
class Need:
    """A key of the machine with which a unit would be as fast as the host alone.

    Args:
        key: of the target.
        before, after: its value, and the nearest of those tried that is enough.
        time_us: of the node on the unit then.
        host_us: of the host alone then, with all memory channels.
    """

    key: str
    before: float
    after: float
    time_us: float
    host_us: float


@dataclass(frozen=True)
class Verdict:
    """What one unit beside the host is to a node.

    Args:
        device: the unit.
        refusal: why the node cannot run there, or would not pay; "" if it may.
        time_us: of the whole node there, by its best choice; None where it is refused.
        needs: keys that would make it as fast as the host, each alone; nothing where it is so already, None where that
            was not asked.
        in_vain: whether it could run there, but cannot pay by what statistics say, so that no program was made.
        standing: how near its product is to what no arrangement on the unit is faster than; "" where that is not known.
    """

    device: str
    refusal: str
    time_us: float | None
    needs: tuple[Need, ...] | None = ()
    in_vain: bool = False
    standing: str = ""


@dataclass(frozen=True, repr=False)
class Explanation(Records):
    """One node of a compiled model: an alternative a row.

    Args:
        machine: what it was compiled for.
        node: what the plan makes of it.
        shape: of its output, as text.
        macs: multiply-accumulates of its products.
        bytes: of its operands and results, each once, in the host's element type.
        run_us: time of the whole run.
        part_of: what else the plan decides together with it; "" if nothing.
        host: the host.
        alternatives: ways to run it, the host alone first.
        verdicts: what the other units are to it.
    """

    machine: TargetRecord
    node: NodeRow
    shape: str
    macs: int
    bytes: int
    run_us: float
    part_of: str
    host: str
    alternatives: tuple[Alternative, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def title(self) -> str:
        """The node, and how many ways there are."""
        return f"{self.node.name} ({self.node.op}) on {self.machine.name}, {len(self.alternatives)} alternatives"

    @property
    def intensity(self) -> float:
        """Multiply-accumulates per byte; 0 of what moves none."""
        return self.macs / self.bytes if self.bytes else 0.0

    def records(self) -> list[Row]:
        """A row per alternative."""
        keys = ("what", "arranged", "time_us", "energy_mj", "chosen")
        return [{key: item.as_json()[key] for key in keys} for item in self.alternatives]

    def as_json(self) -> dict[str, Any]:
        """As one JSON object."""
        return {
            "target": self.machine.name,
            "machine": self.machine.as_json(),
            "node": self.node.as_json(),
            "shape": self.shape,
            "macs": self.macs,
            "bytes": self.bytes,
            "intensity": self.intensity,
            "run_us": self.run_us,
            "part_of": self.part_of,
            "alternatives": [item.as_json() for item in self.alternatives],
            "verdicts": [_verdict_json(verdict) for verdict in self.verdicts],
        }

    def charts(self) -> str:
        """What time is spent on in every alternative."""
        from pimflow.report.page.markup import shortened
        from pimflow.report.page.notebook import in_notebook
        from pimflow.report.page.parts import Bar, parts_chart

        bars = [
            Bar(shortened(item.what, _MOST_LETTERS), item.measure.spent.share_parts_us) for item in self.alternatives
        ]
        return in_notebook(parts_chart("time alone", "us", bars, (self.host, *(one.device for one in self.verdicts))))

    def text(self) -> str:
        """What it is, what the plan makes of it, the ways to run it, and what would turn the answer."""
        node = self.node
        share = 100 * node.share_us / self.run_us if self.run_us else 0.0
        about = [
            ("node", f"{node.name} ({node.op}), {self.shape}"),
            ("work", f"{self.macs / 1e6:,.2f} MMACs, {self.bytes / 1024:,.1f} KiB, {self.intensity:,.1f} MACs a byte"),
            *self.machine.lines(),
            ("in the plan", f"{number(node.share_us, 2)} us of the run ({share:.1f} %), {node.energy_mj:.4f} mJ"),
            ("because", node.why),
            *([("together", self.part_of)] if self.part_of else []),
        ]
        return "\n\n".join([render_fields(about), self._table(), *map(self._told, self.verdicts)])

    def _table(self) -> str:
        first = self.alternatives[0].measure.time_us
        rows = [
            (
                ("* " if item.is_chosen else "  ") + item.what,
                number(item.measure.time_us, 2),
                f"{item.measure.energy_mj:.4f}",
                f"{first / item.measure.time_us:.2f}x" if item.measure.time_us else "-",
                _most(item.measure.spent.share_parts_us),
                item.arranged,
            )
            for item in self.alternatives
        ]
        header = ("  alone", "us", "mJ", "speedup", "most of it", "arranged")
        note = "(* what the plan does)" if any(item.is_chosen for item in self.alternatives) else ""
        table = render_table(header, rows, right=(1, 2, 3), prose=True)
        return f"{table}\n{note}" if note else table

    def _told(self, verdict: Verdict) -> str:
        sentence, needs = told_of(verdict, self.host, self.alternatives[0].measure.time_us)
        standing = [f"its bounds there: {verdict.standing}"] if verdict.standing else []
        return "\n".join(map(wrapped, [sentence, *(f"  {need}" for need in needs), *standing]))


def told_of(verdict: Verdict, host: str, host_us: float) -> tuple[str, list[str]]:
    """What a unit is to a node, as a sentence, and what would turn it, a clause each.

    Args:
        verdict: of the unit.
        host: the host's name.
        host_us: what the host alone takes.
    """
    name, alone = verdict.device.upper(), f"the {host.upper()} alone"
    if verdict.time_us is None:
        return f"{name} {'does not pay' if verdict.in_vain else 'cannot run it'}: {verdict.refusal}", []
    if verdict.time_us <= host_us:
        return f"{name} is {host_us / max(verdict.time_us, 1e-9):.2f}x as fast as {alone}", []
    gap = f"{name} takes {verdict.time_us / host_us:.2f}x as long as {alone}"
    if verdict.needs is None:
        return f"{gap}; `pimflow explain` says what would turn that", []
    if not verdict.needs:
        return f"{gap}; no key of its own, changed up to {FACTORS[-1]}-fold, is enough alone to catch up", []
    needs = [
        f"{need.key} {spelled(need.before)} -> {spelled(need.after)}: {need.time_us:,.2f} us"
        f" ({host.upper()} {need.host_us:,.2f} us)"
        for need in verdict.needs
    ]
    return f"{gap}; any of these alone would be enough:", needs


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
        graph: cleaned up, as the search saw it.
        plan: what runs where.
        report: what that comes to.
        name: the node; of one that is fused into another, what is told is told of both.
        costs: of the machine.
        measured: kernel times that go before the host's model.
        progress: receives a line of text now and then.

    Raises:
        ArgumentError: there is no such node.
    """
    rows = {row.name: row for row in report.nodes}
    if name not in rows:
        raise ArgumentError(f"the model has no node {name!r}", did_you_mean(name, rows, 3))
    unit = next(unit for unit in units_of(execution_order(graph)) if any(node.name == name for node in unit.nodes))
    region, anchor, decision = _cut_out(graph, plan, unit)
    work = None if anchor.op.is_movement else node_work(graph, anchor, element_bytes=0)
    return Explanation(
        machine=TargetRecord.of(costs.target),
        node=rows[name],
        shape=graph.value(anchor.output).type_text if anchor.output else "",
        macs=0 if work is None else work.macs,
        bytes=moved_bytes(region, costs.host.element_bytes),
        run_us=report.result.time_us,
        part_of=_together(decision, anchor, name),
        host=costs.target.host,
        alternatives=tuple(_alternatives(region, anchor, decision, costs)),
        verdicts=tuple(_verdict(region, anchor, device, costs, measured, progress) for device in costs.units),
    )


def price_nodes(
    graph: Graph, plan: Plan, names: Collection[str], costs: CostModel, progress: Callable[[str], None]
) -> dict[str, tuple[Alternative, ...]]:
    """The ways to run some nodes, by name: those of `explain_node`, without what would turn the answer.

    Args:
        graph: cleaned up, as the search saw it.
        plan: what runs where.
        names: nodes that are not fused into others.
        costs: of the machine.
        progress: receives a line of text now and then.
    """
    found: dict[str, tuple[Alternative, ...]] = {}
    for unit in units_of(execution_order(graph)):
        name = unit.anchor.name
        if name in names:
            progress(f"pricing alternatives: {len(found)} of {len(names)} nodes")
            region, anchor, decision = _cut_out(graph, plan, unit)
            found[name] = tuple(_alternatives(region, anchor, decision, costs))
    return found


def weigh_units(
    graph: Graph,
    plan: Plan,
    names: Sequence[str],
    most: int,
    costs: CostModel,
    measured: MeasuredTable | None,
    progress: Callable[[str], None],
) -> dict[str, tuple[Verdict, ...]]:
    """What the units beside the host are to some nodes, by name: the verdicts of `explain_node`.

    What would turn one takes long to find. It is asked once of equal work, and of `most` kinds of work in all: those of
    the first names.

    Args:
        graph, plan, costs, measured, progress: see `explain_node`.
        names: nodes; those that are fused into others are left out.
        most: how many kinds of work are asked about.
    """
    units = {unit.anchor.name: unit for unit in units_of(execution_order(graph))}
    asked: dict[Any, tuple[Need, ...]] = {}
    found: dict[str, tuple[Verdict, ...]] = {}
    for name in filter(units.__contains__, names):
        region, anchor, _ = _cut_out(graph, plan, units[name])
        host_us = costs.host_only().node_cost(region, anchor).time_us
        verdicts = [_standing(region, anchor, device, costs) for device in costs.units]
        for index, verdict in enumerate(verdicts):
            if verdict.time_us is None or verdict.time_us <= host_us:
                continue
            key = verdict.device, costs.work(region, anchor, verdict.device), host_us
            if key not in asked and len(asked) < most:
                progress(f"what would turn {name}: {len(asked) + 1} of {most}")
                asked[key] = _needs(region, anchor, verdict.device, costs, measured, verdict.time_us)
            verdicts[index] = replace(verdict, needs=asked.get(key))
        found[name] = tuple(verdicts)
    return found


def _cut_out(graph: Graph, plan: Plan, unit: Unit) -> tuple[Graph, Node, Decision]:
    """A node with what is fused into it as a graph of its own, the node there, and what the plan decided."""
    region = cut_subgraph(graph, [node.name for node in unit.nodes])
    name = unit.anchor.name
    return region, region.node(name), next(item for item in plan.decisions if name in item.nodes)


def _alternatives(region: Graph, anchor: Node, whole: Decision, costs: CostModel) -> Iterator[Alternative]:
    host, chosen = costs.target.host, next(item for item in singles(whole) if anchor.name in item.nodes)
    alone = Plan("explain", tuple(OnDevice(node.name, host) for node in region.nodes), 0.0, 0.0, host=host)
    on_host = isinstance(chosen, OnDevice) and chosen.device == host
    for what, model, is_chosen in (("alone", costs.host_only(), on_host), ("beside the others", costs, False)):
        yield Alternative(f"{host.upper()} {what}", "", measure(_rewritten(region, alone, model), model), is_chosen)
    for decisions in _ways(region, chosen, costs):
        graph = _rewritten(region, replace(alone, decisions=decisions), costs)
        decision = next(item for item in decisions if anchor.name in item.nodes)
        arranged = "; ".join(dict.fromkeys(filter(None, (_arranged(graph, node, costs) for node in graph.nodes))))
        yield Alternative(_said(decision, region, anchor, host), arranged, measure(graph, costs), decision == chosen)


def _ways(region: Graph, chosen: Single, costs: CostModel) -> Iterator[tuple[Decision, ...]]:
    """What can be decided of a region, units' choices one by one and splits on a grid, and what the plan decided."""
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


def _rewritten(region: Graph, plan: Plan, costs: CostModel) -> Graph:
    return PassManager(rewrites(plan, costs)).run(region).graph


def _arranged(graph: Graph, node: Node, costs: CostModel) -> str:
    unit = costs.units.get(node.device or "")
    if unit is None:
        return ""
    work = costs.work(graph, node, unit.device)
    program = work if isinstance(work, Refusal) else unit.program(work, unit.resolve(node.placement.choice or ""))
    return "" if isinstance(program, Refusal) else str(unit.describe(program))


def _said(decision: Decision, region: Graph, anchor: Node, host: str) -> str:
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


def _together(decision: Decision, anchor: Node, name: str) -> str:
    if name != anchor.name:
        return f"fused into {anchor.name}, of which all this is told"
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
    verdict = _standing(region, anchor, device, costs)
    if verdict.time_us is None or verdict.time_us <= costs.host_only().node_cost(region, anchor).time_us:
        return verdict
    return replace(verdict, needs=_needs(region, anchor, device, costs, measured, verdict.time_us, progress))


def _standing(region: Graph, anchor: Node, device: str, costs: CostModel) -> Verdict:
    """What a unit is to a node, without what would turn it."""
    found = _on_unit_us(region, anchor, device, costs)
    if isinstance(found, Refusal):
        return Verdict(device, found.reason, None, in_vain=found.in_vain)
    work, unit = costs.work(region, anchor, device), costs.units[device]
    told = work if isinstance(work, Refusal) else unit.explain(work, unit.choices[-1])
    return Verdict(device, "", found, standing="" if isinstance(told, Refusal) else told.standing)


def _needs(
    region: Graph,
    anchor: Node,
    device: str,
    costs: CostModel,
    measured: MeasuredTable | None,
    time_us: float,
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[Need, ...]:
    """Keys that would make a unit as fast as the host on a node that it takes longer for, the best first."""
    needs: list[Need] = []
    for key, value in _numbers(costs.target, device).items():
        progress(f"{device}: {key}")
        need = _need(region, anchor, device, costs.target, measured, key, value, time_us)
        needs += [need] if need is not None else []
    return tuple(sorted(needs, key=lambda need: need.time_us))


def _on_unit_us(region: Graph, anchor: Node, device: str, costs: CostModel) -> float | Refusal:
    """Of the whole node on a unit, by its best choice; where a product alone leaves the host, with the rest."""
    work, choice = costs.work(region, anchor, device), costs.units[device].choices[-1]
    if isinstance(work, Refusal):
        return work
    cost = costs.unit_cost(device, work, choice)
    if isinstance(cost, Refusal) or not is_expandable(anchor.op):
        return cost if isinstance(cost, Refusal) else cost.time_us
    host = costs.target.host
    placed = (
        OnDevice(node.name, device, choice) if node is anchor else OnDevice(node.name, host) for node in region.nodes
    )
    return measure(_rewritten(region, Plan("explain", tuple(placed), 0.0, 0.0, host=host), costs), costs).time_us


def _numbers(target: Target, device: str) -> Mapping[str, float]:
    """The keys of a unit that are numbers and change its times: no energies, no timing profile but the one in use."""
    profile = target.values.get(f"{device}.timing.default")
    found = {}
    for key, value in target.values.items():
        of_another = key.startswith(f"{device}.timing.") and not key.startswith(f"{device}.timing.{profile}.")
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
        if key.startswith(f"{device}.") and ".energy." not in key and is_number and not of_another:
            found[key] = value
    return found


def _need(
    region: Graph,
    anchor: Node,
    device: str,
    target: Target,
    measured: MeasuredTable | None,
    key: str,
    value: float,
    before_us: float,
) -> Need | None:
    """The smallest change of one key that is enough; None if none of those tried is."""
    for direction in (1, -1):
        tried = list(_tried(target, measured, key, value, direction))
        if not any(_may_be_enough(region, anchor, device, costs) for _, costs in tried):
            continue
        for after, costs in tried:
            time_us = _on_unit_us(region, anchor, device, costs)
            if isinstance(time_us, Refusal) or time_us > before_us * _FELT:
                break
            host_us = costs.host_only().node_cost(region, anchor).time_us
            if time_us <= host_us:
                return Need(key, value, after, time_us, host_us)
    return None


def _tried(
    target: Target, measured: MeasuredTable | None, key: str, value: float, direction: int
) -> Iterator[tuple[float, CostModel]]:
    """What a key is set to, further and further from its value, and the machine of each; as far as there is one."""
    for factor in FACTORS:
        after = value * factor if direction > 0 else value / factor
        after = max(1, round(after)) if isinstance(value, int) else after
        try:
            yield after, CostModel(override(target, {key: after}), measured=measured)
        except (TargetError, ArgumentError, ValueError):
            return


def _may_be_enough(region: Graph, anchor: Node, device: str, costs: CostModel) -> bool:
    """Whether a unit could be as fast as the host, by what its product takes at least: asked before any search."""
    work, unit = costs.work(region, anchor, device), costs.units[device]
    if isinstance(work, Refusal):
        return False
    return unit.least_us(work, unit.choices[-1]) <= costs.host_only().node_cost(region, anchor).time_us


def _most(parts: PartsByPlace) -> str:
    """The largest part of a time, and its share."""
    whole = total(parts)
    if not whole:
        return "-"
    amounts = {(place, part): amount for place, inside in parts.items() for part, amount in inside.items()}
    place, part = max(amounts, key=lambda key: amounts[key])
    return f"{place.upper()} {part.replace('_', '-')}, {math.floor(100 * amounts[place, part] / whole + 0.5)} %"


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "device": verdict.device,
        "refusal": verdict.refusal,
        "time_us": verdict.time_us,
        "needs": [vars(need) for need in verdict.needs or ()],
        "in_vain": verdict.in_vain,
        "standing": verdict.standing,
    }
