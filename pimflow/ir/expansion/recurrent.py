"""LSTM, GRU and RNN: the product of the inputs of all steps, separate from the recurrence."""

from __future__ import annotations

import numpy as np

from pimflow.ir.expansion.base import CONTRIB, PackedBy, Writer, expands, stays
from pimflow.ir.graph import Array
from pimflow.ir.ops.contraction import PRODUCT
from pimflow.ir.ops.opaque import PREPARED, OnnxOp
from pimflow.ir.refusal import Refusal

MAX_GATES = 2**14
"""The maximum number of gates of all directions together. In ONNX, W is replaced by a selection matrix with that many
rows and columns, which takes 4 bytes per element at run time."""

EYE_OPSET = 9
"""The first opset with EyeLike and ConstantOfShape, which that selection is made of."""


@expands("LSTM", "GRU", "RNN")
def _recurrent(writer: Writer) -> Refusal | None:
    """X W^T of all steps, gates and directions in one product; then the recurrence, with its other operands unchanged.

    The recurrence still adds the biases. (Appleyard et al., Optimizing Performance of Recurrent Neural Networks on
    GPUs, 2016, section 3.2.)
    """
    x, weights = writer.operand(0), writer.constant_at(1)
    if weights is None:
        return Refusal("the weights of its inputs are computed, PIM needs them in its banks before the run")
    if weights.ndim != 3 or len(writer.shape(x)) != 3:
        return Refusal("its operands are not supported")
    directions, gates, features = weights.shape
    if directions * gates > MAX_GATES:
        return Refusal(f"it has {directions * gates} gates, but ONNX takes products of at most {MAX_GATES}")
    if writer.opset < EYE_OPSET:
        return Refusal(f"ONNX takes products of its inputs only from opset {EYE_OPSET} on")

    packed = _packed(writer, weights)
    # ONNX Runtime would round x to 8 bits if it multiplied it by 8-bit weights of two dims, so these have three.
    shape = (features, directions * gates) if packed is None else (1, features, directions * gates)
    right = writer.constant(shape, weights.dtype.name, lambda: _transposed(weights), packed)
    made = writer.product(PRODUCT, x, right)
    writer.results(
        writer.op.op_type, [made, "", *writer.node.inputs[2:]], domain=PREPARED, **dict(writer.op.attributes)
    )
    return None


def _transposed(array: Array) -> Array:
    """[directions, gates, features] transposed to [features, directions * gates]."""
    return np.asarray(array.reshape(-1, array.shape[2]).T)


def _packed(writer: Writer, weights: Array) -> PackedBy | None:
    """How the model stores the weights [directions, gates, features] in few bits, converted to the transposed ones."""
    packed = writer.graph.packed_form(writer.operand(1))
    if packed is None or any(name != "axis" for name, _ in packed.op.attributes):
        return None
    elements, *scales = packed.operands
    directions, gates, features = weights.shape
    axis = dict(packed.op.attributes).get("axis", 1)
    if elements is None or not isinstance(axis, int) or (axis % 3 == 2 and any(map(_is_vector, scales))):
        return None

    def along(array: Array | None) -> Array | None:
        if array is None or not _is_vector(array):
            return None if array is None else array.reshape(())
        return np.repeat(array, gates) if axis % 3 == 0 else np.tile(array, directions)

    op = OnnxOp("DequantizeLinear", "", (("axis", 2),))
    transposed = np.ascontiguousarray(_transposed(elements)).reshape(1, features, directions * gates)
    return op, (transposed, *(along(array) for array in scales))


def _is_vector(array: Array | None) -> bool:
    return array is not None and array.size > 1


stays("its only products are those of its steps", "LSTM", "GRU", "RNN", domain=PREPARED)
stays("its steps multiply in 8 bits, and take no precomputed products", "DynamicQuantizeLSTM", domain=CONTRIB)
