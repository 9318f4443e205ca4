"""Gradients of normalisations, and batch normalisation with the statistics of the batch.

With x^ = (x - mean) / deviation over n elements, and g the gradient of x^:
dx = (g - mean of g - x^ mean of (g x^)) / deviation (Ioffe and Szegedy, "Batch Normalization", 2015, section 3).
Statistics are recomputed from x, so that only x is kept for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pimflow.ir.gradients.tape import (
    GRADIENTS,
    ONNX_TRAINING_FORMS,
    TRAINING_FORMS,
    Gradients,
    Tape,
    differentiates,
    integer,
    integers,
    number,
)
from pimflow.ir.graph import Node
from pimflow.ir.ops.elementwise import BatchNorm
from pimflow.ir.ops.opaque import OnnxOp
from pimflow.ir.refusal import Refusal

_DEFAULT_AXES, _DEFAULT_EPSILON = (0, 2, 3), 1e-9
"""The default axes and the epsilon of MeanVarianceNormalization, as ONNX defines it."""


def _normalised(tape: Tape, x: str, axes: Sequence[int], epsilon: float, centred: bool = True) -> tuple[str, str]:
    """x^, and one over the deviation; if not centred, the root mean square takes the place of the deviation."""
    deviations = tape.sub(x, tape.mean(x, axes)) if centred else x
    variance = tape.mean(tape.mul(deviations, deviations), axes)
    factor = tape.elementwise("Reciprocal", tape.elementwise("Sqrt", tape.plus(variance, epsilon)))
    return tape.mul(deviations, factor), factor


def _input_gradient(tape: Tape, hat: str, factor: str, g: str, axes: Sequence[int], centred: bool = True) -> str:
    """dx from the gradient of x^."""
    left = tape.sub(g, tape.mul(hat, tape.mean(tape.mul(g, hat), axes)))
    if centred:
        left = tape.sub(left, tape.mean(g, axes))
    return tape.mul(left, factor)


def _scale_and_shift(tape: Tape, node: Node, hat: str, dy: str) -> tuple[str, str]:
    """The gradients of the second and third inputs, which broadcast."""
    scale, shift = tape.operand(node, 1), tape.operand(node, 2)
    return (
        tape.sum_to(tape.mul(dy, hat), tape.shape(scale)) if tape.wants(scale) else "",
        tape.sum_to(dy, tape.shape(shift)) if tape.wants(shift) else "",
    )


@differentiates("LayerNormalization")
def _layer_norm(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    (x, scale), dy = node.inputs[:2], gradients[0]
    rank = len(tape.shape(x))
    axes = tuple(range(integer(op, "axis", -1) % rank, rank))
    hat, factor = _normalised(tape, x, axes, number(op.attributes, "epsilon", 1e-5))
    dx = _input_gradient(tape, hat, factor, tape.mul(dy, scale), axes) if tape.wants(x) else ""
    return (dx, *_scale_and_shift(tape, node, hat, dy))[: len(node.inputs)]


@differentiates("MeanVarianceNormalization")
def _mean_variance(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """x^ = (x - mean) / (deviation + a small number), over images and positions of each channel by default."""
    (x,), (dy,) = node.inputs, gradients
    given = integers(op, "axes")
    axes = tuple(axis % len(tape.shape(x)) for axis in (_DEFAULT_AXES if given is None else given))
    deviations = tape.sub(x, tape.mean(x, axes))
    deviation = tape.elementwise("Sqrt", tape.mean(tape.mul(deviations, deviations), axes))
    factor = tape.elementwise("Reciprocal", tape.plus(deviation, _DEFAULT_EPSILON))
    is_constant = tape.elementwise("Equal", deviation, tape.number(0, x))
    slope = tape.div(deviations, tape.where(is_constant, tape.number(1, x), deviation))
    left = tape.sub(dy, tape.mul(slope, tape.mean(tape.mul(dy, tape.mul(deviations, factor)), axes)))
    return (tape.mul(tape.sub(left, tape.mean(dy, axes)), factor),)


@differentiates("RMSNormalization", "SimplifiedLayerNormalization")
def _rms_norm(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    (x, scale), dy = node.inputs[:2], gradients[0]
    rank = len(tape.shape(x))
    axes = tuple(range(integer(op, "axis", -1) % rank, rank))
    hat, factor = _normalised(tape, x, axes, number(op.attributes, "epsilon", 1e-5), centred=False)
    dx = _input_gradient(tape, hat, factor, tape.mul(dy, scale), axes, centred=False) if tape.wants(x) else ""
    return (dx, _scale_and_shift(tape, node, hat, dy)[0])


def _per_channel(tape: Tape, name: str, rank: int) -> str:
    """A vector of channels, reshaped to broadcast against [N, C, ...]."""
    return tape.reshape(name, (tape.shape(name)[0], *(1,) * (rank - 2)))


@differentiates("InstanceNormalization")
def _instance_norm(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    return _by_channel(tape, node, op, gradients[0], tape.shape(node.inputs[0]))


@differentiates("GroupNormalization")
def _group_norm(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """From opset 21 on scale and shift are per channel, before that per group."""
    images, channels, *sizes = tape.shape(node.inputs[0])
    groups = integer(op, "num_groups", 1)
    return _by_channel(tape, node, op, gradients[0], (images, groups, channels // groups, *sizes))


def _by_channel(tape: Tape, node: Node, op: OnnxOp, dy: str, grouped: tuple[int, ...]) -> Gradients:
    """Normalisation over all but the first two axes of x viewed as `grouped`; scaled by channel or by group."""
    x, scale, shift = node.inputs
    shape = tape.shape(x)
    view = grouped if tape.shape(scale)[0] == grouped[1] else shape
    axes = tuple(range(2, len(grouped)))
    hat, factor = _normalised(tape, tape.reshape(x, grouped), axes, number(op.attributes, "epsilon", 1e-5))
    dy, hat_view = tape.reshape(dy, view), tape.reshape(hat, view)
    others = (0, *range(2, len(view)))
    g = tape.reshape(tape.mul(dy, _per_channel(tape, scale, len(view))), grouped)
    return (
        tape.reshape(_input_gradient(tape, hat, factor, g, axes), shape) if tape.wants(x) else "",
        tape.sum(tape.mul(dy, hat_view), others, keepdims=False) if tape.wants(scale) else "",
        tape.sum(dy, others, keepdims=False) if tape.wants(shift) else "",
    )


@TRAINING_FORMS.register(BatchNorm)
def _with_batch_statistics(tape: Tape, node: Node, op: BatchNorm) -> tuple[Node, ...]:
    """Mean and variance of the batch instead of those stored in the model."""
    if tape.frozen_statistics:
        return (node,)
    x, (scale, shift) = node.inputs[0], node.inputs[1:3]
    shape = tape.shape(x)
    axes = (0, *range(2, len(shape)))
    with tape.recording(node.name) as before:
        mean = tape.mean(x, axes)
        deviations = tape.sub(x, mean)
        variance = tape.mean(tape.mul(deviations, deviations), axes)
        vectors = tuple(tape.reshape(name, (shape[1],)) for name in (mean, variance))
    tape.save_for_backward(node, mean, variance)
    return (*before, Node(op, (x, scale, shift, *vectors), node.outputs, node.name, node.placement, node.tags))


@ONNX_TRAINING_FORMS.register(("", "BatchNormalization"))
def _with_statistics_of_operators(tape: Tape, node: Node, op: OnnxOp) -> tuple[Node, ...]:
    """Norms that inference keeps as operators: of doubles, and in training mode."""
    if any(name in tape.graph.outputs or tape.graph.users(name) for name in node.outputs[1:] if name):
        tape.refused[node.name] = Refusal(f"{node.kind}: its statistics are read")
        return (node,)
    norm = BatchNorm(number(op.attributes, "epsilon", 1e-5))
    return _with_batch_statistics(tape, replace(node, op=norm, outputs=node.outputs[:1]), norm)


@differentiates("BatchNormalization")
def _refused_batch_norm(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    return tape.refused[node.name]


@GRADIENTS.register(BatchNorm)
def _batch_norm(tape: Tape, node: Node, op: BatchNorm, gradients: tuple[str, ...]) -> Gradients:
    x, scale, shift, *statistics = node.inputs
    dy, rank = gradients[0], len(tape.shape(node.inputs[0]))
    axes = (0, *range(2, rank))
    of_batch = tape.saved(node)
    mean, variance = of_batch or (_per_channel(tape, name, rank) for name in statistics)
    factor = tape.elementwise("Reciprocal", tape.elementwise("Sqrt", tape.plus(variance, op.epsilon)))
    g = tape.mul(dy, _per_channel(tape, scale, rank))
    hat = tape.mul(tape.sub(x, mean), factor) if of_batch or tape.wants(scale) else ""
    dx = ""
    if tape.wants(x):
        dx = _input_gradient(tape, hat, factor, g, axes) if of_batch else tape.mul(g, factor)
    return (
        dx,
        tape.sum(tape.mul(dy, hat), axes, keepdims=False) if tape.wants(scale) else "",
        tape.sum(dy, axes, keepdims=False) if tape.wants(shift) else "",
        "",
        "",
    )
