"""Conv, Gemm and MatMul."""

from __future__ import annotations

from pimflow.frontend.convert.site import Site, Typed, converts
from pimflow.frontend.convert.window import pair, resolve_pads
from pimflow.ir import Conv2d, Gemm, MatMul, Op


@converts("Conv")
def _conv(site: Site) -> Typed | None:
    weights = site.shape(1)
    if len(site.shape()) != 4 or len(weights) != 4 or not site.is_float():
        return None
    kernel = site.integers("kernel_shape") or weights[2:]
    strides, dilations = pair(site.integers("strides"), 1), pair(site.integers("dilations"), 1)
    if kernel != weights[2:] or strides is None or dilations is None:
        return None
    pads = resolve_pads(site, (kernel[0], kernel[1]), strides, dilations)
    if pads is None:
        return None
    op = Conv2d((kernel[0], kernel[1]), strides, pads, dilations, site.integer("group", 1))
    return Typed((op,), site.node.inputs[:3])


@converts("Gemm")
def _gemm(site: Site) -> Op | None:
    if not site.is_float():
        return None
    return Gemm(
        site.number("alpha", 1.0),
        site.number("beta", 1.0),
        bool(site.integer("transA", 0)),
        bool(site.integer("transB", 0)),
    )


@converts("MatMul")
def _matmul(site: Site) -> Op | None:
    return MatMul() if site.is_float() else None
