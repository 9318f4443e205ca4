"""MD-DP split: the output rows of one node are divided between two devices.

    y = conv(x)   becomes   y_gpu = conv(x[:, :, :b])     on the host
                            y_pim = conv(x[:, :, a:])     on the other device, at the same time
                            y     = concat(y_gpu, y_pim)  over the rows

The input rows a .. b-1 are the halo, which both read; they follow from the receptive field. The name is PIMFlow's:
multi-device data-parallel execution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pimflow.ir import Graph, Node
from pimflow.ir.analysis.regions import leaving_values, node_part, node_rows
from pimflow.ir.refusal import Refusal
from pimflow.passes.decision import Site, device_refusal
from pimflow.passes.rowwise.base import RowwisePass
from pimflow.passes.rowwise.parts import Layout, PartJob
from pimflow.passes.rowwise.writer import PartWriter
from pimflow.records import dataclass


@dataclass(frozen=True)
class MdDpSplit(RowwisePass):
    """Splits a node by rows: the first on the host, the rest on another device.

    Rows are H of a convolution's output, M of a matrix product's (the second-last axis).

    Args:
        node: a convolution, a matrix product, or any other node that is computed row by row.
        gpu_rows: output rows that the host computes; neither none nor all.
        choice: the choice to request from the other device's backend (a mapping policy, a strategy); "" is its default.
        followers: elementwise nodes, in order, that the host applies to the two halves before the one Concat.
        device: computes the remaining rows.
        host: computes the first rows and all movements.
    """

    name: ClassVar[str] = "md-dp-split"

    node: str
    gpu_rows: int
    choice: str = ""
    followers: tuple[str, ...] = ()
    device: str = "pim"
    host: str = "gpu"

    @property
    def covers(self) -> tuple[str, ...]:
        """The node and its followers."""
        return (self.node, *self.followers)

    def writer(self, site: Site) -> PartWriter:
        """A writer that puts movements on the host."""
        return PartWriter(site, self.host, self.choice)

    def layout(self, graph: Graph) -> Layout | Refusal:
        """The two halves."""
        nodes = [graph.node(name) for name in self.covers]
        refusal = self._shape_refusal(graph, nodes)
        if refusal is not None:
            return refusal
        rows = node_rows(graph, nodes[0])
        jobs: list[PartJob] = []
        for half, start, stop in ((self.host, 0, self.gpu_rows), (self.device, self.gpu_rows, rows)):
            for node in nodes:
                part = node_part(graph, node, start, stop)
                if isinstance(part, Refusal):
                    return part
                jobs.append(PartJob(node, start, stop, part, half if node is nodes[0] else self.host, half))
        return Layout(tuple(jobs), leaving_values(graph, nodes))

    def _shape_refusal(self, graph: Graph, nodes: Sequence[Node]) -> Refusal | None:
        first = nodes[0]
        refusal = device_refusal(first, self.device, self.host)
        if refusal is not None:
            return refusal
        rows = node_rows(graph, first)
        if not 0 < self.gpu_rows < rows:
            return Refusal(f"{first.name}: {self.gpu_rows} of {rows} rows on the GPU leave a part empty")
        made = {first.output}
        for node in nodes[1:]:
            if not node.op.is_elementwise:
                return Refusal(f"{node.name}: {node.kind} is not elementwise and cannot follow the halves")
            if made.isdisjoint(node.inputs):
                return Refusal(f"{node.name}: does not read a result of the halves")
            made.add(node.output)
            if node_rows(graph, node) != rows:
                return Refusal(f"{node.name}: has {node_rows(graph, node)} rows instead of {rows}")
        return None
