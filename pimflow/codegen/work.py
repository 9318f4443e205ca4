"""The work that a node is for a unit, independent of graphs: `Work`, which is open, and the kinds of matrix units.

Everything downstream (mapping, streams, values, costs, the price cache) is a function of a node's work and a target.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pimflow.ir import Conv2d, Gemm, Graph, MatMul, Node, OpRules, Refusal, window_out
from pimflow.ir.expansion import expand, is_expandable, why_whole
from pimflow.ir.ops.elementwise import broadcast
from pimflow.records import dataclass

MAX_MACS = 10**18
"""The most multiplications of a matrix problem that is timed: floating-point numbers tell larger counts no longer
apart."""


@dataclass(frozen=True, slots=True)
class Work:
    """The work that a node is for a unit. A subclass is a frozen dataclass; its fields determine the price completely.

    Work other than matrix problems has its own subclass, next to the backends that accept it.
    """


@dataclass(frozen=True, slots=True)
class ConvProblem(Work):
    """A convolution with constant weights, NCHW; groups are allowed (each one is a smaller convolution)."""

    batch: int
    in_channels: int
    out_channels: int
    in_h: int
    in_w: int
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)  # top, left, bottom, right
    dilations: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def out_h(self) -> int:
        """Output rows."""
        return window_out(self.in_h, self.kernel[0], self.strides[0], self.pads[0], self.pads[2], self.dilations[0])

    @property
    def out_w(self) -> int:
        """Output columns."""
        return window_out(self.in_w, self.kernel[1], self.strides[1], self.pads[1], self.pads[3], self.dilations[1])

    @property
    def pixels(self) -> int:
        """P: output positions over the batch."""
        return self.batch * self.out_h * self.out_w

    @property
    def depth(self) -> int:
        """K: length of one dot product."""
        return (self.in_channels // self.groups) * self.kernel[0] * self.kernel[1]

    @property
    def columns(self) -> int:
        """Output channels of one group."""
        return self.out_channels // self.groups

    @property
    def macs(self) -> int:
        """Multiply-accumulates, including those with zero padding."""
        return self.pixels * self.depth * self.out_channels


@dataclass(frozen=True, slots=True)
class MatmulProblem(Work):
    """[batch, m, k] @ [k, n], or @ [batch, k, n] if the right-hand side is batched too.

    `constant_rhs` is False if the right-hand side is an activation: placing it in the banks is then part of the cost.
    """

    m: int
    k: int
    n: int
    batch: int = 1
    batched_rhs: bool = False
    constant_rhs: bool = True

    @property
    def pixels(self) -> int:
        """P: rows over the batch."""
        return self.batch * self.m

    @property
    def depth(self) -> int:
        """K: length of one dot product."""
        return self.k

    @property
    def columns(self) -> int:
        """Output columns of one right-hand side."""
        return self.n

    @property
    def groups(self) -> int:
        """Independent products with different weights."""
        return self.batch if self.batched_rhs else 1

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return self.batch * self.m * self.k * self.n


MatrixProblem = ConvProblem | MatmulProblem
"""The work of units that multiply matrices."""


@dataclass(frozen=True, slots=True)
class NarrowProblem(Work):
    """A matrix problem whose operands are both narrow integers, for a unit that can multiply these."""

    product: MatrixProblem
    dtype: str


MATRIX_PROBLEMS: OpRules[Callable[[Graph, Node, Any], MatrixProblem | Refusal]] = OpRules(
    "matrix problems", asks=lambda kind: kind.is_contraction
)
"""The problem of a node for a matrix unit, by its op. The result is all that a price depends on, including elements of
constants: an op with `content_operands` puts their digests into it."""


def matrix_problem(graph: Graph, node: Node) -> MatrixProblem | Refusal:
    """The node's work for a unit that multiplies matrices, or why it has none.

    For an operator that is kept in ONNX's form, it is the work of the product in it, which `DevicePlacement` extracts.

    Refused: ops that are not matrix products, depthwise convolutions (one input channel per group leaves 15 of 16
    multipliers idle), computed convolution weights, empty or unknown shapes, a transposed or non-2-D left-hand side.
    """
    rule = MATRIX_PROBLEMS.find(node.op)
    if is_expandable(node.op):
        apart = expand(graph, node, elements=False)
        if isinstance(apart, Refusal):
            return Refusal(f"{node.kind}: {apart.reason}")
        return matrix_problem(apart.graph, apart.graph.node(apart.product))
    if rule is None and why_whole(graph, node):
        return Refusal(f"{node.kind}: {why_whole(graph, node)}")
    if rule is None:
        return Refusal(f"{node.kind} is not a matrix product, runs on the GPU")
    return rule(graph, node, node.op)


@MATRIX_PROBLEMS.register(Conv2d)
def _conv_problem(graph: Graph, node: Node, op: Conv2d) -> MatrixProblem | Refusal:
    shape = graph.value(node.inputs[0]).shape
    if shape is None or 0 in shape:
        return Refusal("input has no static, non-empty shape")
    if not graph.is_constant(node.inputs[1]):
        return Refusal("weights are computed, PIM needs them in its banks before the run")
    batch, channels, height, width = shape
    out_channels = graph.shape(node.inputs[1])[0]
    if op.groups > 1 and op.groups == channels:
        return Refusal("groups == channels, depthwise runs on the GPU")
    problem = ConvProblem(
        batch, channels, out_channels, height, width, op.kernel, op.strides, op.pads, op.dilations, op.groups
    )
    if problem.out_h < 1 or problem.out_w < 1:
        return Refusal("output is empty")
    return problem


@MATRIX_PROBLEMS.register(Gemm)
def _gemm_problem(graph: Graph, node: Node, op: Gemm) -> MatrixProblem | Refusal:
    if op.trans_a:
        return Refusal("left-hand side is transposed, its rows are not contiguous")
    left, right = graph.value(node.inputs[0]).shape, graph.value(node.inputs[1]).shape
    if left is None or right is None or 0 in left or 0 in right:
        return Refusal("an input has no static, non-empty shape")
    m, k = left
    n = right[0] if op.trans_b else right[1]
    return MatmulProblem(m, k, n, constant_rhs=graph.is_constant(node.inputs[1]))


@MATRIX_PROBLEMS.register(MatMul)
def _matmul_problem(graph: Graph, node: Node, op: MatMul) -> MatrixProblem | Refusal:
    left, right = graph.value(node.inputs[0]).shape, graph.value(node.inputs[1]).shape
    if left is None or right is None or 0 in left or 0 in right:
        return Refusal("an input has no static, non-empty shape")
    if len(left) < 2 or len(right) < 2:
        return Refusal("a matrix-vector product in 1-D form")
    constant = graph.is_constant(node.inputs[1])
    if math.prod(right[:-2]) == 1:
        return MatmulProblem(left[-2], left[-1], right[-1], math.prod(left[:-2]), constant_rhs=constant)
    batch = math.prod(broadcast(left[:-2], right[:-2]))  # a broadcast operand is read and stored once per product
    return MatmulProblem(left[-2], left[-1], right[-1], batch, batched_rhs=True, constant_rhs=constant)
