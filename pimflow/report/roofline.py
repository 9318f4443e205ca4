"""The roofline of a model's nodes: a lower bound on each node's time on every device, and the modelled time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pimflow.codegen.answers import Roof
from pimflow.ir import Graph, Node, Refusal
from pimflow.records import NamedTuple
from pimflow.report.tables import number, render_table, wrapped
from pimflow.runtime.costs import CostModel
from pimflow.runtime.gpu.work import value_bytes


class RooflineRow(NamedTuple):
    """A node's work and its times; for the fields, see `pimflow.report.inspection.NodeVerdict`."""

    name: str
    op: str
    macs: int
    bytes: int
    times_us: Mapping[str, float | None]
    least_us: Mapping[str, float | None]


def moved_bytes(region: Graph, element_bytes: int) -> int:
    """Bytes that a graph reads from and writes to the outside, each value once, given its floating-point width."""
    read = {name for node in region.nodes for name in node.inputs if name and region.producer(name) is None}
    return sum(value_bytes(region.value(name), element_bytes) for name in (*read, *region.outputs))


def node_bytes(graph: Graph, node: Node, element_bytes: int) -> int:
    """Bytes that a node reads and writes, each value once."""
    names = dict.fromkeys(name for name in (*node.inputs, *node.outputs) if name)
    return sum(value_bytes(graph.value(name), element_bytes) for name in names)


def lower_bounds_us(graph: Graph, node: Node, macs: int, moved: int, costs: CostModel) -> dict[str, float | None]:
    """A lower bound on a node's time by device, the host with all memory channels first; None if it cannot run there.

    Args:
        graph: the graph of the node.
        node: the node.
        macs: its multiply-accumulates.
        moved: bytes that it reads and writes.
        costs: of the machine.
    """
    found: dict[str, float | None] = {costs.target.host: costs.host_only().host.roof.lower_bound_us(macs, moved)}
    for device, unit in costs.units.items():
        work = costs.work(graph, node, device)
        found[device] = None if isinstance(work, Refusal) else unit.lower_bound_us(work, unit.default_choice)
    return found


def roofline_text(nodes: Sequence[RooflineRow], roofs: Mapping[str, Roof]) -> str:
    """A line per node that takes time on the host, the longest first, and the host's roof."""
    host, *units = nodes[0].times_us if nodes else ("",)
    header = ["node", "op", "MMACs", "KiB", "MACs/byte"]
    for device in (host, *units):
        header += [f"{device.upper()} least us", f"{device.upper()} us", "of it"]
    costly = sorted((node for node in nodes if node.times_us[host]), key=lambda node: -(node.times_us[host] or 0.0))
    lines = [(*_line(node), _bound(node, roofs[host])) for node in costly]
    table = render_table([*header, f"{host.upper()} roof"], lines, right=range(2, len(header)))
    return "\n".join([table, "", *(wrapped(_told(device, roof)) for device, roof in roofs.items()), wrapped(_NOTE)])


_NOTE = (
    "(least: what the roof allows if every byte moves once; on PIM, COMPs back to back on all channels. Kernels with "
    "fewer multiply-accumulates than that, such as Winograd's, may be faster.)"
)


def _line(node: RooflineRow) -> tuple[str, ...]:
    intensity = node.macs / node.bytes if node.bytes else 0.0
    cells = [node.name, node.op, number(node.macs / 1e6 or None, 2), number(node.bytes / 1024, 1)]
    cells.append(number(intensity or None, 2))
    for device, time_us in node.times_us.items():
        least = node.least_us.get(device)
        share = f"{100 * least / time_us:.0f} %" if least and time_us else "-"
        cells += [number(least or None, 2), number(time_us or None, 2), share]
    return tuple(cells)


def _bound(node: RooflineRow, roof: Roof) -> str:
    if not node.bytes:
        return "-"
    return "compute" if node.macs / node.bytes > roof.ridge else "memory"


def _told(device: str, roof: Roof) -> str:
    return (
        f"{device.upper()}: {roof.macs_per_us / 1e6:,.2f} TMAC/s, {roof.bytes_per_us / 1e3:,.1f} GB/s; "
        f"compute-bound above {roof.ridge:,.1f} multiply-accumulates per byte"
    )
