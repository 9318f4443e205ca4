"""Operators fused by ONNX Runtime's optimiser, and attention: trained as the nodes that they are equivalent to.

A training step thus runs the same kernels, and saves the same results, as if the model had not been optimised.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pimflow.ir.gradients.tape import CONTRIB, Tape, integer, integers, number, numbers, text, writes_out
from pimflow.ir.graph import Node
from pimflow.ir.ops.contraction import FUSED_PRODUCT, fused_order
from pimflow.ir.ops.elementwise import fused_activation
from pimflow.ir.ops.opaque import OnnxOp
from pimflow.ir.refusal import Refusal

MASKED = -10000.0
"""The value that ONNX Runtime adds to the scores of masked keys, unless the operator has an attribute for it."""


def _sum(tape: Tape, *values: str) -> str:
    """The sum of the values that are not ""."""
    first, *others = filter(None, values)
    for other in others:
        first = tape.add(first, other)
    return first


# ---- products and convolutions


@writes_out(FUSED_PRODUCT, domain=CONTRIB, trained=(0, 1))
def _fused_product(tape: Tape, node: Node, op: OnnxOp) -> Sequence[str] | Refusal:
    operands = []
    for name, side in zip(node.inputs, "AB", strict=True):
        transposed, batch_inside = (bool(integer(op, f"trans{part}{side}")) for part in ("", "Batch"))
        order = fused_order(len(tape.shape(name)), transposed=transposed, batch_inside=batch_inside)
        operands.append(tape.transpose(name, order))
    return (tape.scaled(tape.product(*operands), number(op.attributes, "alpha", 1.0)),)


@writes_out("FusedConv", domain=CONTRIB, trained=(1, 2))
def _fused_convolution(tape: Tape, node: Node, op: OnnxOp) -> Sequence[str] | Refusal:
    """A convolution, followed by the addition of a fourth operand and an activation."""
    given = {name: value for name, value in op.attributes if not name.startswith("activation")}
    kind = text(op, "activation")
    activation = fused_activation(kind, numbers(op, "activation_params"))
    if activation is None:
        return Refusal(f"FusedConv with the activation {kind!r} has no gradient rule")
    made = tape.onnx("Conv", tuple(filter(None, node.inputs[:3])), tape.shape(node.output), attributes=given)
    made = _sum(tape, made, tape.operand(node, 3))
    for follower in activation:
        made = tape.op(follower, made)
    return (made,)


# ---- norms and activations


def _norm(tape: Tape, op: OnnxOp, x: str, scale: str, shift: str = "", kind: str = "LayerNormalization") -> str:
    """A norm over the last axis."""
    epsilon = number(op.attributes, "epsilon", 1e-5)
    return tape.onnx(kind, (x, scale, shift) if shift else (x, scale), tape.shape(x), axis=-1, epsilon=epsilon)


@writes_out("SkipLayerNormalization", domain=CONTRIB, trained=(2, 3, 4))
def _skip_layer_norm(tape: Tape, node: Node, op: OnnxOp) -> Sequence[str] | Refusal:
    x, skip, scale, shift, bias = (tape.operand(node, place) for place in range(5))
    total = _sum(tape, x, skip, bias)
    return _norm(tape, op, total, scale, shift), "", "", total


@writes_out("SkipSimplifiedLayerNormalization", domain=CONTRIB, trained=(2, 3))
def _skip_rms_norm(tape: Tape, node: Node, op: OnnxOp) -> Sequence[str] | Refusal:
    x, skip, scale, bias = (tape.operand(node, place) for place in range(4))
    total = _sum(tape, x, skip, bias)
    return _norm(tape, op, total, scale, kind="SimplifiedLayerNormalization"), "", "", total


@writes_out("EmbedLayerNormalization", domain=CONTRIB, trained=(2, 3, 4, 5, 6))
def _embedding(tape: Tape, node: Node, op: OnnxOp) -> Sequence[str] | Refusal:
    """The normalised sum of word, position and segment embeddings."""
    words, segments, table, places, kinds, scale, shift, mask, given = (tape.operand(node, place) for place in range(9))
    batch, rows = tape.shape(words)

    def read(rows_of: str, index: str) -> str:
        shape = (*tape.shape(index), tape.shape(rows_of)[1])
        return tape.onnx("Gather", (rows_of, index), shape, axis=0)

    order = given or tape.constant(np.arange(rows, dtype=np.int64)[None], "places")
    total = _sum(tape, read(table, words), read(places, order), read(kinds, segments) if kinds and segments else "")
    lengths = ""
    if mask:
        lengths = tape.reduce("ReduceSum", mask, (1,), keepdims=False)
    elif len(node.outputs) > 1 and node.outputs[1]:
        lengths = tape.onnx("Identity", (tape.constant(np.zeros(batch, np.int32), "lengths"),), (batch,))
    return _norm(tape, op, total, scale, shift), lengths, total


@writes_out("BiasGelu", domain=CONTRIB, trained=(1,))
def _bias_gelu(tape: Tape, node: Node, op: OnnxOp) -> Sequence[str] | Refusal:
    x = _sum(tape, node.inputs[0], tape.operand(node, 1))
    share = tape.plus(tape.elementwise("Erf", tape.scaled(x, math.sqrt(0.5))), 1)
    return (tape.mul(x, tape.scaled(share, 0.5)),)


@writes_out("FastGelu", domain=CONTRIB, trained=(1,))
def _fast_gelu(tape: Tape, node: Node, op: OnnxOp) -> Sequence[str] | Refusal:
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2."""
    x = _sum(tape, node.inputs[0], tape.operand(node, 1))
    inner = tape.mul(x, tape.plus(tape.scaled(tape.mul(x, x), 0.044715), 1))
    tanh = tape.elementwise("Tanh", tape.scaled(inner, math.sqrt(2 / math.pi)))
    return (tape.mul(x, tape.scaled(tape.plus(tanh, 1), 0.5)),)


# ---- attention


def _split_heads(tape: Tape, x: str, heads: int) -> str:
    """[batch, rows, heads * depth] as [batch, heads, rows, depth]."""
    batch, rows, width = tape.shape(x)
    return tape.transpose(tape.reshape(x, (batch, rows, heads, width // heads)), (0, 2, 1, 3))


def _merge_heads(tape: Tape, x: str) -> str:
    """The inverse of `_split_heads`."""
    batch, heads, rows, depth = tape.shape(x)
    return tape.reshape(tape.transpose(x, (0, 2, 1, 3)), (batch, rows, heads * depth))


def _attend(tape: Tape, query: str, key: str, value: str, scale: float, *added: str) -> str:
    """Softmax of the scaled scores plus `added`, times the values; all [batch, heads, rows, depth]."""
    scores = tape.scaled(tape.product(query, tape.matrix_transpose(key)), scale or 1 / math.sqrt(tape.shape(query)[-1]))
    scores = _sum(tape, scores, *added)
    return tape.product(tape.onnx("Softmax", (scores,), tape.shape(scores), axis=-1), value)


def _causal(tape: Tape, like: str, rows: int, keys: int, beyond: float) -> str:
    """A causal mask to add to scores: 0 for keys up to a row's own, `beyond` for later ones."""
    later = np.triu(np.ones((rows, keys), bool), 1)
    return tape.constant(np.where(later, beyond, 0).astype(np.dtype(tape.dtype(like))), "causal")


def _mask(tape: Tape, mask: str, like: str, batch: int, keys: int, beyond: float) -> str | Refusal:
    """The term added to scores to exclude keys, from a mask: lengths [batch], or 1 for every key that counts."""
    shape = tape.shape(mask)
    if shape == (batch,):
        places = tape.constant(np.arange(keys).astype(np.dtype(tape.dtype(mask))), "places")
        counts = tape.elementwise("Less", places, tape.reshape(mask, (batch, 1, 1, 1)))
    elif shape in ((batch, keys), (batch, *shape[1:2], keys)):
        counts = tape.reshape(mask, (batch, 1, shape[1] if len(shape) == 3 else 1, keys))
    else:
        return Refusal(f"attention with a mask of {shape} has no gradient rule")
    excluded = tape.sub(tape.number(1, like), tape.cast(counts, tape.dtype(like)))
    return tape.scaled(excluded, beyond)


@writes_out("Attention", domain=CONTRIB, trained=(1, 2))
def _projected_attention(tape: Tape, node: Node, op: OnnxOp) -> Sequence[str] | Refusal:
    """Attention whose queries, keys and values are computed by one product."""
    x, weights, bias, mask, past, added = (tape.operand(node, place) for place in range(6))
    if past or integer(op, "do_rotary"):
        return Refusal("Attention with a past or rotated places has no gradient rule")
    (batch, rows, _), width, heads = tape.shape(x), tape.shape(weights)[1], integer(op, "num_heads", 1)
    sizes = integers(op, "qkv_hidden_sizes") or (width // 3,) * 3
    made, parts, start = _sum(tape, tape.product(x, weights), bias), [], 0
    for size in sizes:
        parts.append(_split_heads(tape, tape.slice(made, 2, start, start + size), heads))
        start += size
    return _masked_attention(tape, op, parts, (mask, added), (batch, rows, rows))


@writes_out("MultiHeadAttention", domain=CONTRIB, trained=(3,))
def _multi_head(tape: Tape, node: Node, op: OnnxOp) -> Sequence[str] | Refusal:
    """Attention over given queries, keys and values; their biases are concatenated."""
    query, key, value, bias, mask, added, *past = (tape.operand(node, place) for place in range(8))
    if any(past) or not key or not value or {len(tape.shape(name)) for name in (query, key, value)} != {3}:
        return Refusal("MultiHeadAttention with a past or packed operands has no gradient rule")
    heads, parts, start = integer(op, "num_heads", 1), [], 0
    for name in (query, key, value):
        width = tape.shape(name)[2]
        own = tape.slice(bias, 0, start, start + width) if bias else ""
        parts.append(_split_heads(tape, _sum(tape, name, own), heads))
        start += width
    (batch, rows, _), keys = tape.shape(query), tape.shape(key)[1]
    return _masked_attention(tape, op, parts, (mask, added), (batch, rows, keys))


def _masked_attention(
    tape: Tape, op: OnnxOp, parts: Sequence[str], given: tuple[str, str], sizes: tuple[int, int, int]
) -> Sequence[str] | Refusal:
    """Attention with an optional mask of keys and optional scores to add."""
    (mask, added), (batch, rows, keys) = given, sizes
    beyond = number(op.attributes, "mask_filter_value", MASKED)
    masks = [added]
    if mask:
        masked = _mask(tape, mask, parts[0], batch, keys, beyond)
        if isinstance(masked, Refusal):
            return masked
        masks.append(masked)
    if integer(op, "unidirectional"):
        masks.append(_causal(tape, parts[0], rows, keys, beyond))
    query, key, value = parts
    return (_merge_heads(tape, _attend(tape, query, key, value, number(op.attributes, "scale", 0.0), *masks)),)


@writes_out("Attention")
def _onnx_attention(tape: Tape, node: Node, op: OnnxOp) -> Sequence[str] | Refusal:
    """ONNX's own Attention (opset 23): heads on their own axis or side by side; keys may have fewer than queries."""
    query, key, value, mask, *past = (tape.operand(node, place) for place in range(7))
    if any(past) or number(op.attributes, "softcap", 0.0):
        return Refusal("Attention with a past, lengths or capped scores has no gradient rule")
    has_head_axis = len(tape.shape(query)) == 4
    if not has_head_axis:
        query = _split_heads(tape, query, integer(op, "q_num_heads", 1))
        key, value = (_split_heads(tape, name, integer(op, "kv_num_heads", 1)) for name in (key, value))
    key, value = (_repeat_heads(tape, name, tape.shape(query)[1]) for name in (key, value))
    masks = []
    if mask:
        masks.append(_additive_mask(tape, mask, query))
    if integer(op, "is_causal"):
        masks.append(_causal(tape, query, tape.shape(query)[2], tape.shape(key)[2], -math.inf))
    made = _attend(tape, query, key, value, number(op.attributes, "scale", 0.0), *masks)
    return (made if has_head_axis else _merge_heads(tape, made),)


def _additive_mask(tape: Tape, mask: str, like: str) -> str:
    """A mask as a term added to scores: a boolean mask becomes 0 or -inf."""
    if tape.dtype(mask) != "bool":
        return mask
    return tape.where(mask, tape.number(0, like), tape.number(-math.inf, like))


def _repeat_heads(tape: Tape, x: str, heads: int) -> str:
    """Key or value heads, each repeated for all the query heads that share it."""
    batch, own, rows, depth = tape.shape(x)
    if own == heads:
        return x
    wide = tape.broadcast_to(tape.reshape(x, (batch, own, 1, rows, depth)), (batch, own, heads // own, rows, depth))
    return tape.reshape(wide, (batch, heads, rows, depth))
