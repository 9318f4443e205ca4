"""The parts of an operator of which only the product leaves the host: the nodes that it is then written out as."""

from __future__ import annotations

from pimflow.ir import Graph, OnDevice, Refusal
from pimflow.ir.analysis.padding import uneven_padding
from pimflow.ir.expansion import expand, is_expandable
from pimflow.search.part_prices import PartPrices
from pimflow.search.part_steps import Steps


def expanded_steps(graph: Graph, placed: OnDevice, host: str, prices: PartPrices) -> Steps | None:
    """The parts of a node on a unit that runs only the product in it, as `DevicePlacement` writes them.

    None if there are no such parts, or they do not tell the whole cost: that of a movement, and of the Pad that uneven
    padding may need, depends on the nodes around it, and a node that is fused into this one joins one of its parts.
    """
    node = graph.node(placed.node)
    if placed.device == host or not is_expandable(node.op) or prices.is_fused(node):
        return None
    expansion = expand(graph, node, elements=False)
    if isinstance(expansion, Refusal):
        return None
    inside = expansion.graph
    if any(one.op.is_movement or any(uneven_padding(one.op)) for one in inside.nodes):
        return None
    nodes = [
        one.placed(device=placed.device, narrow=node.placement.narrow)
        if one.name == expansion.product
        else one.placed(device=host)
        for one in inside.nodes
    ]
    devices = [one.device or host for one in nodes]
    parts = [prices.of_written(inside, one, placed.choice) for one in nodes]
    made_by = {name: at for at, one in enumerate(nodes) for name in one.outputs if name}
    reads = [[made_by[name] for name in one.inputs if name in made_by] for one in nodes]
    return Steps(devices, parts, reads, [(at, one, None) for at, one in enumerate(nodes)], range(len(parts)), True)
