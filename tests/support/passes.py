"""Passes, run as a test wants them: the result is a sound graph with the same inputs and outputs."""

from __future__ import annotations

from pimflow.ir import Decision, Graph, Plan
from pimflow.ir.verify import verify_graph
from pimflow.passes import ApplyPlan, FoldConstants, Pass, PassManager, PassResult, RemoveDeadCode
from pimflow.search.pricing import Costs, rewrites


def run_pass(step: Pass, graph: Graph) -> PassResult:
    """What a pass makes of a graph."""
    result = step.run(graph)
    verify_graph(result.graph)
    assert result.graph.inputs == graph.inputs
    assert result.graph.outputs == graph.outputs
    assert result.changed == (result.graph is not graph)
    return result


def plan_of(*decisions: Decision) -> Plan:
    """A plan of which only the decisions matter."""
    return Plan("test", decisions, 0.0, 0.0)


def applied(graph: Graph, *decisions: Decision) -> Graph:
    """The graph with decisions carried out, which cover it."""
    return run_pass(ApplyPlan(plan_of(*decisions)), graph).graph


def folded(graph: Graph) -> Graph:
    """The graph without what does not depend on its inputs."""
    return PassManager((RemoveDeadCode(), FoldConstants())).run(graph).graph


def rewritten(graph: Graph, plan: Plan, costs: Costs) -> Graph:
    """The graph as it runs under a plan on the machine that is priced."""
    return PassManager(rewrites(plan, costs)).run(graph).graph


def kinds(graph: Graph) -> list[str]:
    """The ops of a graph, by their ONNX names."""
    return [node.kind for node in graph.nodes]
