"""Carries out a plan: devices for nodes, MD-DP splits, pipelines and parallel branches."""

from __future__ import annotations

from dataclasses import dataclass

from pimflow.errors import PlanError, did_you_mean
from pimflow.ir import Decision, Graph, GraphEditor, Node, OnDevice, Parallel, Pipeline, Plan, SplitRows
from pimflow.ir.refusal import Refusal
from pimflow.passes.base import Pass, PassResult
from pimflow.passes.rowwise.parts import Layout, pipeline_layout, split_layout
from pimflow.passes.rowwise.writer import PartWriter


@dataclass(frozen=True)
class ApplyPlan(Pass):
    """Rewrites the graph as the plan says; nodes come out in the order of the plan's decisions.

    Every node is placed: on a device, in a region (the decision's index). Nodes that the pass makes have an `origin`
    (the node they come from) and, in pipelines, a `stage`; nodes that leave the host have a `choice`. Slices and
    Concats run on the host. The `fused_into` of a node that is cut up names the part that its own part is fused into.

    Time is linear in the nodes of the graph and the parts of the plan.

    Raises (by `run`):
        PlanError: the plan does not cover the graph, its order breaks the data flow, or a decision is impossible.
    """

    plan: Plan

    def run(self, graph: Graph) -> PassResult:
        """Rewrites the graph."""
        regions = _regions(graph, self.plan)
        editor = GraphEditor(graph)
        first_parts: dict[str, str] = {}
        nodes: list[Node] = []
        for index, decision in enumerate(self.plan.decisions):
            _check_order(graph, decision, index, regions)
            nodes.extend(_carry_out(graph, decision, index, self.plan.host, editor, first_parts))
        return PassResult(editor.finish(nodes), changed=True)


def why_not(graph: Graph, decision: Decision, host: str = "gpu") -> Refusal | None:
    """Why a decision cannot be carried out on this graph, or None. Costs about as much as carrying it out."""
    unknown = [name for name in decision.nodes if name not in graph.node_by_name]
    if unknown:
        return Refusal(_unknown_node(graph, unknown[0]))
    if isinstance(decision, SplitRows | Pipeline):
        layout = _layout(graph, decision, host)
        return layout if isinstance(layout, Refusal) else None
    for placed in _placements(decision):
        node = graph.node(placed.node)
        if placed.device != host and not node.op.is_contraction:
            return Refusal(f"{node.name}: {node.kind} cannot run on {placed.device.upper()}")
    return None


def _placements(decision: OnDevice | Parallel) -> tuple[OnDevice, ...]:
    if isinstance(decision, OnDevice):
        return (decision,)
    return tuple(placed for branch in decision.branches for placed in branch)


def _layout(graph: Graph, decision: SplitRows | Pipeline, host: str) -> Layout | Refusal:
    if isinstance(decision, SplitRows):
        return split_layout(graph, decision, host)
    return pipeline_layout(graph, decision, host)


def _unknown_node(graph: Graph, name: str) -> str:
    hint = did_you_mean(name, graph.node_by_name)
    return f"no node {name!r} in graph {graph.name!r}" + (f" ({hint})" if hint else "")


def _regions(graph: Graph, plan: Plan) -> dict[str, int]:
    """The decision that covers each node, by name."""
    regions: dict[str, int] = {}
    for index, decision in enumerate(plan.decisions):
        for name in decision.nodes:
            if name not in graph.node_by_name:
                raise PlanError(f"decision {index} of the plan: {_unknown_node(graph, name)}", _HINT)
            if name in regions:
                raise PlanError(f"node {name!r} is in decision {regions[name]} and again in decision {index}", _HINT)
            regions[name] = index
    for node in graph.nodes:
        if node.name not in regions:
            raise PlanError(f"no decision of the plan covers node {node.name!r}", _HINT)
    return regions


_HINT = "make the plan anew for this graph"


def _check_order(graph: Graph, decision: Decision, index: int, regions: dict[str, int]) -> None:
    seen: set[str] = set()
    for name in decision.nodes:
        seen.add(name)
        for value in graph.node(name).inputs:
            producer = graph.producer(value)
            if producer is None or regions[producer.name] < index or producer.name in seen:
                continue
            where = regions[producer.name]
            raise PlanError(
                f"decision {index} of the plan: {name!r} reads {value!r}, which {producer.name!r} makes later "
                f"(decision {where})",
                "order the decisions, and the nodes within them, along the data flow",
            )


def _carry_out(
    graph: Graph, decision: Decision, region: int, host: str, editor: GraphEditor, first_parts: dict[str, str]
) -> list[Node]:
    if isinstance(decision, SplitRows | Pipeline):
        layout = _layout(graph, decision, host)
        if isinstance(layout, Refusal):
            raise PlanError(f"decision {region} of the plan ({type(decision).__name__}): {layout.reason}")
        writer = PartWriter(editor, region, host, decision.choice, first_parts)
        writer.write(layout)
        return writer.nodes
    refusal = why_not(graph, decision, host)
    if refusal is not None:
        raise PlanError(f"decision {region} of the plan ({type(decision).__name__}): {refusal.reason}")
    return [_placed(graph.node(placed.node), placed, region, first_parts) for placed in _placements(decision)]


def _placed(node: Node, decision: OnDevice, region: int, first_parts: dict[str, str]) -> Node:
    into = node.placement.fused_into
    return node.placed(
        device=decision.device,
        region=region,
        choice=decision.choice or None,
        fused_into=None if into is None else first_parts.get(into, into),
    )
