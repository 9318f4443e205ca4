"""The projection that ONNX Runtime fuses into its Attention."""

from __future__ import annotations

from pimflow.ir.expansion.base import CONTRIB, Writer, expands
from pimflow.ir.ops.contraction import PRODUCT
from pimflow.ir.ops.elementwise import Elementwise
from pimflow.ir.ops.movement import Slice
from pimflow.ir.refusal import Refusal


@expands("Attention", domain=CONTRIB)
def _attention(writer: Writer) -> Refusal | None:
    """One product makes queries, keys and values of the input; the attention of these stays one operator."""
    x, weights, mask = writer.operand(0), writer.constant_at(1), writer.operand(3)
    if weights is None:
        return Refusal("the weights of its projection are computed")
    if writer.has(4) or writer.has(6) or writer.integer("do_rotary"):
        return Refusal("its projection is not separated from its past keys and values")
    if mask and len(writer.shape(mask)) != 2:
        return Refusal("its mask has a form that attention apart from its projection does not take")
    made = writer.product(PRODUCT, x, writer.operand(1))
    if writer.has(2):
        made = writer.add(Elementwise("Add"), made, writer.operand(2))
    batch, rows, width = writer.shape(made)
    sizes = writer.integers("qkv_hidden_sizes", (width // 3,) * 3)
    ends = (sizes[0], sizes[0] + sizes[1], sum(sizes))
    parts = [writer.add(Slice(2, end - size, end), made) for size, end in zip(sizes, ends, strict=True)]
    attributes = {name: value for name, value in writer.op.attributes if name in _SHARED}
    beside = ["", mask, writer.operand(5)]
    writer.opaque(
        "MultiHeadAttention", [*parts, *beside], (batch, rows, sizes[2]), writer.dtype(x), domain=CONTRIB, **attributes
    )
    return None


_SHARED = frozenset({"num_heads", "mask_filter_value", "scale", "unidirectional"})
