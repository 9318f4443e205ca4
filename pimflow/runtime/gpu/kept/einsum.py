"""Einsum as matrix products: the operands are contracted one after the other, from the left."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pimflow.ir import OnnxOp
from pimflow.ir.expansion.einsum import Labels, equation_terms
from pimflow.runtime.gpu.kept.rules import asks, invalid_operands
from pimflow.runtime.gpu.work import GpuWork, KernelSequence, MatrixWork, NodeWork, Operands, StreamWork, element_width


@asks("Einsum")
def _einsum(op: OnnxOp, operands: Operands) -> NodeWork:
    shapes = [value.shape or () for value in operands.inputs]
    found = equation_terms(str(dict(op.attributes).get("equation", "")), [len(shape) for shape in shapes])
    if found is None:
        return invalid_operands(operands)
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
    """A batch of products, or an elementwise kernel if no label is summed over."""
    shared, kept = set(left) & set(right), set(out)
    summed = {*left, *right} - kept

    def count(labels: set[str]) -> int:
        return math.prod(sizes[label] for label in labels)

    moved = width * sum(count(set(labels)) for labels in (left, right, out))
    if not summed:
        return StreamWork(count(kept), moved)
    rows, columns = count((set(left) - shared) & kept), count((set(right) - shared) & kept)
    return MatrixWork(rows, columns, count(summed), count(shared & kept), moved)
