"""Which constants may be trained, by their elements, and which ops keep them apart."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from pimflow.ir import Array, GatherRows, Graph, OnnxOp
from pimflow.ir.analysis.tensor_layout import is_float
from pimflow.ir.ops.base import Op

LARGEST_PARAMETER = 1e4
"""Constants with larger elements are masks, not parameters (exporters write -inf as the least float)."""

_TABLES = frozenset({"Gather", "GatherElements", "GatherND"})


def is_trainable(graph: Graph, name: str) -> bool:
    """Whether a constant may be trained: it has several floats, none of them huge or not finite."""
    return is_float_in_range(graph, name) and graph.value(name).elements > 1


def is_float_in_range(graph: Graph, name: str) -> bool:
    """Whether a constant has floats, none of them huge or not finite."""
    array = graph.constants.get(name)
    if array is None or not array.size or not is_float(array.dtype.name) or graph.packed_form(name) is not None:
        return False
    largest = np.abs(stored(array).astype(np.float32, copy=False)).max()
    return bool(np.isfinite(largest) and largest <= LARGEST_PARAMETER)


def is_unmasked(graph: Graph, name: str) -> bool:
    """Whether a constant may be trained and is not a mask, i.e. zeros and one other value.

    Two elements may be like that by chance; a shift or scale initialised to zeros or ones has only one value.
    """
    if not is_trainable(graph, name):
        return False
    elements = stored(graph.constants[name])
    others = elements[elements != 0]
    return elements.size == 2 or others.size in (0, elements.size) or bool((others != others[0]).any())


def stored(array: Array) -> Array:
    """The elements of a constant that are in memory: those along a broadcast axis count once."""
    return array[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)]


def picks_rows(op: Op) -> bool:
    """Whether an op looks up rows or elements of its first operand."""
    return isinstance(op, GatherRows) or (isinstance(op, OnnxOp) and op.op_type in _TABLES)


def combines_learnt(op: Op, learnt: Sequence[Collection[str]]) -> bool:
    """Whether an op multiplies or adds separately trained constants, so that its result is not a parameter itself.

    Args:
        op: any op.
        learnt: by operand, the trainable constants that it is computed from.
    """
    if not op.is_contraction and not multiplies_weights(op) and op.onnx_name not in ("Add", "Sub", "Mul", "Div"):
        return False
    operands = [names for names in learnt if names]
    return len(operands) > 1 and len(set().union(*operands)) > 1


def multiplies_weights(op: Op) -> bool:
    """Whether an op of ONNX without a class of its own multiplies its operand by weights."""
    names = ("Conv", "ConvTranspose", "Einsum")
    return isinstance(op, OnnxOp) and (op.op_type in names or op.op_type.endswith("Normalization"))
