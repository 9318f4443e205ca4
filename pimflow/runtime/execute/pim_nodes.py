"""Executes a graph's PIM nodes by value: the streams compute the matrix product, the rest of the op is added here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pimflow.codegen.newton import PimProgram
from pimflow.errors import GraphError
from pimflow.ir import Array, Conv2d, Gemm, Graph, MatMul, Node, OpRules
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
        shape, program = self.graph.shape(node.output), self.programs[node.name]

        def multiply(source: Array, weights: Array) -> Array:
            return execute(program, source, weights, self.operand).reshape(shape)

        source = inputs[0]
        assert source is not None
        return [PIM_VALUES.of(node.op)(node.op, inputs, multiply).astype(source.dtype)]


Multiply = Callable[[Array, Array], Array]
"""What the streams compute of a source [N, C, H, W] or [.., m, k] and weights [O, C/groups, kh, kw] or [.., k, n]."""

PIM_VALUES: OpRules[Callable[[Any, Sequence[Array | None], Multiply], Array]] = OpRules(
    "values on PIM", asks=lambda kind: kind.is_contraction
)
"""How an op's value comes about from the product that the streams compute, and what is done beside it."""


@PIM_VALUES.register(Conv2d)
def _conv(op: Conv2d, inputs: Sequence[Array | None], multiply: Multiply) -> Array:
    source, weights, bias = _operands(inputs)
    product = multiply(source, weights)
    return product if bias is None else np.add(product, bias.reshape(1, -1, 1, 1))


@PIM_VALUES.register(Gemm)
def _gemm(op: Gemm, inputs: Sequence[Array | None], multiply: Multiply) -> Array:
    source, weights, bias = _operands(inputs)
    product = multiply(source, weights.T if op.trans_b else weights)
    scaled: Array = np.multiply(product, np.float32(op.alpha))
    return scaled if bias is None else np.add(scaled, np.multiply(bias, np.float32(op.beta)))


@PIM_VALUES.register(MatMul)
def _matmul(op: MatMul, inputs: Sequence[Array | None], multiply: Multiply) -> Array:
    source, weights, _ = _operands(inputs)
    return multiply(source, weights)


def _operands(inputs: Sequence[Array | None]) -> tuple[Array, Array, Array | None]:
    """Source, weights and bias."""
    source, weights, bias = (*inputs, None)[:3]
    assert source is not None
    assert weights is not None
    return source, weights, bias
