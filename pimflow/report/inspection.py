"""Which nodes of a model can leave the host, and why the others cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from pimflow.codegen.answers import Roof, UnitCost
from pimflow.errors import counted
from pimflow.ir import Graph, Node, Refusal
from pimflow.ir.expansion import expand, is_expandable
from pimflow.ir.text import print_graph
from pimflow.records import dataclass
from pimflow.report.network import Network, NetworkReport
from pimflow.report.records import Records, Row
from pimflow.report.roofline import RooflineRow, lower_bounds_us, node_bytes, roofline_text
from pimflow.report.tables import number, render_fields, render_table, wrapped
from pimflow.runtime.costs import CostModel
from pimflow.runtime.gpu.work import node_work
from pimflow.search.pricing import alone_times_us
from pimflow.targets import TargetRecord


@dataclass(frozen=True)
class NodeVerdict:
    """How the units of a machine can run one node.

    Args:
        name, op: the node and its ONNX op.
        shape: of its first output, as text.
        macs: multiply-accumulates of its products, as far as known.
        reasons: by device except the host: why the node cannot run there, "" if it can.
        times_us: by device, the host (with all memory channels) first; None if the node cannot run there. Other devices
            run it, or the product in it that can leave the host, with their default choice.
        unknown: what is unknown about its work, and why; "" if nothing.
        leaving_macs: multiply-accumulates that can leave the host; for operators kept in ONNX's form, of one product.
        is_part: whether only a product within the node can leave the host, and the rest stays.
        bytes: bytes that it reads and writes, each value once, in the host's storage type.
        least_us: by device, like `times_us`: a lower bound for any kernel, from the peaks of the machine.
    """

    name: str
    op: str
    shape: str
    macs: int
    reasons: Mapping[str, str]
    times_us: Mapping[str, float | None]
    unknown: str = ""
    leaving_macs: int = 0
    is_part: bool = False
    bytes: int = 0
    least_us: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """Why it can run only on the host, else ""."""
        return "" if self.leaves_host else "; ".join(dict.fromkeys(self.reasons.values()))

    @property
    def leaves_host(self) -> bool:
        """Whether any other device can run it."""
        return any(not reason for reason in self.reasons.values())

    @property
    def verdict(self) -> str:
        """The verdict as text for a table."""
        host, *units = self.times_us
        if not self.leaves_host:
            return f"no: {self.reason}"
        several = len(units) > 1
        able = [
            f"{time_us:.1f} us" + (f" on {unit.upper()}" if several else "")
            for unit in units
            if (time_us := self.times_us[unit]) is not None
        ]
        what, whole = ("its product, ", ", all of it") if self.is_part else ("", "")
        return f"yes, {what}{', '.join(able)} ({host.upper()}{whole}: {self.times_us[host]:.1f} us)"

    def as_json(self) -> dict[str, Any]:
        """One object of "nodes"; devices are part of the keys, as in "pim_us"."""
        return {
            "name": self.name,
            "op": self.op,
            "shape": self.shape,
            "macs": self.macs,
            "leaving_macs": self.leaving_macs,
            "unknown": self.unknown,
            **{f"can_{device}": not reason for device, reason in self.reasons.items()},
            "reason": self.reason,
            **{f"{device}_us": time_us for device, time_us in self.times_us.items()},
            "bytes": self.bytes,
            **{f"{device}_least_us": least_us for device, least_us in self.least_us.items()},
        }


@dataclass(frozen=True, repr=False)
class Inspection(Records):
    """The verdict on every node of a model after the clean-up passes, a row each.

    Args:
        model: the name it was given by.
        model_sha256: digest of its bytes.
        machine: the machine whose units were asked.
        nodes: the verdict on each node.
        graph: the model after the clean-up passes.
        notes: what the passes left unchanged, and why.
        network: what was recovered from a graph network, and its graph.
        roofs: peak rates by device, where they are known; the host's with all memory channels.
        verification: for an output folder, the results of its verification: whether values agree, and a text; None
            for a model.
    """

    model: str
    model_sha256: str
    machine: TargetRecord
    nodes: tuple[NodeVerdict, ...]
    graph: Graph
    notes: tuple[str, ...] = ()
    network: NetworkReport | None = None
    roofs: Mapping[str, Roof] = field(default_factory=dict)
    verification: tuple[tuple[bool, str], ...] | None = None

    @property
    def title(self) -> str:
        """Model, machine, and the number of nodes that can leave the host."""
        able = sum(node.leaves_host for node in self.nodes)
        return f"{self.model} on {self.machine.name}, {able} of {counted(len(self.nodes), 'node')} can leave the host"

    def records(self) -> list[Row]:
        """A row per node."""
        return [node.as_json() for node in self.nodes]

    def as_json(self) -> dict[str, Any]:
        """One JSON object."""
        graph = {} if self.network is None else {"graph": self.network.as_json()}
        return {
            "model": self.model,
            "model_sha256": self.model_sha256,
            "target": self.machine.name,
            "machine": self.machine.as_json(),
            **graph,
            "roofs": {device: roof._asdict() for device, roof in self.roofs.items()},
            "nodes": [node.as_json() for node in self.nodes],
            "notes": list(self.notes),
            **self._verification_json(),
        }

    def _verification_json(self) -> dict[str, Any]:
        if self.verification is None:
            return {}
        return {"verification": [{"passed": passed, "told": told} for passed, told in self.verification]}

    def _verified(self) -> list[tuple[str, str]]:
        """The results of verifying an output folder, one per line."""
        if self.verification is None:
            return []
        checks = [("verified" if passed else "WRONG", told) for passed, told in self.verification]
        return checks or [("verified", "no: `pimflow verify` checks it")]

    def text(self) -> str:
        """A line per node, the share of work that can leave the host, reasons for the rest with their counts; notes."""
        rows = [(node.name, node.op, node.shape, _mmacs(node), node.verdict) for node in self.nodes]
        able = [node for node in self.nodes if node.leaves_host]
        share = 100 * sum(node.leaving_macs for node in able) / max(1, sum(node.macs for node in self.nodes))
        counts = Counter(node.reason for node in self.nodes if not node.leaves_host)
        unknown = [node for node in self.nodes if node.unknown]
        notes = [wrapped(note, "  ") for note in self.notes]
        fields = [*self.machine.lines(), *self._verified()]
        macs = "multiply-accumulates that are known" if unknown else "multiply-accumulates"
        nodes = counted(len(rows), "node")
        return "\n".join(
            [
                render_table(("node", "op", "output", "MMACs", "PIM"), rows, right=(3,), prose=True),
                "",
                *([render_fields(fields)] if fields else []),
                wrapped(f"{len(able)} of {nodes} can run on PIM, with {share:.1f} % of the {macs}"),
                *(wrapped(f"  {count:4d}  {reason}", " " * 8) for reason, count in counts.most_common()),
                *(("", "not known of the work", *_unknown(unknown)) if unknown else ()),
                *(("", "left by recovery and the clean-up passes", *notes) if notes else ()),
                *(("", *(wrapped(line, " " * 4) for line in self.network.lines())) if self.network is not None else ()),
            ]
        )

    def roofline(self) -> str:
        """A line per node: its work, the lower bound of its time on every device, and its modelled times."""
        rows = [
            RooflineRow(node.name, node.op, node.macs, node.bytes, node.times_us, node.least_us) for node in self.nodes
        ]
        return roofline_text(rows, self.roofs)

    def text_form(self) -> str:
        """The graph in the compiler's text form."""
        return print_graph(self.graph)


def inspect_graph(
    graph: Graph,
    costs: CostModel,
    model: str,
    model_sha256: str,
    notes: tuple[str, ...] = (),
    network: Network | None = None,
) -> Inspection:
    """Determines for every node of a graph after the clean-up passes which devices except the host can run it."""
    alone_us = alone_times_us(graph, costs)
    verdicts = tuple(_verdict(graph, node, costs, alone_us[node.name]) for node in graph.nodes)
    found = None if network is None else NetworkReport.of(network, graph, costs)
    machine, roofs = TargetRecord.of(costs.target), {costs.target.host: costs.host_only().host.roof}
    return Inspection(model, model_sha256, machine, verdicts, graph, notes, found, roofs)


def _verdict(graph: Graph, node: Node, costs: CostModel, host_us: float) -> NodeVerdict:
    found = {device: _cost_on(device, costs, graph, node) for device in costs.units}
    times = {device: None if isinstance(cost, Refusal) else cost.time_us for device, cost in found.items()}
    macs, part = _macs(graph, node), is_expandable(node.op)
    moved = 0 if node.op.is_movement else node_bytes(graph, node, costs.host.element_bytes)
    leaving = _product_macs(graph, node, macs) if any(time is not None for time in times.values()) else 0
    return NodeVerdict(
        name=node.name,
        op=node.kind,
        shape=_shape(graph, node),
        macs=macs,
        reasons={device: cost.reason if isinstance(cost, Refusal) else "" for device, cost in found.items()},
        times_us={costs.target.host: host_us, **times},
        unknown=costs.host_only().unknown(graph, node),
        leaving_macs=leaving,
        is_part=part,
        bytes=moved,
        least_us=lower_bounds_us(graph, node, macs, moved, costs),
    )


def _cost_on(device: str, costs: CostModel, graph: Graph, node: Node) -> UnitCost | Refusal:
    work = costs.work(graph, node, device)
    return work if isinstance(work, Refusal) else costs.unit_cost(device, work, costs.units[device].default_choice)


def _shape(graph: Graph, node: Node) -> str:
    shape = graph.value(node.output).shape if node.output else None
    return "?" if shape is None else "x".join(map(str, shape)) or "scalar"


def _macs(graph: Graph, node: Node) -> int:
    """Multiply-accumulates of all products of a node, including those in bodies of loops."""
    work = None if node.op.is_movement else node_work(graph, node, element_bytes=0)  # bytes do not matter here
    return 0 if work is None else work.macs


def _product_macs(graph: Graph, node: Node, macs: int) -> int:
    """The multiply-accumulates of the product that can leave the host."""
    if not is_expandable(node.op):
        return macs
    apart = expand(graph, node, elements=False)
    return 0 if isinstance(apart, Refusal) else min(macs, _macs(apart.graph, apart.graph.node(apart.product)))


def _mmacs(node: NodeVerdict) -> str:
    """Millions of multiply-accumulates, with a question mark if some are unknown."""
    known = number(node.macs / 1e6, 2) if node.macs else ""
    return f"{known}?" if node.unknown else known or "-"


def _unknown(nodes: list[NodeVerdict]) -> list[str]:
    return [wrapped(f"  {node.name} ({node.op}): {node.unknown}", "    ") for node in nodes]
