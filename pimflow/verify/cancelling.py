"""Outputs that are sums whose terms cancel, such as the gradient of a bias in front of a norm: rounding is all of them.

Such an output is smaller than what another order of the same additions may change, and no bound relative to its own
magnitude means anything. What its rounding may be follows from the magnitude of its terms.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pimflow.ir import Array, Graph, Node
from pimflow.runtime.execute.nodes import run_nodes
from pimflow.runtime.execute.ort import NodeKernels
from pimflow.verify.blocks import largest_magnitude
from pimflow.verify.reference import SUMS_RTOL, magnitudes

_SUMS = frozenset({"Add", "ReduceMean", "ReduceSum", "Sum"})
"""Kinds of nodes other than contractions that add up their operands."""


def cancelled_sums(graph: Graph, feeds: Mapping[str, Any], names: Collection[str]) -> dict[str, float]:
    """The outputs that are cancelled sums, each with the change that another order of its terms may cause.

    The change is relative to the output's largest magnitude, so it is 1 or more.

    Args:
        graph: the original.
        feeds: arrays by input name.
        names: the outputs to look at.
    """
    sums = {name: node.name for name in names if (node := _sum_of(graph, name)) is not None}
    terms = _Terms(graph, frozenset(sums.values()))
    if sums:
        run_nodes(graph, feeds, terms)
    return {name: terms.change[node] for name, node in sums.items() if terms.change[node] >= 1}


def _sum_of(graph: Graph, name: str) -> Node | None:
    """The node that computes a value, before its elements were moved, if the node is a sum."""
    node = graph.producer(name)
    while node is not None and node.op.is_movement:
        node = graph.producer(node.inputs[0])
    return node if node is not None and (node.op.is_contraction or node.kind in _SUMS) else None


class _Terms:
    """Executes nodes; of some sums, finds what the order of their terms may change."""

    def __init__(self, graph: Graph, sums: Collection[str]) -> None:
        self.change: dict[str, float] = {}
        self._sums = sums
        self._kernels = NodeKernels(graph)

    def __call__(self, node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
        results = self._kernels.run(node, inputs)
        if node.name in self._sums:
            sizes = self._kernels.run(node, [magnitudes(array) for array in inputs])
            terms, largest = largest_magnitude(sizes[0]), largest_magnitude(results[0])
            self.change[node.name] = SUMS_RTOL * terms / largest if largest else 0.0
        return results
