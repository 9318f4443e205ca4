"""Einsum as products of matrices: operands are contracted one after the other, from the left."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pimflow.ir import OnnxOp
from pimflow.runtime.gpu.kept.rules import asks, odd
from pimflow.runtime.gpu.work import GpuWork, KernelSequence, MatrixWork, NodeWork, Operands, StreamWork, element_width

Labels = tuple[str, ...]


@asks("Einsum")
def _einsum(op: OnnxOp, operands: Operands) -> NodeWork:
    shapes = [value.shape or () for value in operands.inputs]
    found = _terms(str(dict(op.attributes).get("equation", "")), [len(shape) for shape in shapes])
    if found is None:
        return odd(operands)
    terms, result = found
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        sizes |= {label: max(size, sizes.get(label, 1)) for label, size in zip(term, shape, strict=True)}
    width = element_width(operands.output.dtype, operands.element_bytes)
    kernels: list[tuple[GpuWork, int]] = []
    left = terms[0]
    for place, right in enumerate(terms[1:], start=2):
        read_later = {*result, *(label for term in terms[place:] for label in term)}
        out = tuple(dict.fromkeys(label for label in (*left, *right) if label in read_later))
        kernels.append((_contraction(left, right, out, sizes, width), 1))
        left = out
    if not kernels:  # one operand: a sum, a diagonal or a transposition
        kernels = [(StreamWork(operands.inputs[0].elements, operands.bytes), 1)]
    return KernelSequence(tuple(kernels))


def _contraction(left: Labels, right: Labels, out: Labels, sizes: Mapping[str, int], width: int) -> GpuWork:
    """A batch of products, or an elementwise kernel where no label is summed over."""
    shared, kept = set(left) & set(right), set(out)
    summed = {*left, *right} - kept

    def count(labels: set[str]) -> int:
        return math.prod(sizes[label] for label in labels)

    moved = width * sum(count(set(labels)) for labels in (left, right, out))
    if not summed:
        return StreamWork(count(kept), moved)
    rows, columns = count((set(left) - shared) & kept), count((set(right) - shared) & kept)
    return MatrixWork(rows, columns, count(summed), count(shared & kept), moved)


def _terms(equation: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels] | None:
    """Labels of the operands and of the result; what an ellipsis stands for is labelled from the right."""
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
    before, _, behind = text.partition("...")
    hidden = max(rank - len(before) - len(behind), 0)
    return (*before, *(f".{place}" for place in reversed(range(hidden))), *behind)
