"""Conversion of pooling, and the attributes that all windowed operators share."""

from __future__ import annotations

from pimflow.errors import GraphError
from pimflow.frontend.convert.site import FLOATS, Site, Typed, converts
from pimflow.ir import GlobalPool, Op, Pool2d, window_out
from pimflow.ir.ops.window import same_pads


def pair(values: tuple[int, ...] | None, default: int) -> tuple[int, int]:
    """Two numbers of at least 1, for H and W: the default if the attribute is absent.

    Raises:
        GraphError: it is anything else.
    """
    if values is None:
        return (default, default)
    if len(values) != 2 or min(values) < 1:
        raise GraphError(f"{values}: a window over two axes has two numbers, each 1 or more")
    return (values[0], values[1])


def resolve_pads(
    site: Site, kernel: tuple[int, int], strides: tuple[int, int], dilations: tuple[int, int]
) -> tuple[int, int, int, int] | None:
    """Explicit pads (top, left, bottom, right); None for negative pads and unknown modes."""
    mode = site.text("auto_pad", "NOTSET")
    if mode == "NOTSET":
        pads = site.integers("pads") or (0, 0, 0, 0)
        if len(pads) != 4:
            raise GraphError(f"pads {pads}: a window over two axes has four")
        return (pads[0], pads[1], pads[2], pads[3]) if min(pads) >= 0 else None
    if mode == "VALID":
        return (0, 0, 0, 0)
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        return None
    top, left, bottom, right = same_pads(mode, site.shape()[2:], kernel, strides, dilations)
    return (top, left, bottom, right)


@converts("MaxPool", "AveragePool")
def _pool(site: Site) -> Op | None:
    kernel = site.integers("kernel_shape")
    if len(site.shape()) != 4 or kernel is None:
        return None
    if site.value().dtype not in FLOATS or site.integer("storage_order", 0):
        return None
    if site.text("auto_pad", "NOTSET").startswith("SAME"):
        return None  # the rest are explicit pads by now: these windows start inside the map
    size, strides = pair(kernel, 1), pair(site.integers("strides"), 1)
    dilations = pair(site.integers("dilations"), 1)
    pads = resolve_pads(site, size, strides, dilations)
    if pads is None:
        return None
    average = site.node.kind == "AveragePool"
    include = average and bool(site.integer("count_include_pad", 0))
    ceil = bool(site.integer("ceil_mode", 0))
    op = Pool2d("average" if average else "max", size, strides, pads, dilations, ceil, include)
    return _without_ceil(op, site.shape()) if ceil else op


def _without_ceil(op: Pool2d, shape: tuple[int, ...]) -> Pool2d:
    """The same pooling in floor mode, with the trailing pads that the last windows reach into, if that is exact.

    Padding does not affect a maximum, or an average that excludes it, so in these cases it may be explicit.
    """
    ends = []
    for axis in range(2):
        extent = op.dilations[axis] * (op.kernel[axis] - 1) + 1
        before, after = op.pads[axis], op.pads[2 + axis]
        count = window_out(shape[2 + axis], op.kernel[axis], op.strides[axis], before, after, op.dilations[axis], True)
        ends.append(max(after, (count - 1) * op.strides[axis] + extent - before - shape[2 + axis]))
    pads = (op.pads[0], op.pads[1], ends[0], ends[1])
    exact = pads == op.pads or not op.count_include_pad
    if exact and all(end < size for end, size in zip(ends, op.kernel, strict=True)):
        return Pool2d(op.kind, op.kernel, op.strides, pads, op.dilations, False, op.count_include_pad)
    return op


@converts("GlobalMaxPool", "GlobalAveragePool")
def _global_pool(site: Site) -> Op | None:
    if len(site.shape()) != 4 or not site.is_float():
        return None
    return GlobalPool("average" if site.node.kind == "GlobalAveragePool" else "max")


@converts("ReduceMean", "ReduceMax")
def _reduce(site: Site) -> Typed | None:
    """ReduceMean or ReduceMax over exactly H and W, kept as dims of 1."""
    axes = site.constant_integers(1) if site.has(1) else site.integers("axes")
    if len(site.shape()) != 4 or site.value().dtype not in ("float32", "float16") or axes is None:
        return None
    if sorted(site.axis(axis) for axis in axes) != [2, 3] or not site.integer("keepdims", 1):
        return None
    return Typed((GlobalPool("average" if site.node.kind == "ReduceMean" else "max"),), site.node.inputs[:1])
