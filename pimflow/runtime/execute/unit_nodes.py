"""Executes the nodes of units by value: their programs compute the matrix product, the rest of the op is added here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pimflow.codegen.backend import Backend
from pimflow.errors import GraphError
from pimflow.ir import Array, Conv2d, Gemm, Graph, MatMul, Node, OpRules


class UnitExecutor:
    """Runs nodes that leave the host through their units' programs; passed to `run_in_arena`.

    Args:
        graph: the graph whose nodes are run.
        programs: what the units execute, by node name.
        units: backends by device.
        operand: the element type that operands are rounded to; None for each unit's own.
        progress: receives a line of text per node.
    """

    def __init__(
        self,
        graph: Graph,
        programs: Mapping[str, Any],
        units: Mapping[str, Backend[Any]],
        operand: str | None,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.graph = graph
        self.programs = programs
        self.units = units
        self.operand = operand
        self.progress = progress

    def runs(self, node: Node) -> bool:
        """Whether the node is placed on one of the units."""
        return node.device in self.units

    def __call__(self, node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
        """The node's one result, from its dense operands.

        Raises:
            GraphError: the node has no program.
        """
        if node.name not in self.programs:
            raise GraphError(f"node {node.name!r} has no program for {node.device}")
        unit = self.units[node.device or ""]
        self.progress(f"executing {node.name} on {unit.device.upper()}")
        shape, program = self.graph.shape(node.output), self.programs[node.name]

        def multiply(source: Array, weights: Array) -> Array:
            return unit.execute(program, source, weights, self.operand or unit.operand).reshape(shape)

        source = inputs[0]
        assert source is not None
        return [UNIT_VALUES.of(node.op)(node.op, inputs, multiply).astype(source.dtype)]


Multiply = Callable[[Array, Array], Array]
"""What a program computes of a source [N, C, H, W] or [.., m, k] and weights [O, C/groups, kh, kw] or [.., k, n]."""

UNIT_VALUES: OpRules[Callable[[Any, Sequence[Array | None], Multiply], Array]] = OpRules(
    "values on units", asks=lambda kind: kind.is_contraction
)
"""How an op's value comes about from the product that a program computes, and what is done beside it."""


@UNIT_VALUES.register(Conv2d)
def _conv(op: Conv2d, inputs: Sequence[Array | None], multiply: Multiply) -> Array:
    source, weights, bias = _operands(inputs)
    product = multiply(source, weights)
    return product if bias is None else np.add(product, bias.reshape(1, -1, 1, 1))


@UNIT_VALUES.register(Gemm)
def _gemm(op: Gemm, inputs: Sequence[Array | None], multiply: Multiply) -> Array:
    source, weights, bias = _operands(inputs)
    product = multiply(source, weights.T if op.trans_b else weights)
    scaled: Array = np.multiply(product, np.float32(op.alpha))
    return scaled if bias is None else np.add(scaled, np.multiply(bias, np.float32(op.beta)))


@UNIT_VALUES.register(MatMul)
def _matmul(op: MatMul, inputs: Sequence[Array | None], multiply: Multiply) -> Array:
    source, weights, _ = _operands(inputs)
    return multiply(source, weights)


def _operands(inputs: Sequence[Array | None]) -> tuple[Array, Array, Array | None]:
    """Source, weights and bias."""
    source, weights, bias = (*inputs, None)[:3]
    assert source is not None
    assert weights is not None
    return source, weights, bias
