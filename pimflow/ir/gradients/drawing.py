"""Gradients of ops that draw random numbers: Dropout, and noise in the shape of another value.

Random numbers are kept for the backward pass, not drawn again.
"""

from __future__ import annotations

from dataclasses import replace

from pimflow.ir.gradients.tape import ONNX_TRAINING_FORMS, Gradients, Tape, differentiates
from pimflow.ir.graph import Node
from pimflow.ir.ops.opaque import OnnxOp


@ONNX_TRAINING_FORMS.register(("", "Dropout"))
def _with_mask(tape: Tape, node: Node, op: OnnxOp) -> tuple[Node, ...]:
    """A Dropout that may drop elements also outputs the mask of those that it keeps."""
    flag = tape.operand(node, 2)
    always = tape.array(flag) if flag else None
    if not flag or (always is not None and not always.any()):
        return (node,)
    mask = next(filter(None, node.outputs[1:]), "")
    mask = mask or tape.new_value(f"{node.name}.mask", tape.shape(node.output), "bool")
    tape.save_for_backward(node, mask)
    return (replace(node, outputs=(node.outputs[0], mask)),)


@differentiates("Dropout")
def _dropout(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """dy / (1 - ratio) where an element was kept, 0 where it was dropped; dy in inference, which drops nothing."""
    dy, *_ = gradients
    if not dy or not tape.saved(node):
        return (dy,)
    (mask,) = tape.saved(node)
    dx = tape.div(tape.masked(mask, dy), _keep_probability(tape, node))
    flag = tape.operand(node, 2)
    return (dx if tape.array(flag) is not None else tape.where(tape.reshape(flag, ()), dx, dy),)


def _keep_probability(tape: Tape, node: Node) -> str:
    """1 - ratio, as a scalar in the element type of the input."""
    x, ratio = node.inputs[0], tape.operand(node, 1)
    if not ratio:
        return tape.number(0.5, x)
    share = tape.sub(tape.number(1.0, ratio), tape.reshape(ratio, ()))
    return share if tape.dtype(ratio) == tape.dtype(x) else tape.cast(share, tape.dtype(x))


@differentiates("Bernoulli", "EyeLike", "RandomNormalLike", "RandomUniformLike")
def _noise(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """No gradient: only the shape of the input matters, or the input is a probability, of which the elements drawn are
    no continuous function (PyTorch gives zeros)."""
    return ("",)
