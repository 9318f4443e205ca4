"""The gradients of Fourier transforms, of whole axes and of frames: they are linear, and the adjoint of one is the
opposite transform, scaled."""

from __future__ import annotations

import numpy as np

from pimflow.ir.analysis.rows import Shape
from pimflow.ir.gradients.tape import Gradients, Tape, differentiates, integer
from pimflow.ir.graph import Node
from pimflow.ir.ops.opaque import OnnxOp
from pimflow.ir.refusal import Refusal

_AXIS_AS_INPUT = 20
"""The first opset in which the axis is an input (-2 by default); before, it is an attribute (1 by default)."""


@differentiates("DFT")
def _dft(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """n times the inverse transform of dy, or 1/n times the transform if the op is inverse; real for real inputs."""
    (dy,), shape = gradients, tape.shape(node.inputs[0])
    axis = _axis(tape, node, op)
    if axis is None:
        return Refusal("DFT: its axis is computed")
    length, inverse = tape.operand(node, 1), bool(integer(op, "inverse"))
    count = shape[axis] if not length else _number(tape, length)
    if count is None:
        return Refusal("DFT: its length is computed")
    if inverse and integer(op, "onesided"):
        if tape.shape(node.output)[axis] != 2 * (shape[axis] - 1):
            return Refusal("DFT that is inverse and one-sided, and whose length its operand does not imply")
        return (_spectrum(tape, dy, axis), *("" for _ in node.inputs[1:]))
    dx = _adjoint(tape, dy, axis, count, shape[-1], inverse=inverse)
    return (_resized(tape, dx, axis, shape[axis]), *("" for _ in node.inputs[1:]))


def _adjoint(tape: Tape, dy: str, axis: int, count: int, parts: int, *, inverse: bool) -> str:
    """The gradient of `count` elements along an axis, each of `parts` parts (1 if real), from their transform's."""
    dy = _resized(tape, dy, axis, count)  # one-sided: the other side has no gradient
    dx = _transform(tape, dy, axis, tape.shape(dy), inverse=int(not inverse))
    dx = tape.slice(dx, len(tape.shape(dx)) - 1, 0, parts)
    return tape.scaled(dx, 1 / count if inverse else float(count))


def _spectrum(tape: Tape, dy: str, axis: int) -> str:
    """The gradient of one side of a spectrum from that of the n real elements: their transform over n, doubled for the
    elements that stand for the other side too."""
    made = tape.shape(dy)
    count = made[axis]
    shape = (*made[:axis], count // 2 + 1, *made[axis + 1 : -1], 2)
    sides = np.full(count // 2 + 1, 2.0)
    sides[[0, -1]] = 1
    weights = (sides / count).reshape((-1,) + (1,) * (len(shape) - axis - 1)).astype(tape.dtype(dy))
    return tape.mul(_transform(tape, dy, axis, shape, onesided=1), tape.constant(weights, "sides"))


def _transform(tape: Tape, x: str, axis: int, shape: Shape, **given: int) -> str:
    """A DFT along an axis."""
    if tape.opset < _AXIS_AS_INPUT:
        return tape.onnx("DFT", (x,), shape, attributes={**given, "axis": axis})
    return tape.onnx("DFT", (x, "", tape.constant(np.array(axis, np.int64), "axis")), shape, attributes=given)


@differentiates("STFT")
def _stft(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """For the signal, the gradient of every frame [images, frames, elements, parts] times the window, summed where
    frames lie in the signal; for the window, the sum of the products of frames and their gradients."""
    signal, _, window, length = (tape.operand(node, place) for place in range(4))
    (dy,), (images, size, parts) = gradients, tape.shape(signal)
    step, count = _number(tape, node.inputs[1]), tape.shape(window)[0] if window else _number(tape, length)
    if step is None or count is None:
        return Refusal("STFT: the step or the length of its frames is computed")
    d_frames = _adjoint(tape, dy, 2, count, parts, inverse=False)
    frames = tape.shape(dy)[1]
    index = tape.constant(np.arange(frames)[:, None] * step + np.arange(count), "frames")
    d_signal = d_window = ""
    if window and tape.wants(window):
        read = tape.onnx("Gather", (signal, index), (images, frames, count, parts), axis=1)
        d_window = tape.sum(tape.mul(d_frames, read), (0, 1, 3), keepdims=False)
    if tape.wants(signal):
        weighted = tape.mul(d_frames, tape.reshape(window, (count, 1))) if window else d_frames
        added = tape.scatter_add(index, tape.transpose(weighted, (1, 2, 0, 3)), (size, images, parts))
        if isinstance(added, Refusal):
            return added
        d_signal = tape.transpose(added, (1, 0, 2))
    return (d_signal, "", d_window, "")[: len(node.inputs)]


def _axis(tape: Tape, node: Node, op: OnnxOp) -> int | None:
    """The axis of the transform; None if it is computed."""
    rank, given = len(tape.shape(node.inputs[0])), tape.operand(node, 2)
    if tape.opset < _AXIS_AS_INPUT:
        return integer(op, "axis", 1) % rank
    axis = _number(tape, given) if given else -2
    return None if axis is None else axis % rank


def _number(tape: Tape, name: str) -> int | None:
    array = tape.array(name)
    return None if array is None else int(array.reshape(-1)[0])


def _resized(tape: Tape, x: str, axis: int, count: int) -> str:
    """`x` truncated, or padded with zeros, to a length along an axis."""
    size = tape.shape(x)[axis]
    if count <= size:
        return tape.slice(x, axis, 0, count)
    after = [count - size if place == axis else 0 for place in range(len(tape.shape(x)))]
    return tape.pad(x, [0] * len(after), after)
