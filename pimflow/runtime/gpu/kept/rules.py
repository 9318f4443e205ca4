"""The work of kept operators by domain and name: operators that multiply have rules, all others stream their operands.

Unknown work is reported, so that it is never mistaken for none: operators of other libraries, and sizes and trip counts
that depend on data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from pimflow.ir import OnnxOp, Op, Value
from pimflow.ir.registry import Registry
from pimflow.runtime.gpu.kept.indexed import indexed
from pimflow.runtime.gpu.work import (
    GPU_WORK,
    OPERATIONS,
    GpuWork,
    KernelSequence,
    NodeWork,
    Operands,
    StreamKind,
    StreamWork,
    value_bytes,
)

CONTRIB = "com.microsoft"
"""ONNX Runtime's own operators."""
BLOCKED = "com.microsoft.nchwc"
"""ONNX Runtime's CPU operators on blocks of channels."""

Rule = Callable[[OnnxOp, Operands], "NodeWork | None"]

KEPT: Registry[tuple[str, str], Rule] = Registry("work of kept operators")
"""Rules for the work of operators that multiply or run other operators."""


def asks(*op_types: str, domain: str = "") -> Callable[[Rule], Rule]:
    """A decorator that registers a function as the rule of some operators.

    Raises:
        ValueError: an operator has a rule already.
    """
    return KEPT.register(*((domain, op_type) for op_type in op_types))


def multiplies(op: Op) -> bool:
    """Whether a kept operator is itself a product; products in bodies do not count."""
    return isinstance(op, OnnxOp) and not op.has_bodies and (op.domain, op.op_type) in KEPT


def is_convolution(op: Op) -> bool:
    """Whether a kept operator is a convolution."""
    return multiplies(op) and "Conv" in op.onnx_name


_FREE = frozenset({"Identity", "Shape", "Size", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Dropout", "Constant"})
_ROW_KERNELS: Mapping[str, StreamKind] = {
    "Softmax": "softmax",
    "LogSoftmax": "softmax",
    "LayerNormalization": "normalization",
    "InstanceNormalization": "normalization",
    "GroupNormalization": "normalization",
    "LpNormalization": "normalization",
}
# Kernels that read a table by index read only the rows that they return.
_GATHERS = frozenset({"Gather", "GatherElements", "GatherND", "Embedding"})
# ONNX's own operators whose arithmetic does not follow from the number of elements.
_UNCOUNTED = frozenset({"CausalConvWithState", "DFT", "Det", "ImageDecoder", "LinearAttention", "STFT", "SequenceMap"})


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Operators of other domains that do not multiply matrices: each element passes once.
_STREAMS = {
    CONTRIB: _names(
        "BiasAdd BiasDropout BiasGelu BiasSoftmax BiasSplitGelu BitmaskBiasDropout BitmaskDropout ComplexMul "
        "ComplexMulConj DequantizeLinear EmbedLayerNormalization ExpandDims FastGelu GatherND Gelu "
        "GemmaRotaryEmbedding GroupNorm IsAllFinite MaxpoolWithMask MulInteger NhwcMaxPool Pad "
        "QEmbedLayerNormalization QLinearAdd QLinearAveragePool QLinearConcat QLinearGlobalAveragePool "
        "QLinearLeakyRelu QLinearMul QLinearReduceMean QLinearSigmoid QLinearSoftmax QLinearWhere "
        "QuantizeLinear QuickGelu Range ReduceSumInteger RelativePositionBias RemovePadding RestorePadding "
        "RotaryEmbedding ScaledSiLU SkipGroupNorm SkipLayerNormalization SkipSimplifiedLayerNormalization "
        "Trilu Unique"
    ),
    BLOCKED: _names("AveragePool GlobalAveragePool GlobalMaxPool MaxPool ReorderInput ReorderOutput Upsample"),
    "ai.onnx.ml": _names(
        "ArrayFeatureExtractor Binarizer CastMap CategoryMapper DictVectorizer FeatureVectorizer Imputer LabelEncoder "
        "Normalizer OneHotEncoder Scaler ZipMap"
    ),
}


@GPU_WORK.register(OnnxOp)
def _kept(op: OnnxOp, operands: Operands) -> NodeWork | None:
    if op.op_type in _FREE:
        return None
    if not op.has_bodies and any(value.shape is None for value in (*operands.inputs, *operands.outputs)):
        return incomplete(_streaming(op, operands), "the sizes of its operands or results depend on data")
    rule = KEPT.get((op.domain, op.op_type))
    if rule is not None:
        return rule(op, operands)
    by_index = indexed(op, operands)
    if by_index is not None:
        return by_index
    work = _streaming(op, operands)
    if op.op_type in _UNCOUNTED or (op.domain and op.op_type not in _STREAMS.get(op.domain, ())):
        return incomplete(work, "its arithmetic is not modelled")
    return work


def incomplete(work: GpuWork, unknown: str) -> KernelSequence:
    """One kernel that is not, or not certainly, all of the work."""
    return KernelSequence(((work, 1),), unknown)


def invalid_operands(operands: Operands) -> KernelSequence:
    """The work of an operator whose operands are not as in a valid model, for example from a row of a table."""
    return incomplete(StreamWork(0, operands.bytes), "its operands are not supported")


def _streaming(op: OnnxOp, operands: Operands) -> StreamWork:
    inputs, outputs, moved = operands.inputs, operands.outputs, operands.bytes
    if op.op_type in _GATHERS:
        returned = sum(value_bytes(value, operands.element_bytes) for value in outputs)
        indices = sum(value_bytes(value, operands.element_bytes) for value in inputs[1:])
        return StreamWork(0, 2 * returned + indices)
    elements = max((value.elements for value in (*inputs, *outputs)), default=0)
    if op.op_type == "LRN":
        return StreamWork(elements * (2 * integer(op, "size", 5) + 10), moved)
    kind = _ROW_KERNELS.get(op.op_type, "elementwise")
    rows, columns = _rows(op, inputs) if kind != "elementwise" else (0, 0)
    return StreamWork(elements * OPERATIONS.get(op.op_type, 1), moved, kind, rows, columns)


def _rows(op: OnnxOp, inputs: Sequence[Value]) -> tuple[int, int]:
    """The number of rows of a softmax or a normalisation, and the elements of each; zeros if its sizes are unknown."""
    shape = inputs[0].shape if inputs else None
    if not shape or 0 in shape:
        return 0, 0
    axis = integer(op, "axis", 1 if op.op_type == "LpNormalization" else -1)
    if op.op_type == "LayerNormalization":
        columns = math.prod(shape[axis:])
    elif op.op_type == "InstanceNormalization":
        columns = math.prod(shape[2:])
    elif op.op_type == "GroupNormalization":
        columns = math.prod(shape[1:]) // max(integer(op, "num_groups", 1), 1)
    else:
        columns = shape[axis] if -len(shape) <= axis < len(shape) else 1
    return math.prod(shape) // max(columns, 1), columns


def integer(op: OnnxOp, name: str, default: int = 0) -> int:
    """An integer attribute."""
    value = dict(op.attributes).get(name, default)
    return value if isinstance(value, int) else default


def integers(op: OnnxOp, name: str) -> tuple[int, ...]:
    """An attribute that is a list of integers; () if it is absent."""
    value = dict(op.attributes).get(name, ())
    return tuple(item for item in value if isinstance(item, int)) if isinstance(value, tuple) else ()


def shape_of(operands: Operands, position: int) -> tuple[int, ...] | None:
    """The shape of an operand; None if it is absent."""
    value = operands.given[position] if position < len(operands.given) else None
    return None if value is None else value.shape


def elements_at(operands: Operands, position: int) -> int:
    """The number of elements of an operand; 0 if it is absent."""
    value = operands.given[position] if position < len(operands.given) else None
    return 0 if value is None else value.elements


def bytes_at(operands: Operands, *positions: int) -> int:
    """The total bytes of some operands; absent ones count as 0."""
    given = (operands.given[position] for position in positions if position < len(operands.given))
    return sum(value_bytes(value, operands.element_bytes) for value in given if value is not None)
