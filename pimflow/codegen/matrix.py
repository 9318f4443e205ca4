"""Units that multiply matrices: what all of them share, however they compute the product."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pimflow.codegen.backend import Backend, P
from pimflow.codegen.work import MatrixProblem, Work, matrix_problem
from pimflow.errors import OptionError
from pimflow.ir import Array, Conv2d, Gemm, Graph, MatMul, Node, OpRules, Refusal


class MatrixBackend(Backend[Any, P]):
    """A unit whose programs compute the product in a convolution or matrix product; the rest of the op is added here.

    It may accept other kinds of work too.
    """

    def work(self, graph: Graph, node: Node) -> Work | Refusal:
        """Convolutions and matrix products, as defined by `matrix_problem`."""
        return matrix_problem(graph, node)

    def of_operand(self, problem: MatrixProblem, operand: str) -> Work:
        """The work of a problem with operands of a type: the unit's own ("") or one of `narrow_operands`.

        Raises:
            OptionError: the unit does not multiply such operands.
        """
        if operand not in ("", self.operand):
            raise OptionError(f"{self.device.upper()} cannot multiply {operand}", f"choose {self.operand}")
        return problem

    @abstractmethod
    def multiply(self, program: P, left: Array, right: Array, operand: str) -> Array:
        """The product that a program computes, by value, with operands rounded to `operand`.

        Args:
            program: what to execute.
            left: activations of a convolution [N, C, H, W], or the left-hand side of a product [.., m, k].
            right: weights [O, C/groups, kh, kw], or the right-hand side [.., k, n].
            operand: one of `operands`.
        """

    def execute(self, program: P, graph: Graph, node: Node, inputs: Sequence[Array | None], operand: str) -> Array:
        """The product, computed by the program, with the rest of the op applied."""
        return value_around(graph, node, inputs, lambda left, right: self.multiply(program, left, right, operand))


Multiply = Callable[[Array, Array], Array]
"""Computes the product of a left-hand and a right-hand side, in the shape of the node's output."""

PRODUCT_VALUES: OpRules[Callable[[Any, Sequence[Array | None], Multiply], Array]] = OpRules(
    "values of products", asks=lambda kind: kind.is_contraction
)
"""How to compute an op's value from the product of a program and the rest of the op."""


def value_around(graph: Graph, node: Node, inputs: Sequence[Array | None], multiply: Multiply) -> Array:
    """A node's value: the product, computed by a program in any form, with the rest of the op applied."""
    shape, source = graph.shape(node.output), inputs[0]
    assert source is not None
    value = PRODUCT_VALUES.of(node.op)(node.op, inputs, lambda left, right: multiply(left, right).reshape(shape))
    return value.astype(source.dtype)


@PRODUCT_VALUES.register(Conv2d)
def _conv(op: Conv2d, inputs: Sequence[Array | None], multiply: Multiply) -> Array:
    source, weights, bias = _operands(inputs)
    product = multiply(source, weights)
    return product if bias is None else np.add(product, bias.reshape(1, -1, 1, 1))


@PRODUCT_VALUES.register(Gemm)
def _gemm(op: Gemm, inputs: Sequence[Array | None], multiply: Multiply) -> Array:
    source, weights, bias = _operands(inputs)
    product = multiply(source, weights.T if op.trans_b else weights)
    scaled: Array = np.multiply(product, np.float32(op.alpha))
    return scaled if bias is None else np.add(scaled, np.multiply(bias, np.float32(op.beta)))


@PRODUCT_VALUES.register(MatMul)
def _matmul(op: MatMul, inputs: Sequence[Array | None], multiply: Multiply) -> Array:
    source, weights, _ = _operands(inputs)
    batch = np.broadcast_shapes(source.shape[:-2], weights.shape[:-2])
    if weights.size > weights.shape[-2] * weights.shape[-1]:  # else there is a single right-hand side
        weights = np.broadcast_to(weights, (*batch, *weights.shape[-2:]))
    return multiply(np.broadcast_to(source, (*batch, *source.shape[-2:])), weights)


def _operands(inputs: Sequence[Array | None]) -> tuple[Array, Array, Array | None]:
    """Source, weights and bias."""
    source, weights, bias = (*inputs, None)[:3]
    assert source is not None
    assert weights is not None
    return source, weights, bias
