"""Runs passes as tests need them, and checks that the result is a valid graph with the same inputs and outputs."""

from __future__ import annotations

from pimflow.ir import Decision, Graph, Plan
from pimflow.ir.verify import verify_graph
from pimflow.passes import ApplyPlan, FoldConstants, Pass, PassManager, PassResult, RemoveDeadCode
from pimflow.search.pricing import Costs, rewrites


def run_pass(step: Pass, graph: Graph) -> PassResult:
    """The result of a pass on a graph."""
    result = step.run(graph)
    verify_graph(result.graph)
    assert result.graph.inputs == graph.inputs
    assert result.graph.outputs == graph.outputs
    assert result.changed == (result.graph is not graph)
    return result


def plan_of(*decisions: Decision) -> Plan:
    """A plan for tests that only need its decisions."""
    return Plan("test", decisions, 0.0, 0.0)


def applied(graph: Graph, *decisions: Decision) -> Graph:
    """The graph after applying decisions, which must cover it."""
    return run_pass(ApplyPlan(plan_of(*decisions)), graph).graph


def folded(graph: Graph) -> Graph:
    """The graph after constant folding."""
    return PassManager((RemoveDeadCode(), FoldConstants())).run(graph).graph


def rewritten(graph: Graph, plan: Plan, costs: Costs) -> Graph:
    """The graph as executed under a plan, on the machine of these costs."""
    return PassManager(rewrites(plan, costs)).run(graph).graph


def kinds(graph: Graph) -> list[str]:
    """The ops of a graph, by their ONNX names."""
    return [node.kind for node in graph.nodes]
