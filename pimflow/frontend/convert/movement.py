"""Conversion of operators that move elements and compute none."""

from __future__ import annotations

from pimflow.errors import GraphError
from pimflow.frontend.convert.elementwise import decimal
from pimflow.frontend.convert.site import Site, Typed, converts, identity
from pimflow.ir import Concat, Op, Pad, Reshape, Slice, Transpose


@converts("Slice")
def _cut(site: Site) -> Typed | None:
    """Slice: one typed Slice for each axis that it actually cuts."""
    if site.opset < 10:
        starts, ends = site.integers("starts"), site.integers("ends")
        axes, steps = site.integers("axes"), None
    else:
        starts, ends = site.constant_integers(1), site.constant_integers(2)
        axes, steps = site.constant_integers(3), site.constant_integers(4)
        if (site.has(3) and axes is None) or (site.has(4) and steps is None):
            return None
    if starts is None or ends is None:
        return None
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise GraphError(f"Slice: starts {starts}, ends {ends}, axes {axes} and steps {steps} differ in length")
    if any(step < 1 for step in steps):
        return None
    ops: list[Op] = []
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        place = site.axis(axis)
        size = site.shape()[place]
        first, last, _ = slice(start, end, step).indices(size)
        if (first, last, step) != (0, size, 1):
            ops.append(Slice(place, first, max(first, last), step))
    return Typed(tuple(ops), site.node.inputs[:1]) if ops else identity(site)


@converts("Pad")
def _pad(site: Site) -> Typed | None:
    if site.text("mode", "constant") != "constant":
        return None
    rank = len(site.shape())
    if site.opset < 11:
        pads, value = site.integers("pads"), site.number("value", 0.0)
    else:
        pads, fill = site.constant_integers(1), site.constant(2)
        if site.has(2) and (fill is None or fill.size != 1 or fill.dtype.kind not in "fiu"):
            return None
        value = 0.0 if fill is None else decimal(fill.reshape(()))
        if fill is not None and fill.dtype.kind != "f" and int(value) != int(fill.reshape(())):
            return None
    axes = tuple(range(rank)) if not site.has(3) else site.constant_integers(3)
    if pads is None or axes is None:
        return None
    if len(pads) != 2 * len(axes):
        raise GraphError(f"Pad: {len(pads)} widths {pads} for both ends of {len(axes)} axes")
    if min(pads, default=0) < 0:
        return None
    before, after = [0] * rank, [0] * rank
    for index, axis in enumerate(axes):
        place = site.axis(axis)
        before[place], after[place] = pads[index], pads[index + len(axes)]
    return Typed((Pad(tuple(before), tuple(after), value),), site.node.inputs[:1])


@converts("Concat")
def _concat(site: Site) -> Op | None:
    return Concat(site.axis(site.integer("axis", 1))) if all(site.node.inputs) else None


@converts("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshape(site: Site) -> Typed | None:
    shape = site.out_shape()
    if shape is None or any(site.constant(i) is None for i in range(1, len(site.node.inputs))):
        return None
    if 0 in shape and site.opset < 14:  # a size of 0 needs allowzero
        return None
    return Typed((Reshape(shape),), site.node.inputs[:1])


@converts("Transpose")
def _transpose(site: Site) -> Op | None:
    rank = len(site.shape())
    return Transpose(site.integers("perm") or tuple(reversed(range(rank))))
