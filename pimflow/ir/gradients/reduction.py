"""Gradients of reductions over axes, cumulative sums and products, softmax, Einsum and determinants."""

from __future__ import annotations

from itertools import chain
from string import ascii_letters

import numpy as np

from pimflow.ir.gradients.tape import Gradients, Tape, differentiates, integer, integers, text
from pimflow.ir.graph import Node
from pimflow.ir.ops.opaque import OnnxOp
from pimflow.ir.refusal import Refusal

MAX_ROWS = 16
"""The maximum number of rows of matrices with determinants: the minors of one take rows^4 elements."""


def extreme_gradient(tape: Tape, x: str, best: str, dy: str, axes: tuple[int, ...]) -> str:
    """The gradient of a maximum (or minimum) over axes, which `best` and `dy` have as dims of 1: equal shares for all
    elements that attain it."""
    hit = tape.elementwise("Equal", x, best)
    one, zero = tape.number(1.0, dy), tape.number(0.0, dy)
    share = tape.div(dy, tape.sum(tape.where(hit, one, zero), axes))
    return tape.where(hit, share, zero)


def _axes(tape: Tape, node: Node, op: OnnxOp) -> tuple[int, ...] | None:
    """The axes of a reduction, from an attribute or a constant; None if they are computed."""
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
    keepdims_shape = tuple(1 if axis in axes else dim for axis, dim in enumerate(shape))
    dy, y = tape.reshape(gradients[0], keepdims_shape), tape.reshape(node.output, keepdims_shape)
    dx = _reduction_gradient(tape, op.op_type, x, y, dy, axes)
    return (tape.broadcast_to(dx, shape), *("",) * (len(node.inputs) - 1))


def _reduction_gradient(tape: Tape, kind: str, x: str, y: str, dy: str, axes: tuple[int, ...]) -> str:
    """The gradient of x, up to a broadcast to its shape; y and dy have the axes as dims of 1."""
    if kind == "ReduceSum":
        return dy
    if kind == "ReduceMean":
        return tape.scaled(dy, tape.value(dy).elements / max(1, tape.value(x).elements))
    if kind in ("ReduceMax", "ReduceMin"):
        return extreme_gradient(tape, x, y, dy, axes)
    if kind == "ReduceProd":
        return tape.mul(dy, _product_of_others(tape, x, axes))
    if kind == "ReduceL1":
        return tape.mul(tape.elementwise("Sign", x), dy)
    if kind == "ReduceL2":
        return tape.mul(x, tape.div(dy, y))
    if kind == "ReduceSumSquare":
        return tape.mul(x, tape.scaled(dy, 2))
    if kind == "ReduceLogSum":
        return tape.div(dy, tape.elementwise("Exp", y))
    return tape.mul(tape.elementwise("Exp", tape.sub(x, y)), dy)


def _product_of_others(tape: Tape, x: str, axes: tuple[int, ...]) -> str:
    """For every element, the product of the others along some axes, correct even if elements are zero."""
    zero, one = tape.elementwise("Equal", x, tape.number(0.0, x)), tape.number(1.0, x)
    filled = tape.where(zero, one, x)
    hits = tape.where(zero, one, tape.number(0.0, x))
    elsewhere = tape.sub(tape.sum(hits, axes), hits)
    return tape.where(
        tape.above(elsewhere, 0.5), tape.number(0.0, x), tape.div(tape.reduce("ReduceProd", filled, axes), filled)
    )


def _softmax_axes(tape: Tape, node: Node, op: OnnxOp) -> tuple[int, ...]:
    """The axis; before opset 13, that axis and all after it, treated as one."""
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
    """Cumulative sums from the other end."""
    inputs = (gradients[0], node.inputs[1])
    exclusive, reverse = integer(op, "exclusive"), 1 - integer(op, "reverse")
    return (tape.onnx("CumSum", inputs, tape.shape(gradients[0]), exclusive=exclusive, reverse=reverse), "")


@differentiates("CumProd")
def _cumulative_product(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """x dx is the sum of dy y over all elements that x is part of. Elements before the first zero of a line are divided
    by; that zero is replaced by 1, so that the products over the others remain; later elements have no gradient."""
    (x, axis), (dy,), shape = node.inputs, gradients, tape.shape(node.inputs[0])
    exclusive, reverse = integer(op, "exclusive"), integer(op, "reverse")

    def sum_of_later(values: str) -> str:
        return tape.onnx("CumSum", (values, axis), shape, exclusive=exclusive, reverse=1 - reverse)

    zero, one = tape.elementwise("Equal", x, tape.number(0.0, x)), tape.number(1.0, x)
    zeros_so_far = tape.onnx("CumSum", (tape.cast(zero, tape.dtype(x)), axis), shape, reverse=reverse)
    first = tape.elementwise("And", zero, tape.elementwise("Equal", zeros_so_far, one))
    filled = tape.where(first, one, x)
    others = tape.onnx("CumProd", (filled, axis), shape, exclusive=exclusive, reverse=reverse)
    of_first = sum_of_later(tape.mul(dy, others))
    of_others = tape.div(sum_of_later(tape.mul(dy, node.output)), tape.where(zero, one, x))
    return (tape.where(first, of_first, of_others), "")


@differentiates("Einsum")
def _einsum(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """For each operand, the Einsum of all others and the result's gradient, broadcast along axes that only it has.

    A diagonal is the sum over a second axis times the identity matrix.
    """
    equation = text(op, "equation").replace(" ", "")
    found = _terms(equation, [len(tape.shape(name)) for name in node.inputs])
    if found is None:
        return Refusal(f"{op.op_type}: {equation!r} broadcasts, and has no gradient rule")
    terms, result, diagonals = found
    dims = {*zip("".join(terms), chain(*map(tape.shape, node.inputs)), strict=True)}
    sizes = dict(dims)
    if len(sizes) < len(dims) or any(sizes[row] != sizes[column] for row, column in diagonals):
        return Refusal(f"{op.op_type}: {equation!r} broadcasts, and has no gradient rule")
    identities = [_identity(tape, sizes[row], tape.dtype(node.output)) for row, _ in diagonals]
    operands = [*zip((*node.inputs, *identities), (*terms, *map("".join, diagonals)), strict=True)]
    made = []
    for place, (name, term) in enumerate(operands[: len(terms)]):
        if not tape.wants(name):
            made.append("")
            continue
        given, others = zip((gradients[0], result), *operands[:place], *operands[place + 1 :], strict=True)
        kept = "".join(letter for letter in term if any(letter in other for other in others))
        swapped = f"{','.join(others)}->{kept}"
        dx = tape.onnx("Einsum", given, tuple(sizes[letter] for letter in kept), equation=swapped)
        if kept != term:
            ones = tuple(sizes[letter] if letter in kept else 1 for letter in term)
            dx = tape.broadcast_to(tape.reshape(dx, ones), tape.shape(name))
        made.append(dx)
    return made


def _identity(tape: Tape, size: int, dtype: str) -> str:
    """An identity matrix, made when the step runs: as a constant it would take as much memory as the operand."""
    places = np.arange(size)
    rows, columns = tape.constant(places[:, None], "rows"), tape.constant(places, "columns")
    return tape.cast(tape.elementwise("Equal", rows, columns), dtype)


def _terms(equation: str, ranks: list[int]) -> tuple[list[str], str, list[tuple[str, str]]] | None:
    """The letters of every operand and of the result, with "..." expanded to letters, and pairs of letters for axes of
    which the diagonal is read: the second is new, and occurs nowhere else. None if the ranks of "..." differ, or the
    result has a letter twice."""
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    if not arrow:
        result = "..." * ("..." in left) + "".join(sorted(one for one in {*left} - {*".,"} if left.count(one) == 1))
    rest = {rank - len(term) + 3 for term, rank in zip(terms, ranks, strict=True) if "..." in term}
    if len(rest) > 1:
        return None
    unused = [letter for letter in ascii_letters if letter not in equation]
    dots = "".join(unused[: sum(rest)])
    fresh = iter(unused[len(dots) :])
    terms, result = [term.replace("...", dots) for term in terms], result.replace("...", dots)
    diagonals: list[tuple[str, str]] = []
    for place, term in enumerate(terms):
        for at, letter in enumerate(term):
            if letter in term[:at]:
                diagonals.append((letter, next(fresh)))
                terms[place] = terms[place][:at] + diagonals[-1][1] + terms[place][at + 1 :]
    return None if len({*result}) < len(result) else (terms, result, diagonals)


@differentiates("Det")
def _determinant(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    """The cofactors (Jacobi's formula): determinants of the matrix without a row and a column, with alternating signs.
    They need no inverse, so singular matrices have gradients too."""
    (x,), (dy,) = node.inputs, gradients
    *batch, rows, _ = tape.shape(x)
    if rows > MAX_ROWS:
        return Refusal(f"Det of matrices of {rows} rows: {MAX_ROWS} at most have a gradient rule")
    dy = tape.reshape(dy, (*batch, 1, 1))
    if rows == 1:
        return (dy,)
    others = np.array([[row for row in range(rows) if row != removed] for removed in range(rows)], np.int64)
    places = others[:, None, :, None] * rows + others[None, :, None, :]
    flat = tape.reshape(x, (*batch, rows * rows))
    left = tape.onnx(
        "Gather", (flat, tape.constant(places, "minors")), (*batch, *places.shape), attributes={"axis": len(batch)}
    )
    minors = tape.onnx("Det", (left,), (*batch, rows, rows))
    signs = 1 - 2 * (np.indices((rows, rows)).sum(0) % 2)
    return (tape.mul(dy, tape.mul(minors, tape.constant(signs.astype(tape.dtype(x)), "signs"))),)
