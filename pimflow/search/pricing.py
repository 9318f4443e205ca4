"""What a candidate costs: the makespan of the timeline of its rewritten region, remembered by content.

One mechanism prices everything: cut the nodes out of the graph, carry out the decisions on them, schedule the result.
As regions meet at their ends, the costs of the chosen candidates add up to the makespan of the whole rewritten graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pimflow.codegen.problem import Refusal, problem_of
from pimflow.ir import Decision, Graph, Node, OnGpu, OnPim, Parallel, Plan, SplitRows
from pimflow.passes.apply_plan import ApplyPlan, why_not
from pimflow.passes.regions import cut_region
from pimflow.runtime.costs import DEFAULT_MAPPING, CostModel
from pimflow.runtime.timeline import build_timeline
from pimflow.search.table import ProfileTable, key_of


class Pricer:
    """Prices decisions over nodes of one graph, each content once.

    `priced` counts the candidates asked for, `built` those that had to be rewritten and scheduled.
    """

    def __init__(self, graph: Graph, costs: CostModel, table: ProfileTable) -> None:
        self.graph = graph
        self.costs = costs
        self.priced = 0
        self.built = 0
        self._table = table
        self._outputs = frozenset(graph.outputs)
        self._seen: dict[tuple[Decision, ...], float | None] = {}
        self._capable: dict[tuple[str, str], bool] = {}

    def cost(self, decisions: tuple[Decision, ...]) -> float | None:
        """Microseconds from the start of the first decision to the end of the last; None if it cannot be built."""
        if decisions in self._seen:
            return self._seen[decisions]
        self.priced += 1
        key = key_of(content_text(self.graph, self._outputs, decisions))
        try:
            cost = self._table.get(key)
        except KeyError:
            cost = self._build(decisions)
            self._table.put(key, cost)
        self._seen[decisions] = cost
        return cost

    def pim_capable(self, node: Node, mapping: str) -> bool:
        """Whether PIM can have the whole node under a mapping policy."""
        key = (node.name, mapping)
        if key not in self._capable:
            self._capable[key] = not self._refused(self.graph, node, mapping)
        return self._capable[key]

    def _build(self, decisions: tuple[Decision, ...]) -> float | None:
        self.built += 1
        if any(why_not(self.graph, decision) is not None for decision in decisions):
            return None
        region = cut_region(self.graph, [name for decision in decisions for name in decision.nodes])
        rewritten = ApplyPlan(Plan("candidate", decisions, 0.0, 0.0)).run(region).graph
        on_pim = [node for node in rewritten.nodes if node.device == "pim"]
        if any(self._refused(rewritten, node, node.tag("mapping") or DEFAULT_MAPPING) for node in on_pim):
            return None
        return build_timeline(rewritten, self.costs.target, self.costs).makespan_us

    def _refused(self, graph: Graph, node: Node, mapping: str) -> bool:
        problem = problem_of(graph, node)
        return isinstance(problem, Refusal) or isinstance(self.costs.pim_cost(problem, mapping), Refusal)


def content_text(graph: Graph, graph_outputs: frozenset[str], decisions: Sequence[Decision]) -> str:
    """What the cost of decisions depends on, free of names: ops, shapes, types, wiring, and what is decided.

    Values are numbered as they appear; of a value from outside it matters whether it is a constant (and not which),
    of one made inside whether it is read outside.
    """
    nodes = [graph.node(name) for decision in decisions for name in decision.nodes]
    number = {node.name: index for index, node in enumerate(nodes)}
    values: dict[str, int] = {}
    lines: list[str] = []

    def refer(name: str) -> str:
        if not name:
            return "-"
        if name in values:
            return str(values[name])
        values[name] = len(values)
        value = graph.value(name)
        kind = "c" if graph.is_constant(name) else "i" if name in graph.inputs else "v"
        return f"{values[name]}{kind}{value.shape}{value.dtype}"

    for node in nodes:
        inputs = " ".join(refer(name) for name in node.inputs)
        outputs = " ".join(
            refer(name) + ("!" if _leaves(graph, name, number, graph_outputs) else "") for name in node.outputs
        )
        fused = node.tag("fused_into")
        into = "" if fused is None else f" fused {number.get(fused, 'outside')}"
        moved = (node.tag("movement") or "").partition(":")[0]  # the verdict on a movement, without its reason
        lines.append(f"{node.op!r} {inputs} -> {outputs}{into}{moved and f' {moved}'}")
    lines.extend(_decision_text(decision, number) for decision in decisions)
    return "\n".join(lines)


def _leaves(graph: Graph, value: str, inside: Mapping[str, int], graph_outputs: frozenset[str]) -> bool:
    return value in graph_outputs or any(user.name not in inside for user in graph.users(value))


def _decision_text(decision: Decision, number: Mapping[str, int]) -> str:
    if isinstance(decision, OnGpu):
        return f"gpu {number[decision.node]}"
    if isinstance(decision, OnPim):
        return f"pim {number[decision.node]} {decision.mapping}"
    if isinstance(decision, SplitRows):
        followers = [number[name] for name in decision.followers]
        return f"split {number[decision.node]} {decision.gpu_rows} {decision.mapping} {followers}"
    if isinstance(decision, Parallel):
        return f"parallel {[[_decision_text(item, number) for item in branch] for branch in decision.branches]}"
    run = [number[name] for name in decision.run]
    return f"pipeline {run} {decision.devices} {decision.stage_rows} {decision.mapping} {decision.bottom_first}"
