"""Whether to multiply before or behind an aggregation, by price: A(XW) = (AX)W.

The order decides how wide the rows are that are gathered, and which of the two kernels has the bias and the activation
in its epilogue. It is settled before plans are made, product by product, with every node on the device that runs it
fastest.
"""

from __future__ import annotations

from collections.abc import Sequence

from pimflow.ir import Graph, Node, Refusal
from pimflow.options import Options
from pimflow.passes import FuseEpilogues, OrderAggregation, PassResult
from pimflow.passes.order_aggregation import neighbours
from pimflow.runtime.costs import CostModel
from pimflow.search.policy import policy_of


def cheapest_order(graph: Graph, costs: CostModel, options: Options) -> PassResult:
    """The graph with every product next to a sum over edges on the side where both cost less, and what was turned.

    Args:
        graph: cleaned up; epilogues are marked again where an order changes.
        costs: of the machine.
        options: under a policy that leaves nothing to other units, the host's prices decide.
    """
    devices = tuple(costs.units) if policy_of(options).spaces else ()
    priced = costs if devices else costs.host_only()
    notes, best = [], graph
    for name in [node.name for node in graph.nodes if node.op.is_matrix_product]:
        if isinstance(neighbours(best, best.node(name)), Refusal):
            continue
        turned = FuseEpilogues(residual=True).run(OrderAggregation(name).run(best).graph).graph
        before, after = (_fastest_us(candidate, priced, devices) for candidate in (best, turned))
        if after < before:
            notes.append(f"{name}: turned with the sum over edges next to it, {before:.2f} us become {after:.2f} us")
            best = turned
    return PassResult(best, best is not graph, tuple(notes))


def _fastest_us(graph: Graph, costs: CostModel, devices: Sequence[str]) -> float:
    return sum(_fastest_node_us(graph, node, costs, devices) for node in graph.nodes)


def _fastest_node_us(graph: Graph, node: Node, costs: CostModel, devices: Sequence[str]) -> float:
    times = [costs.node_cost(graph, node).time_us]
    for device in devices if times[0] else ():
        work = costs.work(graph, node, device)
        choice = costs.units[device].default_choice
        cost = work if isinstance(work, Refusal) else costs.unit_cost(device, work, choice)
        if not isinstance(cost, Refusal):
            times.append(cost.time_us)
    return min(times)
