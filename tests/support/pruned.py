"""An op whose cost depends on a constant's elements: a matrix product that skips rows of zeros in its weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from pimflow.codegen.work import MATRIX_PROBLEMS, MatmulProblem
from pimflow.ir import Array, Graph, Node, Refusal, RowPart, register_op
from pimflow.ir.analysis.content import content_of
from pimflow.ir.analysis.rows import Shape, Shapes
from pimflow.ir.ops.contraction import Contraction, matmul_shape
from pimflow.ir.registry import scratch_registrations
from pimflow.runtime.gpu.work import GPU_WORK, MatrixWork, Operands


@dataclass(frozen=True)
class Pruned(Contraction):
    """[m, k] @ [k, n]."""

    onnx_names = ("Pruned",)
    onnx_domain = "test"
    content_operands = (1,)

    def shape_rule(self, shapes: Shapes) -> Shape:
        return matmul_shape(shapes[0], shapes[1])

    def row_rule(self, in_shapes: Shapes, out_shape: Shape, start: int, stop: int) -> RowPart | Refusal:
        return RowPart(self, ((start, stop), None))


@dataclass(frozen=True)
class PrunedWork(MatmulProblem):
    """The dense work, and the identity of its weights."""

    rows_kept: int = 0
    content: tuple[str | None, ...] = ()


@contextmanager
def pruned_products() -> Iterator[None]:
    """Register the op `Pruned`, with rules for both devices, for the duration of the context."""
    with scratch_registrations():
        register_op(Pruned)
        MATRIX_PROBLEMS.add(Pruned, _work)
        GPU_WORK.add(Pruned, _gpu_work)
        yield


def _work(graph: Graph, node: Node, op: Pruned) -> PrunedWork:
    (m, k), (_, n) = (graph.shape(name) for name in node.inputs)
    return PrunedWork(m, k, n, rows_kept=_rows_kept(graph.constants[node.inputs[1]]), content=content_of(graph, node))


def _gpu_work(op: Pruned, operands: Operands) -> MatrixWork:
    (m, n), weights = operands.output.shape or (0, 0), operands.constants[1]
    return MatrixWork(m, n, _rows_kept(weights), 1, operands.bytes)


def _rows_kept(weights: Array) -> int:
    return int(np.any(weights, axis=1).sum())
