"""Work of sparse ops on a GPU."""

from __future__ import annotations

from pimflow.ir import EdgeSoftmax, GatherRows, Sddmm, SegmentReduce, Spmm, TypedLinear
from pimflow.runtime.gpu.work import GPU_WORK, MatrixWork, Operands, StreamWork, value_bytes


@GPU_WORK.register(Spmm)
def _spmm(op: Spmm, operands: Operands) -> StreamWork:
    edges = operands.inputs[2].elements
    width = operands.output.elements // max((operands.output.shape or (1,))[0], 1)
    gathered = edges * width * operands.element_bytes
    others = operands.bytes - value_bytes(operands.inputs[0], operands.element_bytes)
    return StreamWork(2 * edges * width, gathered + others)


@GPU_WORK.register(SegmentReduce, Sddmm, GatherRows)
def _edge_values(op: SegmentReduce, operands: Operands) -> StreamWork:
    return StreamWork(operands.inputs[0].elements, operands.bytes)


@GPU_WORK.register(EdgeSoftmax)
def _edge_softmax(op: EdgeSoftmax, operands: Operands) -> StreamWork:
    return StreamWork(8 * operands.output.elements, operands.bytes, "softmax")


@GPU_WORK.register(TypedLinear)
def _typed_linear(op: TypedLinear, operands: Operands) -> MatrixWork:
    m, k = operands.inputs[0].shape or (0, 0)
    n = (operands.output.shape or (0, 0))[1]
    return MatrixWork(m, n, k, 1, operands.bytes)
