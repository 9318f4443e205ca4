"""Conversion of Conv, Gemm and MatMul, and of the fused operators that ONNX Runtime's optimiser makes of them."""

from __future__ import annotations

import numpy as np

from pimflow.frontend.convert.site import CONTRIB, Site, Typed, converts
from pimflow.frontend.convert.window import pair, resolve_pads
from pimflow.ir import Array, Conv2d, Elementwise, Gemm, MatMul, Op
from pimflow.ir.ops.elementwise import fused_activation
from pimflow.onnxio.tensors import numpy_dtype, shortest

_Follower = tuple[Op, "tuple[str | Array, ...]"]  # an op, and its operands besides the previous result


@converts("Conv")
def _conv(site: Site) -> Typed | None:
    op = _conv2d(site)
    return None if op is None else Typed((op,), site.node.inputs[:3])


@converts("FusedConv", domain=CONTRIB)
def _fused_conv(site: Site) -> Typed | None:
    """A convolution, the addition of a fourth input, and an activation: the fused nodes, separate again."""
    op = _conv2d(site)
    activation = _activation(site, site.numbers("activation_params"))
    if op is None or activation is None:
        return None
    added: tuple[_Follower, ...] = ((Elementwise("Add"), (site.node.inputs[3],)),) if site.has(3) else ()
    inputs = site.node.inputs[:3] if site.has(2) else site.node.inputs[:2]
    return _followed(op, inputs, (*added, *activation))


def _conv2d(site: Site) -> Conv2d | None:
    weights = site.shape(1)
    if len(site.shape()) != 4 or len(weights) != 4 or not site.is_float():
        return None
    kernel = pair(site.integers("kernel_shape") or weights[2:], 1)
    strides, dilations = pair(site.integers("strides"), 1), pair(site.integers("dilations"), 1)
    pads = resolve_pads(site, kernel, strides, dilations)
    if pads is None:
        return None
    return Conv2d(kernel, strides, pads, dilations, site.integer("group", 1))


@converts("Gemm")
def _gemm(site: Site) -> Op | None:
    return _product(site)


def _product(site: Site) -> Gemm | None:
    if not site.is_float():
        return None
    return Gemm(
        site.number("alpha", 1.0),
        site.number("beta", 1.0),
        bool(site.integer("transA", 0)),
        bool(site.integer("transB", 0)),
    )


@converts("FusedGemm", domain=CONTRIB)
def _fused_gemm(site: Site) -> Typed | None:
    op = _product(site)
    names = ("activation_alpha", "activation_beta", "activation_gamma")
    activation = _activation(site, tuple(site.number(name, 0.0) for name in names if name in site.attributes))
    if op is None or activation is None:
        return None
    return _followed(op, site.node.inputs, activation)


@converts("MatMul")
def _matmul(site: Site) -> Op | None:
    return MatMul() if site.is_float() else None


@converts("FusedMatMul", domain=CONTRIB)
def _fused_matmul(site: Site) -> Typed | None:
    """alpha * (A @ B): a Gemm if both are matrices, else a MatMul, which has no transpose."""
    if not site.is_float() or site.integer("transBatchA", 0) or site.integer("transBatchB", 0):
        return None
    alpha = shortest(site.number("alpha", 1.0))
    transposed = bool(site.integer("transA", 0)), bool(site.integer("transB", 0))
    if len(site.shape(0)) == len(site.shape(1)) == 2:
        return Typed((Gemm(alpha, 1.0, *transposed),), site.node.inputs)
    if any(transposed):
        return None
    factor = np.array(alpha, numpy_dtype(site.value().dtype))
    return _followed(MatMul(), site.node.inputs, () if alpha == 1 else ((Elementwise("Mul"), (factor,)),))


def _activation(site: Site, parameters: tuple[float, ...]) -> tuple[_Follower, ...] | None:
    """The activation fused into a product: () if there is none, None if it is unknown."""
    activation = fused_activation(site.text("activation", ""), parameters)
    return None if activation is None else tuple((op, ()) for op in activation)


def _followed(op: Op, inputs: tuple[str | Array, ...], followers: tuple[_Follower, ...]) -> Typed:
    """An op followed by others."""
    extra_operands = {place: operands for place, (_, operands) in enumerate(followers, start=1) if operands}
    return Typed((op, *(follower for follower, _ in followers)), inputs, extra_operands)
