"""Operators that ONNX defines in terms of others, and that are trained as those: local response norms, normalisation to
length one, shrinkage, gates, causal convolutions, rotary position embeddings, affine grids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pimflow.ir.gradients.tape import Tape, integer, number, text, writes_out
from pimflow.ir.graph import Node
from pimflow.ir.ops.movement import Concat
from pimflow.ir.ops.opaque import OnnxOp
from pimflow.ir.refusal import Refusal


@writes_out("LRN")
def _local_response_norm(tape: Tape, node: Node, op: OnnxOp) -> Sequence[str] | Refusal:
    """x / (bias + alpha / size * sum of x^2 over neighbouring channels)^beta; the sum is a band matrix product."""
    (x,) = node.inputs
    images, channels, *sizes = tape.shape(x)
    size = integer(op, "size", 1)
    offsets = np.subtract.outer(np.arange(channels), np.arange(channels))
    band = (offsets <= (size - 1) // 2) & (-offsets <= size // 2)
    share = number(op.attributes, "alpha", 1e-4) / size
    squares = tape.reshape(tape.mul(x, x), (images, channels, int(np.prod(sizes))))
    total = tape.product(tape.constant((share * band).astype(np.dtype(tape.dtype(x))), "neighbours"), squares)
    base = tape.plus(tape.reshape(total, tape.shape(x)), number(op.attributes, "bias", 1.0))
    return (tape.mul(x, tape.elementwise("Pow", base, tape.number(-number(op.attributes, "beta", 0.75), x))),)


@writes_out("LpNormalization")
def _lp_normalization(tape: Tape, node: Node, op: OnnxOp) -> Sequence[str] | Refusal:
    """x divided by its norm along an axis; all-zero vectors stay zero."""
    (x,) = node.inputs
    by_squares = integer(op, "p", 2) == 2
    terms = tape.mul(x, x) if by_squares else tape.elementwise("Abs", x)
    total = tape.sum(terms, (integer(op, "axis", -1) % len(tape.shape(x)),))
    none = tape.elementwise("Equal", total, tape.number(0, x))
    length = tape.where(none, tape.number(1, x), total)
    return (tape.div(x, tape.elementwise("Sqrt", length) if by_squares else length),)


@writes_out("Shrink")
def _shrink(tape: Tape, node: Node, op: OnnxOp) -> Sequence[str] | Refusal:
    """x + bias below -lambd, x - bias above lambd, else 0."""
    (x,) = node.inputs
    bias, bound = number(op.attributes, "bias", 0.0), number(op.attributes, "lambd", 0.5)
    below = tape.elementwise("Less", x, tape.number(-bound, x))
    return (tape.where(below, tape.plus(x, bias), tape.masked(tape.above(x, bound), tape.plus(x, -bias))),)


@writes_out("SwiGLU")
def _swish_gate(tape: Tape, node: Node, op: OnnxOp) -> Sequence[str] | Refusal:
    """a sigmoid(alpha a) b."""
    a, b = node.inputs
    gate = tape.elementwise("Sigmoid", tape.scaled(a, number(op.attributes, "alpha", 1.0)))
    return (tape.mul(tape.mul(a, gate), b),)


@writes_out("CausalConvWithState", trained=(1, 2))
def _causal_convolution(tape: Tape, node: Node, op: OnnxOp) -> Sequence[str] | Refusal:
    """A convolution of each channel [batch, channels, length] with what came before it: the state, or zeros."""
    x, weights, bias, past = (tape.operand(node, place) for place in range(4))
    (_, channels, length), before = tape.shape(x), tape.shape(weights)[2] - 1
    whole = tape.op(Concat(2), past, x) if past else tape.pad(x, (0, 0, before), (0, 0, 0))
    operands = (whole, weights, bias) if bias else (whole, weights)
    made = tape.onnx("Conv", operands, tape.shape(x), group=channels)
    if text(op, "activation", "none") != "none":
        made = tape.mul(made, tape.elementwise("Sigmoid", made))
    return made, tape.slice(whole, 2, length, length + before)


@writes_out("RotaryEmbedding")
def _rotary_embedding(tape: Tape, node: Node, op: OnnxOp) -> Sequence[str] | Refusal:
    """Pairs of a head's elements, rotated by position; x is [batch, heads, rows, depth], or has heads side by side."""
    x, cosines, sines, places = (tape.operand(node, place) for place in range(4))
    shape, heads = tape.shape(x), integer(op, "num_heads")
    wide = x if len(shape) == 4 else tape.reshape(x, (*shape[:2], heads, shape[2] // heads))
    axis, depth = 1 if len(shape) == 4 else 2, tape.shape(wide)[3]
    rotary_dim = integer(op, "rotary_embedding_dim") or depth

    def angles(cache: str) -> str:
        half = tape.shape(cache)[-1]
        if places:
            cache = tape.onnx("Gather", (cache, places), (*tape.shape(places), half), axis=0)
        batch, rows = tape.shape(cache)[:2]
        return tape.reshape(cache, (batch, 1, rows, half) if axis == 1 else (batch, rows, 1, half))

    cosine, sine = angles(cosines), angles(sines)
    part = tape.slice(wide, 3, 0, rotary_dim)
    rest = tape.slice(wide, 3, rotary_dim, depth) if rotary_dim < depth else ""
    lead, half = tape.shape(part)[:3], rotary_dim // 2
    pairs, pair_axis = ((*lead, half, 2), 4) if integer(op, "interleaved") else ((*lead, 2, half), 3)
    first, second = (tape.reshape(each, (*lead, half)) for each in tape.split(tape.reshape(part, pairs), pair_axis, 2))
    real = tape.sub(tape.mul(cosine, first), tape.mul(sine, second))
    imaginary = tape.add(tape.mul(sine, first), tape.mul(cosine, second))
    single = (*lead, half, 1) if pair_axis == 4 else (*lead, 1, half)
    both = tape.op(Concat(pair_axis), *(tape.reshape(each, single) for each in (real, imaginary)))
    made = tape.reshape(both, (*lead, rotary_dim))
    whole = tape.op(Concat(3), made, rest) if rest else made
    return (tape.reshape(whole, shape),)


@writes_out("AffineGrid")
def _affine_grid(tape: Tape, node: Node, op: OnnxOp) -> Sequence[str] | Refusal:
    """Every position of a map, coordinates from -1 to 1 (x first) followed by a 1, times the matrix of each image."""
    theta, grid = node.inputs[0], tape.shape(node.output)
    sizes = grid[1:-1]
    ends = [1.0 if integer(op, "align_corners") else 1 - 1 / size for size in sizes]
    axes = np.meshgrid(*(np.linspace(-end, end, size) for end, size in zip(ends, sizes, strict=True)), indexing="ij")
    places = np.stack([*reversed(axes), np.ones(sizes)], -1).reshape(-1, len(sizes) + 1)
    every = tape.constant(places.astype(np.dtype(tape.dtype(theta))), "places")
    return (tape.reshape(tape.product(every, tape.matrix_transpose(theta)), grid),)
