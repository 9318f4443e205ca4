"""Einsum of two operands as a matrix product."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pimflow.ir.expansion.base import Writer, expands
from pimflow.ir.ops.contraction import PRODUCT
from pimflow.ir.ops.movement import Reshape, Transpose
from pimflow.ir.refusal import Refusal

Labels = tuple[str, ...]


@expands("Einsum")
def _einsum(writer: Writer) -> Refusal | None:
    """Transposes the operands to batch, rows, depth and to batch, depth, columns, and the result to its own order."""
    shapes = [writer.shape(name) for name in writer.node.inputs]
    found = equation_terms(writer.text("equation"), [len(shape) for shape in shapes])
    if found is None or len(shapes) != 2:
        return Refusal(f"it multiplies {len(shapes)} operands: a product has two")
    (left, right), result = found
    if any(len(set(term)) < len(term) for term in (left, right, result)):
        return Refusal("it takes a diagonal")
    sizes = dict(zip(left, shapes[0], strict=True))
    if any(sizes.setdefault(label, size) != size for label, size in zip(right, shapes[1], strict=True)):
        return Refusal("it broadcasts an axis")
    batch = tuple(label for label in left if label in right and label in result)
    depth = tuple(label for label in left if label in right and label not in result)
    rows = tuple(label for label in left if label not in right)
    columns = tuple(label for label in right if label not in left)
    if not depth or not {*rows, *columns} <= set(result):
        return Refusal(
            "it sums over no axis that both operands have" if not depth else "it sums over one operand alone"
        )

    def merged(*groups: Labels) -> tuple[int, ...]:
        outer = tuple(sizes[label] for label in groups[0])
        return (*outer, *(math.prod(sizes[label] for label in group) for group in groups[1:]))

    a = _permuted(writer, 0, left, (*batch, *rows, *depth), merged(batch, rows, depth))
    b = _permuted(writer, 1, right, (*batch, *depth, *columns), merged(batch, depth, columns))
    made = writer.product(PRODUCT, a, b)
    order = (*batch, *rows, *columns)
    shape = tuple(sizes[label] for label in order)
    if writer.shape(made) != shape:
        made = writer.add(Reshape(shape), made)
    perm = tuple(order.index(label) for label in result)
    if perm != tuple(range(len(perm))):
        writer.add(Transpose(perm), made)
    return None


def _permuted(writer: Writer, position: int, labels: Labels, order: Labels, shape: tuple[int, ...]) -> str:
    """An operand in another order and shape; a constant remains a constant."""
    perm = tuple(labels.index(label) for label in order)
    array, name = writer.constant_at(position), writer.operand(position)
    in_order = perm == tuple(range(len(perm)))
    if array is not None and not (in_order and array.shape == shape):
        whole = array
        return writer.constant(shape, array.dtype.name, lambda: whole.transpose(perm).reshape(shape))
    if not in_order:
        name = writer.add(Transpose(perm), name)
    return name if writer.shape(name) == shape else writer.add(Reshape(shape), name)


def equation_terms(equation: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels] | None:
    """Labels of the operands and of the result of an Einsum; the axes of an ellipsis are labelled from the right.

    Args:
        equation: ONNX's attribute.
        ranks: ranks of the operands.

    Returns:
        None if the equation does not fit the ranks.
    """
    given, arrow, after = equation.replace(" ", "").partition("->")
    texts = given.split(",")
    if len(texts) != len(ranks):
        return None
    terms = [_labels(text, rank) for text, rank in zip(texts, ranks, strict=True)]
    if any(len(term) != rank for term, rank in zip(terms, ranks, strict=True)):
        return None
    every = [label for term in terms for label in term]
    hidden = sorted({label for label in every if len(label) > 1}, key=lambda label: -int(label[1:]))
    if not arrow:
        return terms, (*hidden, *sorted(label for label in every if len(label) == 1 and every.count(label) == 1))
    result = _labels(after, len(after.replace("...", "")) + len(hidden))
    return (terms, result) if set(result) <= set(every) else None


def _labels(text: str, rank: int) -> Labels:
    if "..." not in text:
        return tuple(text)
    before, _, after = text.partition("...")
    hidden = max(rank - len(before) - len(after), 0)
    return (*before, *(f".{place}" for place in reversed(range(hidden))), *after)
