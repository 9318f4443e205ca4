"""Gradients of ONNX's loss operators, which take class indices."""

from __future__ import annotations

from pimflow.ir.gradients.tape import Gradients, Tape, attributes_of, differentiates, text
from pimflow.ir.graph import Node
from pimflow.ir.ops.opaque import OnnxOp
from pimflow.ir.refusal import Refusal


@differentiates("NegativeLogLikelihoodLoss")
def _likelihood(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """For x [N, C, ...] and classes [N, ...]: minus the weight of each sample, at its class."""
    x = node.inputs[0]
    index, share = _shares(tape, node, op, gradients[0])
    inputs = (tape.zeros(tape.shape(x), share), index, tape.neg(share))
    return (tape.onnx("ScatterElements", inputs, tape.shape(x), axis=1), *("",) * (len(node.inputs) - 1))


@differentiates("SoftmaxCrossEntropyLoss")
def _cross_entropy(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """Softmax, minus 1 at the class, times the weight of each sample."""
    if any(gradients[1:]):
        return Refusal(f"{op.op_type}: its logarithms are read too", remedy="export LogSoftmax and the loss apart")
    x = node.inputs[0]
    shape, last = tape.shape(x), len(tape.shape(x)) - 1
    index, share = _shares(tape, node, op, gradients[0])
    channels_last = tape.transpose(x, (0, *range(2, last + 1), 1))
    shares = tape.onnx("Softmax", (channels_last,), tape.shape(channels_last), axis=last)
    shares = tape.mul(tape.transpose(shares, (0, last, *range(1, last))), share)
    less = tape.sub(tape.onnx("GatherElements", (shares, index), tape.shape(index), axis=1), share)
    made = tape.onnx("ScatterElements", (shares, index, less), shape, axis=1)
    return (made, *("",) * (len(node.inputs) - 1))


def _shares(tape: Tape, node: Node, op: OnnxOp, dy: str) -> tuple[str, str]:
    """Classes as indices [N, 1, ...], and each sample's weight times the loss gradient; 0 for ignored samples."""
    x, classes, weights = node.inputs[0], node.inputs[1], tape.operand(node, 2)
    shape = (tape.shape(x)[0], 1, *tape.shape(x)[2:])
    index, weight = tape.reshape(classes, shape), tape.broadcast_to(tape.number(1.0, x), shape)
    ignored = attributes_of(op).get("ignore_index")
    if isinstance(ignored, int):
        skipped = tape.elementwise("Equal", index, tape.number(ignored, index))
        index = tape.where(skipped, tape.number(0, index), index)
    if weights:
        weight = tape.onnx("Gather", (weights, index), shape, axis=0)
    if isinstance(ignored, int):
        weight = tape.where(skipped, tape.number(0.0, x), weight)
    reduction = text(op, "reduction", "mean")
    if reduction == "none":
        return index, tape.mul(weight, tape.reshape(dy, shape))
    if reduction == "mean":
        weight = tape.div(weight, tape.sum(weight, tuple(range(len(shape)))))
    return index, tape.mul(weight, dy)
