"""Which nodes of a model can go to PIM, and why the others cannot."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from pimflow.codegen import problem_of
from pimflow.ir import Graph, Node, Refusal
from pimflow.ir.text import print_graph
from pimflow.runtime.costs import CostModel
from pimflow.runtime.gpu.work import DepthwiseWork, MatrixWork, node_work


@dataclass(frozen=True)
class NodeVerdict:
    """What PIM can do with one node.

    Args:
        name, op: the node and its ONNX op.
        shape: of its first output, as text.
        macs: multiply-accumulates, where it is a convolution or matrix product.
        can_pim: whether PIM can run it.
        reason: why not, else "".
        gpu_us: on the GPU with all memory channels.
        pim_us: on PIM with the Newton++ mapping, else None.
    """

    name: str
    op: str
    shape: str
    macs: int
    can_pim: bool
    reason: str
    gpu_us: float
    pim_us: float | None

    @property
    def verdict(self) -> str:
        """For a table."""
        return f"yes, {self.pim_us:.1f} us (GPU: {self.gpu_us:.1f} us)" if self.can_pim else f"no: {self.reason}"


@dataclass(frozen=True)
class Inspection:
    """The verdicts over a model, after the clean-up passes."""

    model: str
    nodes: tuple[NodeVerdict, ...]
    graph: Graph = field(repr=False)

    def as_json(self) -> dict[str, Any]:
        """As one JSON object."""
        return {"model": self.model, "nodes": [asdict(node) for node in self.nodes]}

    def text_form(self) -> str:
        """The graph in the compiler's text form."""
        return print_graph(self.graph)


def inspect_graph(graph: Graph, costs: CostModel, model: str) -> Inspection:
    """Asks for every node of a cleaned-up graph whether PIM can have it."""
    return Inspection(model, tuple(_verdict(graph, node, costs) for node in graph.nodes), graph)


def _verdict(graph: Graph, node: Node, costs: CostModel) -> NodeVerdict:
    problem = problem_of(graph, node)
    cost = problem if isinstance(problem, Refusal) else costs.pim_cost(problem, "newton++")
    refused = isinstance(cost, Refusal)
    return NodeVerdict(
        name=node.name,
        op=node.kind,
        shape=_shape(graph, node),
        macs=_macs(graph, node),
        can_pim=not refused,
        reason=cost.reason if isinstance(cost, Refusal) else "",
        gpu_us=costs.gpu_only().node_cost(graph, node).time_us,
        pim_us=None if isinstance(cost, Refusal) else cost.time_us,
    )


def _shape(graph: Graph, node: Node) -> str:
    shape = graph.value(node.output).shape if node.output else None
    return "?" if shape is None else "x".join(map(str, shape)) or "scalar"


def _macs(graph: Graph, node: Node) -> int:
    """Multiply-accumulates of a convolution or matrix product; 0 for anything else."""
    if not node.op.is_contraction or not graph.value(node.output).elements:
        return 0
    work = node_work(graph, node, element_bytes=0)  # of the work, bytes do not matter here
    return work.macs if isinstance(work, MatrixWork | DepthwiseWork) else 0
