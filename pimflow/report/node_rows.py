"""A plan's costs node by node: the rows of a compile report, and why each node is where it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from typing import Annotated, Any, cast

from pimflow.codegen.answers import UnitCost
from pimflow.data import Limits, decode, encode, pick
from pimflow.ir import (
    Decision,
    Graph,
    Node,
    Parallel,
    Pipeline,
    Plan,
    Refusal,
    SplitColumns,
    SplitEdges,
    SplitK,
    SplitRows,
)
from pimflow.ir.analysis.regions import node_columns, node_k, node_rows
from pimflow.ir.expansion import is_expandable
from pimflow.ir.plan import Single, has_all_channels, singles
from pimflow.records import dataclass
from pimflow.report.measures import Costs, busy_us, origin_of
from pimflow.report.records import Row, flat
from pimflow.report.ways import DeviceWay, device_ways, ways_text
from pimflow.runtime.spending import EventCost, Spending, spending, total
from pimflow.runtime.timeline import CHANNELS, Event
from pimflow.search.policy import find_policy
from pimflow.search.progress import Tell

_PROGRESS_EVERY = 500
"""The number of nodes after which the report repeats its progress message."""
_PARALLEL_WHY = ("no synchronisation with its neighbours", "in parallel with another branch")
"""The reason for nodes of a parallel decision with one branch, and with several."""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """The costs of one node of the original graph.

    Args:
        name, op: the node and its ONNX op.
        mode: a device's name, "md-dp" or "pipeline". A node in parallel with another branch has its device's name.
        fractions: share of its output that each device except the host computes; 1 if it computes the node's product.
        busy_us: time during which each device works on it, the host first; including movements due to dividing the node
            and copies over links.
        cycles: by device except the host: cycles of its slowest part, summed over the parts of the node.
        time_us: time during which any device works on it.
        spent: a breakdown of its time and its energy; see `pimflow/runtime/spending.py`.
        commands: what the devices except the host executed for it, by name.
        why: why it runs there.
        region: number of the plan's decision that it belongs to.
        unknown: what is missing from its time and energy, and why; "" if nothing.
        violations: how often those devices do something for it that their hardware could not, by name.
        ways: for devices with several ways to run it, the time of all its parts there in each way.
    """

    name: str
    op: str
    mode: str
    fractions: Mapping[str, float]
    busy_us: Mapping[str, float]
    cycles: Mapping[str, int]
    time_us: Annotated[float, Limits(least=0)]
    spent: Spending
    commands: Mapping[str, int]
    why: str
    region: int
    unknown: str = ""
    violations: Mapping[str, int] = field(default_factory=dict)
    ways: tuple[DeviceWay, ...] = ()

    @property
    def share_us(self) -> float:
        """Its share of the run's time; the shares of all nodes add up to the run."""
        return total(self.spent.share_parts_us)

    @property
    def energy_mj(self) -> float:
        """Its energy, including its share of static power; the energies of all nodes add up to the run's."""
        return total(self.spent.energy_parts_mj)

    @property
    def leaves_host(self) -> bool:
        """Whether another device computes any part of it."""
        return any(self.fractions.values())

    def as_json(self) -> dict[str, Any]:
        """One object of the report's "nodes"; devices are part of the keys, as in "pim_us"."""
        return {
            "name": self.name,
            "op": self.op,
            "mode": self.mode,
            **{f"{device}_fraction": fraction for device, fraction in self.fractions.items()},
            **{f"{device}_us": time_us for device, time_us in self.busy_us.items()},
            **{f"{device}_cycles": cycles for device, cycles in self.cycles.items()},
            "time_us": self.time_us,
            "share_us": self.share_us,
            "energy_mj": self.energy_mj,
            **encode(self.spent),
            "commands": dict(self.commands),
            "why": self.why,
            "region": self.region,
            "unknown": self.unknown,
            "violations": dict(self.violations),
            "ways": encode(self.ways),
        }

    def record(self) -> Row:
        """The row as plain values; the times of ways to run it are `ways.DEVICE.WAY_us`."""
        ways = {f"{way.device}.{way.way}_us": way.time_us for way in self.ways}
        return flat({**self.as_json(), "ways": ways})

    @classmethod
    def from_json(cls, data: Mapping[str, Any], devices: Sequence[str]) -> NodeRow:
        """Reads what `as_json` wrote on a machine with these devices, the host first.

        Raises:
            DataError: a key is missing, unknown or of another type.
        """
        groups = {"fractions": ("fraction", devices[1:]), "busy_us": ("us", devices), "cycles": ("cycles", devices[1:])}
        rest = dict(decode(Mapping[str, Any], data))
        for group, (word, names) in groups.items():
            keys = [f"{device}_{word}" for device in names]
            rest[group] = dict(zip(names, pick(data, *keys), strict=True))
            for key in keys:
                del rest[key]
        parts = [field.name for field in fields(Spending)]
        rest["spent"] = dict(zip(parts, pick(data, *parts, "share_us", "energy_mj"), strict=False))
        for key in (*parts, "share_us", "energy_mj"):
            del rest[key]
        return decode(cls, rest)


class NodeRows:
    """Creates the rows of one report."""

    def __init__(
        self,
        original: Graph,
        plan: Plan,
        graph: Graph,
        events: Sequence[EventCost],
        costs: Costs,
        makespan_us: float,
    ) -> None:
        self._original = original
        self._plan = plan
        self._costs = costs
        self._graph = graph
        self._parts: dict[str, list[Node]] = {}
        for node in graph.nodes:
            self._parts.setdefault(origin_of(node), []).append(node)
        self._events: dict[str, list[Event]] = {}
        spent: list[tuple[str, EventCost]] = []
        for cost in events:
            origin = origin_of(cost.node)
            self._events.setdefault(origin, []).append(cost.event)
            spent.append((origin, cost))
        nodes = (node.name for node in original.nodes)
        self._spent = spending(nodes, spent, costs.static_energy_mj(makespan_us), makespan_us)
        self._devices = costs.target.devices
        self._host, *self._units = self._devices
        self._no_commands = {name: 0 for unit in costs.units.values() for name in unit.counters}
        self._no_violations = {name: 0 for unit in costs.units.values() for name in unit.violations}
        none = dict.fromkeys(self._units, 0)
        self._no_work = none, none, self._no_commands, self._no_violations
        self._no_fractions = dict.fromkeys(self._units, 0.0)
        self._never_busy = dict.fromkeys(self._devices, 0.0)
        spaces = find_policy(plan.policy).spaces
        self._choice = spaces[-1].choice if spaces else None

    def rows(self, progress: Tell) -> tuple[NodeRow, ...]:
        """One row per node of the original graph."""
        rows: list[NodeRow] = []
        for region, decision in enumerate(self._plan.decisions):
            for name in decision.nodes:
                if len(rows) % _PROGRESS_EVERY == 0:
                    progress(f"report: {len(rows):,} of {len(self._original.nodes):,} nodes")
                rows.append(self._row(region, decision, name))
        return tuple(rows)

    def _busy_us(self, events: Sequence[Event]) -> Mapping[str, float]:
        """How long each device works on a node; the many nodes that are fused into others share one record."""
        if all(event.end_us == event.start_us for event in events):
            return self._never_busy
        return {device: busy_us(self._events_of(events, device)) for device in self._devices}

    def _row(self, region: int, whole: Decision, name: str) -> NodeRow:
        decision = next(item for item in singles(whole) if name in item.nodes)
        node, events = self._original.node(name), self._events.get(name, ())
        every = max(1, sum(value.elements for value in self._original.out_values(node)[:1]))
        made, cycles, commands, violations = self._work_of_units(name, every, whole=is_expandable(node.op))
        ways = [ways for device in self._devices if (ways := self._ways(name, device))]
        by = "".join(f"; on {self._label(there[0].device)} {ways_text(there)}" for there in ways)
        why = self._why(decision, node) + by + self._row_accesses(name)
        why += f"; {self._label(self._host)} has all memory channels" if has_all_channels(decision) else ""
        return NodeRow(
            name=name,
            op=node.kind,
            mode=_mode(decision),
            fractions=self._fractions_of_sum(decision, {unit: count / every for unit, count in made.items()}),
            busy_us=self._busy_us(events),
            cycles=cycles,
            time_us=busy_us(events),
            spent=self._spent[name].ordered(self._devices),
            commands=commands,
            why=f"{_PARALLEL_WHY[len(whole.branches) > 1]}; {why}" if isinstance(whole, Parallel) else why,
            region=region,
            unknown=self._costs.unknown(self._original, node),
            violations=violations,
            ways=tuple(way for there in ways for way in there),
        )

    def _ways(self, name: str, device: str) -> tuple[DeviceWay, ...]:
        """The device's ways to run its parts of a node, if it has a choice."""
        parts = [part for part in self._parts.get(name, ()) if (part.device or self._host) == device]
        return tuple(device_ways(self._graph, parts, device, self._costs))

    def _row_accesses(self, name: str) -> str:
        """How rows are loaded from the host's memory."""
        parts = self._parts.get(name, [])
        accesses = sorted({part.placement.access for part in parts if part.placement.access is not None})
        return f"; rows of {parts[0].inputs[0]} from the host's memory: {' and '.join(accesses)}" if accesses else ""

    def _events_of(self, events: Iterable[Event], device: str) -> Iterator[Event]:
        """A device's share of a node's events: its own, and copies over the link to it."""
        for event in events:
            on_link = event.resource not in (*self._devices, CHANNELS) and device != self._host
            if event.resource == device or (on_link and self._graph.node(event.node).device == device):
                yield event

    def _work_of_units(self, name: str, every: int, *, whole: bool) -> tuple[dict[str, int], ...]:
        """Output elements and cycles by device except the host, and commands and violations, of a node's parts.

        `whole`: whether a unit runs the product within a node of `every` elements, rather than some of its rows.
        """
        parts = self._parts.get(name, ())
        if all((part.device or self._host) == self._host for part in parts):
            return self._no_work  # the same object for all rows
        made, cycles = dict.fromkeys(self._units, 0), dict.fromkeys(self._units, 0)
        commands, violations = dict(self._no_commands), dict(self._no_violations)
        for part in parts:
            unit = part.device or self._host
            if unit == self._host:
                continue
            cost = cast(UnitCost, self._costs.node_cost(self._graph, part).detail)
            made[unit] += every if whole else self._graph.value(part.output).elements
            cycles[unit] += cost.cycles
            for counter, count in cost.counters.items():
                commands[counter] += count
            for violation, count in self._costs.units[unit].violations_of(cost).items():
                violations[violation] += count
        return made, cycles, commands, violations

    def _fractions_of_sum(self, decision: Single, made: dict[str, float]) -> dict[str, float]:
        """The share of each device except the host: of the summed dimension if that is divided, else `made`."""
        if isinstance(decision, SplitEdges):
            return self._edge_fractions(decision)
        if isinstance(decision, SplitK):
            inner = node_k(self._original, self._original.node(decision.node))
            return dict.fromkeys(self._units, 0.0) | {decision.device: (inner - decision.gpu_k) / inner}
        return made if any(made.values()) else self._no_fractions

    def _edge_fractions(self, decision: SplitEdges) -> dict[str, float]:
        """The share of a sum's edges on each device except the host."""
        edges = {part.device: self._graph.value(part.inputs[2]).elements for part in self._parts[decision.node][:2]}
        every = sum(edges.values())
        return {unit: edges.get(unit, 0) / every for unit in self._units}

    def _why(self, decision: Single, node: Node) -> str:
        if isinstance(decision, SplitRows) and node.name == decision.node:
            rows, on_host = node_rows(self._original, node), decision.gpu_rows
            unit = self._label(decision.device)
            return f"{on_host} of {rows} rows on {self._label(self._host)} while {unit} computes {rows - on_host}"
        if isinstance(decision, SplitColumns) and node.name == decision.node:
            columns, on_host = node_columns(self._original, node), decision.gpu_columns
            unit = self._label(decision.device)
            return (
                f"{on_host} of {columns} columns on {self._label(self._host)} while {unit} computes {columns - on_host}"
            )
        if isinstance(decision, SplitK):
            inner, unit = node_k(self._original, node), self._label(decision.device)
            first = f"{decision.gpu_k} of K = {inner} on {self._label(self._host)}"
            return f"{first}, which adds {unit}'s result for the other {inner - decision.gpu_k}"
        if isinstance(decision, SplitEdges):
            share, unit = self._edge_fractions(decision)[decision.device], self._label(decision.device)
            dense = (
                f"{100 * share:.0f} % of its edges, at least {decision.at_least} per group of {decision.group} sources"
            )
            return f"{dense}, on {unit} while {self._label(self._host)} sums the others"
        if isinstance(decision, SplitRows | SplitColumns):
            return f"applied to the halves of {decision.node}"
        if isinstance(decision, Pipeline) and node.placement.fused_into in decision.run:
            return f"fused into {node.placement.fused_into}, stage by stage"
        if isinstance(decision, Pipeline):
            made = f"of {_sum(decision.stage_rows)} rows of {decision.run[-1]}"
            return f"{self._where(decision, node)} in {decision.stages}, {made}"
        return self._why_there(node)

    def _where(self, decision: Pipeline, node: Node) -> str:
        """Where a pipeline runs one of its nodes."""
        place = decision.run.index(node.name)
        device = self._label(decision.devices[place])
        counts = decision.host_rows[place] if decision.host_rows else ()
        if not counts:
            return f"on {device}"
        rows = node_rows(self._original, node)
        return f"{_sum(counts)} of {rows} rows on {self._label(self._host)}, the others on {device},"

    def _label(self, device: str) -> str:
        """A device as part of a sentence: "the GPU", "PIM"."""
        return f"the {device.upper()}" if device == self._host else device.upper()

    def _why_there(self, node: Node) -> str:
        into = node.placement.fused_into
        if into is not None:
            return f"fused into {into}"
        times, refusals = [], []
        for device, unit in self._costs.units.items():
            work = self._costs.work(self._original, node, device)
            if isinstance(work, Refusal):
                refusals.append(work.reason)
                continue
            if self._choice is None:
                return f"policy {self._plan.policy}"
            cost = self._costs.unit_cost(device, work, unit.choice_for(self._choice))
            if isinstance(cost, Refusal):
                refusals.append(cost.reason)
                continue
            part = " for its product" if is_expandable(node.op) else ""
            times.append(f"{cost.time_us:.2f} us{part} on {self._label(device)}")
        if not times:
            return "; ".join(dict.fromkeys(refusals))
        host_us = self._costs.node_cost(self._original, node).time_us
        whole = " for all of it" if is_expandable(node.op) else ""
        return ", ".join([f"{host_us:.2f} us{whole} on {self._label(self._host)}", *times])


def _mode(decision: Single) -> str:
    if isinstance(decision, SplitRows | SplitColumns | SplitK | SplitEdges):
        return "md-dp"
    if isinstance(decision, Pipeline):
        return "pipeline"
    return decision.device


def _sum(counts: Sequence[int]) -> str:
    return " + ".join(map(str, counts))
