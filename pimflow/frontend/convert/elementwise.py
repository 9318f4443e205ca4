"""Conversion of elementwise operators and batch normalisation."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from pimflow.frontend.convert.site import CONTRIB, Site, Typed, converts, identity
from pimflow.ir import Array, AttributeValue, BatchNorm, Elementwise, OnnxOp, Op
from pimflow.ir.ops.elementwise import ARITIES
from pimflow.onnxio.tensors import numpy_dtype, shortest

ELEMENTWISE = tuple(kind for kind in ARITIES if kind not in ("Sum", "Clip"))
"""Operators of ONNX's own domain that become `Elementwise` unchanged."""


@converts(*ELEMENTWISE)
def _elementwise(site: Site) -> Op | None:
    assert isinstance(site.node.op, OnnxOp)
    if not all(site.node.inputs):
        return None
    attributes = site.node.op.attributes
    return Elementwise(site.node.kind, attributes) if attributes else _plain(site.node.kind)


@cache
def _plain(kind: str) -> Elementwise:
    """The op without attributes, the common case: one object shared by all nodes."""
    return Elementwise(kind)


@converts("Sum")
def _sum(site: Site) -> Typed | Op | None:
    return identity(site) if len(site.node.inputs) == 1 else _elementwise(site)


@converts("Clip")
def _clip(site: Site) -> Typed | None:
    if site.opset < 11:
        names = ("max", "min")
        bounds = {name: site.number(name, 0.0) for name in names if name in site.attributes}
        return Typed((Elementwise("Clip", tuple(sorted(bounds.items()))),), site.node.inputs[:1])
    found: list[tuple[str, AttributeValue]] = []
    for index, name in ((2, "max"), (1, "min")):
        bound = site.constant(index)
        if site.has(index) and (bound is None or bound.size != 1 or bound.dtype.name != site.value().dtype):
            return None
        if bound is not None:
            scalar = bound.reshape(())
            found.append((name, int(scalar) if bound.dtype.kind in "iu" else decimal(scalar)))
    return Typed((Elementwise("Clip", tuple(found)),), site.node.inputs[:1])


def decimal(scalar: Array) -> float:
    """A scalar as a Python float, with the shortest decimal form that its type allows."""
    return shortest(float(scalar)) if scalar.dtype.itemsize <= 4 and scalar.dtype.kind not in "iu" else float(scalar)


@converts("QuickGelu", domain=CONTRIB)
def _quick_gelu(site: Site) -> Typed | None:
    """x * sigmoid(alpha x), as the nodes that were fused."""
    if not site.is_float():
        return None
    alpha, source = shortest(site.number("alpha", 1.702)), site.node.inputs[0]
    ops: tuple[Op, ...] = (Elementwise("Sigmoid"), Elementwise("Mul"))
    if alpha == 1:
        return Typed(ops, (source,), {1: (source,)})
    return Typed((Elementwise("Mul"), *ops), (source, _scalar(site, alpha)), {2: (source,)})


@converts("Gelu", domain=CONTRIB)
def _gelu(site: Site) -> Typed | None:
    """x (1 + erf(x / sqrt 2)) / 2, as one node if the opset has it."""
    if not site.is_float():
        return None
    source = site.node.inputs[0]
    if site.opset >= 20:
        return Typed((Elementwise("Gelu"),), (source,))
    root, one, half = (_scalar(site, number) for number in (math.sqrt(0.5), 1.0, 0.5))
    kinds = ("Mul", "Erf", "Add", "Mul", "Mul")
    return Typed(tuple(Elementwise(kind) for kind in kinds), (source, root), {2: (one,), 3: (source,), 4: (half,)})


def _scalar(site: Site, number: float) -> Array:
    """A constant in the element type of the first input."""
    return np.array(number, numpy_dtype(site.value().dtype))


@converts("BatchNormalization")
def _batch_norm(site: Site) -> Op | None:
    training = site.integer("training_mode", 0) or not site.integer("spatial", 1)
    return None if training or not site.is_float() else BatchNorm(site.number("epsilon", 1e-5))
