"""The projection that ONNX Runtime fuses into its Attention."""

from __future__ import annotations

from pimflow.ir.expansion.base import CONTRIB, Writer, expands, stays
from pimflow.ir.expansion.product import quantised_weights
from pimflow.ir.ops.contraction import PRODUCT
from pimflow.ir.ops.movement import Slice
from pimflow.ir.refusal import Refusal

_SHARED = frozenset({"num_heads", "mask_filter_value", "scale", "unidirectional"})


@expands("Attention", domain=CONTRIB)
def _attention(writer: Writer) -> Refusal | None:
    """One product computes queries, keys and values from the input; their attention stays one operator."""
    if writer.constant_at(1) is None:
        return Refusal("the weights of its projection are computed")
    refusal = _inseparable(writer, mask_at=3, past_at=(4, 6))
    if refusal is not None:
        return refusal
    _attend(
        writer, writer.product(PRODUCT, writer.operand(0), writer.operand(1)), [_mask(writer, 3), writer.operand(5)]
    )
    return None


@expands("QAttention", domain=CONTRIB)
def _quantised(writer: Writer) -> Refusal | None:
    """The 8-bit variant. Operands are X, W, bias, the scales of X and W, a mask, their zero points, and a past."""
    x, scale, zero = writer.operand(0), writer.operand(3), writer.operand(6)
    refusal = _inseparable(writer, mask_at=5, past_at=(8,))
    if refusal is not None:
        return refusal
    right = quantised_weights(writer, 1, 4, 7)
    if isinstance(right, Refusal):
        return right
    operands = [x, scale, zero] if zero else [x, scale]
    left = writer.opaque("DequantizeLinear", operands, writer.shape(x), writer.dtype(scale))
    _attend(writer, writer.product(PRODUCT, left, right), [_mask(writer, 5)])
    return None


def _inseparable(writer: Writer, mask_at: int, past_at: tuple[int, ...]) -> Refusal | None:
    """Why attention cannot be separated from its projection; `past_at` are the positions of the operands of a past."""
    if any(map(writer.has, past_at)) or writer.integer("do_rotary"):
        return Refusal("its projection is not separated from its past keys and values")
    if len(writer.shape(writer.operand(0))) != 3 or len(writer.shape(writer.operand(1))) != 2:
        return Refusal("its operands are not supported")
    batch, rows, _ = writer.shape(writer.operand(0))
    known = {(batch,), (3 * batch + 2,), (batch, rows), (batch, rows, rows)}
    if _mask(writer, mask_at) and writer.shape(writer.operand(mask_at)) not in known:
        return Refusal("its mask has a form that attention without its projection does not support")
    return None


def _mask(writer: Writer, position: int) -> str:
    """The mask; "" for one with a single column, which means no mask."""
    name, rows = writer.operand(position), writer.shape(writer.operand(0))[1]
    shape = writer.shape(name)
    return "" if len(shape) == 2 and shape[1] == 1 != rows else name


def _attend(writer: Writer, made: str, masks: list[str]) -> None:
    """Attention over queries, keys and values that are stored side by side; it adds their bias."""
    batch, rows, width = writer.shape(made)
    sizes = writer.integers("qkv_hidden_sizes", (width // 3,) * 3)
    ends = (sizes[0], sizes[0] + sizes[1], sum(sizes))
    parts = [writer.add(Slice(2, end - size, end), made) for size, end in zip(sizes, ends, strict=True)]
    attributes = {name: value for name, value in writer.op.attributes if name in _SHARED}
    operands = [*parts, writer.operand(2), *masks]
    dtype = writer.dtype(made)
    writer.opaque("MultiHeadAttention", operands, (batch, rows, sizes[2]), dtype, domain=CONTRIB, **attributes)


_SOFTMAX = "its products, of activations, are fused with their softmax into one kernel"
stays(_SOFTMAX, "Attention")
stays(_SOFTMAX, "MultiHeadAttention", "GroupQueryAttention", domain=CONTRIB)
