"""Whether to multiply before or after an aggregation, by price: A(XW) = (AX)W.

The order decides how wide the gathered rows are, and which of the two kernels has the bias and the activation in its
epilogue. It is chosen before plans are made, product by product, with every node on the device that runs it fastest.
"""

from __future__ import annotations

from pimflow.ir import Graph, Refusal
from pimflow.options import Options
from pimflow.passes import FuseEpilogues, OrderAggregation, PassResult
from pimflow.passes.order_aggregation import neighbours
from pimflow.runtime.costs import CostModel
from pimflow.search.fastest import Fastest
from pimflow.search.room import Price


def cheapest_order(graph: Graph, costs: CostModel, options: Options) -> PassResult:
    """Move every product next to a sum over edges to the side where both together cost less, with notes on the moves.

    Args:
        graph: cleaned up; epilogues are marked again where an order changes.
        costs: the cost model of the machine.
        options: under a policy that never uses other units, the host's prices decide.
    """
    fastest = Fastest.of(costs, options)
    notes, best = [], graph
    for name in [node.name for node in graph.nodes if node.op.is_matrix_product]:
        if isinstance(neighbours(best, best.node(name)), Refusal):
            continue
        turned = FuseEpilogues(residual=True).run(OrderAggregation(name).run(best).graph).graph
        before, after = (Price.of(candidate, fastest) for candidate in (best, turned))
        if after < before:
            notes.append(f"{name}: swapped with the adjacent sum over edges, {before.text} become {after.text}")
            best = turned
    return PassResult(best, best is not graph, tuple(notes))
