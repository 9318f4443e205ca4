"""Matrix products that are kept as operators: quantised, transposed within a batch, or in types no unit supports."""

from __future__ import annotations

from pimflow.ir import OnnxOp, Shape
from pimflow.runtime.gpu.kept.rules import CONTRIB, asks, elements_at, integer, shape_of
from pimflow.runtime.gpu.work import GpuWork, MatrixWork, Operands, StreamWork, batched_product

_Shapes = tuple["Shape | None", "Shape | None"]


@asks("Gemm", "MatMul", "MatMulInteger")
@asks("DynamicQuantizeMatMul", "FusedGemm", "FusedMatMul", "FusedMatMulActivation", domain=CONTRIB)
@asks("GemmFastGelu", "GemmFloat8", "MatMulInteger16", "MatMulIntegerToFloat", "TransposeMatMul", domain=CONTRIB)
def _product(op: OnnxOp, operands: Operands) -> GpuWork:
    return _of_shapes(op, operands, (shape_of(operands, 0), shape_of(operands, 1)))


@asks("QLinearMatMul")
@asks("QGemm", domain=CONTRIB)
def _quantised(op: OnnxOp, operands: Operands) -> GpuWork:
    """Scale and zero point are between the operands."""
    return _of_shapes(op, operands, (shape_of(operands, 0), shape_of(operands, 3)))


@asks("QOrderedMatMul", domain=CONTRIB)
def _ordered(op: OnnxOp, operands: Operands) -> GpuWork:
    return _of_shapes(op, operands, (shape_of(operands, 0), shape_of(operands, 2)))


@asks("MatMulNBits", "MatMulBnb4", domain=CONTRIB)
def _packed(op: OnnxOp, operands: Operands) -> GpuWork:
    """Weights are packed, several to a byte: attributes give their sizes, and the packed bytes are read."""
    depth, columns = integer(op, "K"), integer(op, "N")
    rows = elements_at(operands, 0) // max(depth, 1)
    return MatrixWork(rows, columns, depth, 1, operands.bytes)


def _of_shapes(op: OnnxOp, operands: Operands, shapes: _Shapes) -> GpuWork:
    left = _oriented(shapes[0], integer(op, "transA"), integer(op, "transBatchA"))
    right = _oriented(shapes[1], integer(op, "transB"), integer(op, "transBatchB"))
    if not left or not right:
        return StreamWork(0, operands.bytes)
    return batched_product(left, right, operands.output.elements, operands.bytes)


def _oriented(shape: Shape | None, transposed: int, of_batch: int) -> Shape | None:
    """The shape of an operand in numpy.matmul's convention; the row axis may come before the batch axes."""
    if shape is None or len(shape) < 2:
        return shape
    if of_batch:
        shape = (*shape[1:-1], shape[0], shape[-1])
    return (*shape[:-2], shape[-1], shape[-2]) if transposed else shape
