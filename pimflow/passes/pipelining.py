"""Pipelining: a run of nodes is cut into stages along its rows, so that neighbours on two devices work at once.

z = b(a(x))   becomes   y0 = a(x[rows of stage 0])
                        z0 = b(y0)                     while   y1 = a(x[rows of stage 1])
                        z1 = b(y0 and y1)              over the rows that it needs of both
                        z  = concat(z0, z1)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pimflow.ir import Graph, Node
from pimflow.ir.analysis.regions import leaving_values, node_rows, part_finder, run_refusal
from pimflow.ir.refusal import Refusal
from pimflow.passes.decision import Site, device_refusal
from pimflow.passes.rowwise.base import RowwisePass
from pimflow.passes.rowwise.parts import Layout, PartJob
from pimflow.passes.rowwise.stages import StageRows
from pimflow.passes.rowwise.writer import PartWriter


@dataclass(frozen=True)
class Pipelining(RowwisePass):
    """Cuts a run of nodes into stages: stage k of one node runs beside stage k+1 of the node before it.

    Stage k of a node makes the rows that stages 0 to k of its readers in the run need and earlier stages of the node
    have not made: nothing is computed twice. A node has no part in a stage that finds all its rows made already, and
    rows that nobody reads are not made.

    Args:
        nodes: the run, in order: each node but the last is read by a later one. It may begin with several nodes that
            read values from outside, and have branches.
        devices: the device of each node.
        stage_rows: output rows of the last node that each stage makes, in the order in which stages are run; all of
            its rows together.
        choice: what the backends of other devices are asked for (a mapping policy, a strategy); "" is their default.
        bottom_first: whether the first stage run is the bottom (highest rows) of the map.
        host: the device that can run any node, and runs all movements.
    """

    name: ClassVar[str] = "pipelining"

    nodes: tuple[str, ...]
    devices: tuple[str, ...]
    stage_rows: tuple[int, ...]
    choice: str = ""
    bottom_first: bool = False
    host: str = "gpu"

    @property
    def covers(self) -> tuple[str, ...]:
        """The run."""
        return self.nodes

    def writer(self, site: Site) -> PartWriter:
        """Movements on the host."""
        return PartWriter(site, self.host, self.choice)

    def layout(self, graph: Graph) -> Layout | Refusal:
        """The stages, one after the other."""
        nodes = [graph.node(name) for name in self.nodes]
        refusal = self._run_refusal(graph, nodes)
        if refusal is not None:
            return refusal
        rows_of = StageRows(graph, nodes[-1], self.stage_rows, self.bottom_first)
        for node in reversed(nodes[:-1]):
            refusal = rows_of.extend(node)
            if refusal is not None:
                return refusal
        fresh = [rows_of.fresh(node.name) for node in nodes]
        jobs: list[PartJob] = []
        part_of = part_finder(graph)
        for stage in range(len(self.stage_rows)):
            suffix = f"s{stage}"
            for node, device, rows in zip(nodes, self.devices, fresh, strict=True):
                start, stop = rows[stage]
                if start == stop:
                    continue
                part = part_of(node, start, stop)
                if isinstance(part, Refusal):
                    return part
                jobs.append(PartJob(node, start, stop, part, device, suffix, stage))
        return Layout(tuple(jobs), leaving_values(graph, nodes))

    def _run_refusal(self, graph: Graph, nodes: Sequence[Node]) -> Refusal | None:
        if len(nodes) < 2 or len(self.stage_rows) < 2:
            return Refusal("a pipeline needs at least two nodes and two stages")
        if len(self.devices) != len(nodes):
            return Refusal(f"{len(self.devices)} devices for {len(nodes)} nodes")
        rows = node_rows(graph, nodes[-1])
        if min(self.stage_rows) < 1 or sum(self.stage_rows) != rows:
            return Refusal(f"stages of {self.stage_rows} rows do not make up the {rows} rows of {nodes[-1].name}")
        for node, device in zip(nodes, self.devices, strict=True):
            refusal = device_refusal(node, device, self.host)
            if refusal is not None:
                return refusal
        return run_refusal(graph, nodes)
