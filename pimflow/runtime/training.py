"""What a step of training takes on the host: the forward pass priced node by node, the backward pass derived from it.

The backward pass of a node is what its gradients are made of, priced as kernels of the forward pass that do as much:

| node | backward |
|---|---|
| a product or convolution | one product of as many multiply-accumulates for every operand that has a gradient |
| `Spmm` | `Spmm` along the edges' other direction |
| any other | the node once more: it reads and writes as much |

Nothing is computed for operands without a gradient, as the features that a network starts from. Behind it, weights are
updated by Adam: weight, gradient and two moments are read, three of them written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pimflow.ir import Builder, Graph, Node, Spmm
from pimflow.ir.analysis.tensor_layout import element_bytes
from pimflow.runtime.costs import CostModel, NodeCost
from pimflow.sparse import Graph as Edges

ADAM_PASSES = 7
"""Over the bytes of all weights: four are read, three written."""
ADAM_COPIES = 4
"""Of the weights, in memory: weight, gradient, two moments."""


@dataclass(frozen=True)
class StepCost:
    """A step of training on the GPU.

    Args:
        forward_us, backward_us, update_us: microseconds of its three parts, one after the other.
        energy_mj: of all, static power apart.
        bytes: what it keeps: all values of the forward pass, inputs included, and weights with what Adam has of each.
    """

    forward_us: float
    backward_us: float
    update_us: float
    energy_mj: float
    bytes: int

    @property
    def time_us(self) -> float:
        """All three."""
        return self.forward_us + self.backward_us + self.update_us


def step_cost(graph: Graph, costs: CostModel) -> StepCost:
    """What a step of training a network takes, all of it on the host.

    Args:
        graph: its forward pass; floating-point constants that a product or an elementwise op reads are trained.
        costs: of the machine.
    """
    alone = costs.host_only()
    trained = {name for node in graph.nodes for name in _trained(graph, node)}
    tracked = set(trained)
    forward, backward = [], []
    for node in graph.nodes:
        cost = alone.node_cost(graph, node)
        forward.append(cost)
        backward += _backward(graph, node, cost, tracked, alone)
        if any(name in tracked for name in node.inputs):
            tracked.update(node.outputs)
    weights = sum(_bytes(graph, name) for name in trained)
    update = alone.host.copy_cost(ADAM_PASSES * weights, "float32")
    values = [*(name for name in graph.inputs if not graph.is_constant(name))]
    values += [name for node in graph.nodes for name in node.outputs if name]
    return StepCost(
        sum(cost.time_us for cost in forward),
        sum(cost.time_us for cost in backward),
        update.time_us if weights else 0.0,
        sum(cost.energy_mj for cost in (*forward, *backward)) + (update.energy_mj if weights else 0.0),
        sum(_bytes(graph, name) for name in values) + ADAM_COPIES * weights,
    )


def _trained(graph: Graph, node: Node) -> Iterator[str]:
    if not (node.op.is_contraction or node.op.is_elementwise):
        return
    for name in node.inputs:
        if name and graph.is_constant(name) and graph.value(name).dtype.startswith(("float", "bfloat")):
            yield name


def _backward(graph: Graph, node: Node, cost: NodeCost, tracked: set[str], costs: CostModel) -> list[NodeCost]:
    """The kernels of a node's backward pass, by their prices."""
    operands = [name for name in node.inputs if name in tracked]
    if not operands:
        return []
    if node.op.is_contraction:
        return [cost] * sum(name in operands for name in node.inputs[:2])
    if isinstance(node.op, Spmm) and all(graph.is_constant(name) for name in node.inputs[1:3]):
        return [_transposed(graph, node, costs)]
    return [cost]


def _transposed(graph: Graph, node: Node, costs: CostModel) -> NodeCost:
    """The gradient of an aggregation's features: every source sums up what its destinations have."""
    x, rowptr, col = node.inputs[:3]
    edges = Edges(graph.constants[rowptr].astype(np.int64), graph.constants[col].astype(np.int32), graph.shape(x)[0])
    turned = edges.transposed()
    build = Builder("gradient")
    gradient = build.input(*graph.shape(node.output), name="gradient", dtype=graph.value(node.output).dtype)
    weights = [build.input(*graph.shape(name), name="weight") for name in node.inputs[3:4] if name]
    rows = [build.constant(turned.rowptr), build.constant(turned.col)]
    program = build.graph(build.op(Spmm(), gradient, *rows, *weights))
    return costs.node_cost(program, program.nodes[0])


def _bytes(graph: Graph, name: str) -> int:
    value = graph.value(name)
    return 0 if value.shape is None else math.prod(value.shape) * (element_bytes(value.dtype) or 0)
