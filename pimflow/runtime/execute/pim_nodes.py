"""Executes a graph's PIM nodes by value: the streams compute the matrix product, the rest of the op is added here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from pimflow.codegen.newton import PimProgram
from pimflow.errors import GraphError
from pimflow.ir import Array, Conv2d, Gemm, Graph, MatMul, Node
from pimflow.runtime.newton.values import execute


class PimExecutor:
    """Runs PIM nodes through their command streams; hand it to `run_in_arena`.

    Args:
        graph: the graph whose nodes are run.
        programs: streams by node name.
        operand: "fp16", "bf16" or "fp32".
        progress: receives a line of text per node.
    """

    def __init__(
        self,
        graph: Graph,
        programs: Mapping[str, PimProgram],
        operand: str,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.graph = graph
        self.programs = programs
        self.operand = operand
        self.progress = progress

    def __call__(self, node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
        """The node's one result, from its dense operands.

        Raises:
            GraphError: the node has no program.
        """
        if node.name not in self.programs:
            raise GraphError(f"PIM node {node.name!r} has no command streams")
        self.progress(f"executing the streams of {node.name}")
        source, weights, bias = (*inputs, None)[:3]
        assert source is not None
        assert weights is not None
        if isinstance(node.op, Gemm) and node.op.trans_b:
            weights = weights.T
        product = execute(self.programs[node.name], source, weights, self.operand)
        product = product.reshape(self.graph.shape(node.output))
        return [_finish(node, product, bias).astype(source.dtype)]


def _finish(node: Node, product: Array, bias: Array | None) -> Array:
    """What the op does beside the product: bias, and Gemm's factors."""
    if isinstance(node.op, Conv2d):
        return product if bias is None else np.add(product, bias.reshape(1, -1, 1, 1))
    if isinstance(node.op, Gemm):
        scaled: Array = np.multiply(product, np.float32(node.op.alpha))
        return scaled if bias is None else np.add(scaled, np.multiply(bias, np.float32(node.op.beta)))
    assert isinstance(node.op, MatMul)
    return product
