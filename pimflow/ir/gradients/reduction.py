"""Gradients of reductions over axes, softmax, and sums by equation."""

from __future__ import annotations

from pimflow.ir.gradients.tape import Gradients, Tape, differentiates, integer, integers, text
from pimflow.ir.graph import Node
from pimflow.ir.ops.opaque import OnnxOp
from pimflow.ir.refusal import Refusal


def shared_out(tape: Tape, x: str, best: str, dy: str, axes: tuple[int, ...]) -> str:
    """The gradient of a maximum (or minimum) over axes, which `best` and `dy` have as dims of 1: in equal parts to all
    elements that are the largest."""
    hit = tape.elementwise("Equal", x, best)
    one, zero = tape.number(1.0, dy), tape.number(0.0, dy)
    share = tape.div(dy, tape.sum(tape.where(hit, one, zero), axes))
    return tape.where(hit, share, zero)


def _axes(tape: Tape, node: Node, op: OnnxOp) -> tuple[int, ...] | None:
    """The axes of a reduction, from an attribute or a constant; None where they are computed."""
    rank = len(tape.shape(node.inputs[0]))
    given = integers(op, "axes")
    if given is None and tape.operand(node, 1):
        array = tape.array(node.inputs[1])
        if array is None:
            return None
        given = tuple(int(axis) for axis in array.reshape(-1).tolist())
    if not given:
        return () if integer(op, "noop_with_empty_axes") else tuple(range(rank))
    return tuple(sorted(axis % rank for axis in given))


@differentiates(
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceProd",
)
def _reduce(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    axes = _axes(tape, node, op)
    if axes is None:
        return Refusal(f"{op.op_type}: its axes are computed")
    x = node.inputs[0]
    shape = tape.shape(x)
    kept = tuple(1 if axis in axes else dim for axis, dim in enumerate(shape))
    dy, y = tape.reshape(gradients[0], kept), tape.reshape(node.output, kept)
    return (tape.spread(_back(tape, op.op_type, x, y, dy, axes), shape), *("",) * (len(node.inputs) - 1))


def _back(tape: Tape, kind: str, x: str, y: str, dy: str, axes: tuple[int, ...]) -> str:
    """The gradient of x, or what is broadcast to it; y and dy have the axes as dims of 1."""
    if kind == "ReduceSum":
        return dy
    if kind == "ReduceMean":
        return tape.scaled(dy, tape.value(dy).elements / max(1, tape.value(x).elements))
    if kind in ("ReduceMax", "ReduceMin"):
        return shared_out(tape, x, y, dy, axes)
    if kind == "ReduceProd":
        return tape.mul(dy, _others(tape, x, axes))
    if kind == "ReduceL1":
        return tape.mul(tape.elementwise("Sign", x), dy)
    if kind == "ReduceL2":
        return tape.mul(x, tape.div(dy, y))
    if kind == "ReduceSumSquare":
        return tape.mul(x, tape.scaled(dy, 2))
    if kind == "ReduceLogSum":
        return tape.div(dy, tape.elementwise("Exp", y))
    return tape.mul(tape.elementwise("Exp", tape.sub(x, y)), dy)


def _others(tape: Tape, x: str, axes: tuple[int, ...]) -> str:
    """For every element the product of the others along some axes, whatever is zero."""
    zero, one = tape.elementwise("Equal", x, tape.number(0.0, x)), tape.number(1.0, x)
    filled = tape.where(zero, one, x)
    hits = tape.where(zero, one, tape.number(0.0, x))
    elsewhere = tape.sub(tape.sum(hits, axes), hits)
    return tape.where(
        tape.above(elsewhere, 0.5), tape.number(0.0, x), tape.div(tape.reduce("ReduceProd", filled, axes), filled)
    )


def _softmax_axes(tape: Tape, node: Node, op: OnnxOp) -> tuple[int, ...]:
    """One axis; before opset 13 all from one on, as one."""
    rank = len(tape.shape(node.inputs[0]))
    first = integer(op, "axis", -1 if tape.opset >= 13 else 1) % rank
    return (first,) if tape.opset >= 13 else tuple(range(first, rank))


@differentiates("Softmax")
def _softmax(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """dx = y (dy - sum of dy y)."""
    (dy,), y = gradients, node.output
    total = tape.sum(tape.mul(dy, y), _softmax_axes(tape, node, op))
    return (tape.mul(y, tape.sub(dy, total)),)


@differentiates("LogSoftmax")
def _log_softmax(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """dx = dy - exp(y) sum of dy."""
    (dy,) = gradients
    total = tape.sum(dy, _softmax_axes(tape, node, op))
    return (tape.sub(dy, tape.mul(tape.elementwise("Exp", node.output), total)),)


@differentiates("CumSum")
def _cumulative(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """The sums from the other end."""
    inputs = (gradients[0], node.inputs[1])
    exclusive, reverse = integer(op, "exclusive"), 1 - integer(op, "reverse")
    return (tape.onnx("CumSum", inputs, tape.shape(gradients[0]), exclusive=exclusive, reverse=reverse), "")


@differentiates("Einsum")
def _einsum(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """Of each operand the sum of products of the result's gradient and the other one."""
    equation = text(op, "equation").replace(" ", "")
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    plain = arrow and len(terms) == 2 and "." not in equation
    if not plain or any(len(set(term)) < len(term) for term in (*terms, result)):
        return Refusal(f"{op.op_type}: {equation!r} is not of two operands with letters alone and each once")
    made = []
    for place, (name, term) in enumerate(zip(node.inputs, terms, strict=True)):
        other, beside = node.inputs[1 - place], terms[1 - place]
        if set(term) - set(result) - set(beside):
            return Refusal(f"{op.op_type}: {equation!r} sums over an axis of one operand alone")
        turned = f"{result},{beside}->{term}"
        given = (gradients[0], other)
        made.append(tape.onnx("Einsum", given, tape.shape(name), equation=turned) if tape.wants(name) else "")
    return made
