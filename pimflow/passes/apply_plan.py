"""Carries out a plan: each decision with its own pass, in the plan's order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pimflow.errors import PlanError
from pimflow.ir import (
    Decision,
    Graph,
    GraphEditor,
    Node,
    OnDevice,
    Parallel,
    Plan,
    SplitColumns,
    SplitEdges,
    SplitK,
    SplitRows,
)
from pimflow.ir.refusal import Refusal
from pimflow.passes.base import Pass, PassResult
from pimflow.passes.column_split import ColumnSplit
from pimflow.passes.decision import DecisionPass, Site, unknown_node
from pimflow.passes.device_placement import DevicePlacement
from pimflow.passes.edge_split import EdgeSplit
from pimflow.passes.k_split import KSplit
from pimflow.passes.md_dp_split import MdDpSplit
from pimflow.passes.pipelining import Pipelining
from pimflow.records import dataclass


@dataclass(frozen=True)
class ApplyPlan(Pass):
    """Rewrites the graph according to a plan; the nodes are in the order of the plan's decisions.

    Every node is placed: on a device, in a region (the decision's index). Nodes that the passes create have an `origin`
    (the node they come from) and, in pipelines, a `stage`; nodes that leave the host have a `choice`. Slices and
    Concats run on the host; a Slice that several decisions read belongs to the first of them. The `fused_into` of a
    node that is cut up names the part that its own part is fused into.

    Time is linear in the nodes of the graph and the parts of the plan.

    Args:
        plan: decisions that cover every node of the graph once.
    """

    name: ClassVar[str] = "apply-plan"
    required: ClassVar[bool] = True

    plan: Plan

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph.

        Raises:
            PlanError: the plan does not cover the graph, its order breaks the data flow, or a decision is impossible.
        """
        regions = _regions(graph, self.plan)
        editor = GraphEditor(graph)
        first_parts: dict[str, str] = {}
        cuts: dict[tuple[str, int, int], str] = {}
        nodes: list[Node] = []
        for region, decision in enumerate(self.plan.decisions):
            _check_order(graph, decision, region, regions)
            site = Site(editor, region, first_parts, cuts)
            for step in passes_of(decision, self.plan.host):
                made = step.rewrite(site)
                if isinstance(made, Refusal):
                    kind = type(decision).__name__
                    raise PlanError(f"decision {region} of the plan ({kind}): {made.reason}", made.remedy)
                nodes.extend(made)
        return PassResult(editor.finish(nodes), changed=True)


def passes_of(decision: Decision, host: str) -> tuple[DecisionPass, ...]:
    """The passes that carry out a decision, in order; `host` is the plan's."""
    if isinstance(decision, OnDevice):
        return (DevicePlacement(decision.nodes, decision.device, decision.choice, host),)
    if isinstance(decision, SplitRows):
        return (
            MdDpSplit(decision.node, decision.gpu_rows, decision.choice, decision.followers, decision.device, host),
        )
    if isinstance(decision, SplitColumns):
        columns, followers = decision.gpu_columns, decision.followers
        return (ColumnSplit(decision.node, columns, decision.choice, followers, decision.device, host),)
    if isinstance(decision, SplitK):
        return (KSplit(decision.node, decision.gpu_k, decision.choice, decision.device, host),)
    if isinstance(decision, SplitEdges):
        group, at_least = decision.group, decision.at_least
        return (EdgeSplit(decision.node, group, at_least, decision.choice, decision.device, host),)
    if isinstance(decision, Parallel):
        return tuple(step for item in decision.decisions for step in passes_of(item, host))
    run, devices, stage_rows, host_rows = decision.run, decision.devices, decision.stage_rows, decision.host_rows
    return (Pipelining(run, devices, stage_rows, decision.choice, decision.bottom_first, host_rows, host),)


def why_not(graph: Graph, decision: Decision, host: str = "gpu") -> Refusal | None:
    """Why a decision cannot be carried out on this graph, or None. Costs about as much as carrying it out."""
    refusals = (step.why_not(graph) for step in passes_of(decision, host))
    return next((refusal for refusal in refusals if refusal is not None), None)


def _regions(graph: Graph, plan: Plan) -> Mapping[str, int]:
    """The decision that covers each node, by name."""
    regions: dict[str, int] = {}
    for index, decision in enumerate(plan.decisions):
        for name in decision.nodes:
            if name not in graph.node_by_name:
                raise PlanError(f"decision {index} of the plan: {unknown_node(graph, name)}", _HINT)
            if name in regions:
                raise PlanError(f"node {name!r} is in decision {regions[name]} and again in decision {index}", _HINT)
            regions[name] = index
    for node in graph.nodes:
        if node.name not in regions:
            raise PlanError(f"no decision of the plan covers node {node.name!r}", _HINT)
    return regions


_HINT = "make a new plan for this graph"


def _check_order(graph: Graph, decision: Decision, index: int, regions: Mapping[str, int]) -> None:
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
