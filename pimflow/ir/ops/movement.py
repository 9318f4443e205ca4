"""Ops that move elements and compute none."""

from __future__ import annotations

import math
from dataclasses import replace

from pimflow.ir.analysis.rows import Shape, Shapes, row_count
from pimflow.ir.ops.base import Op, RowPart, register_op
from pimflow.ir.refusal import Refusal
from pimflow.records import dataclass


class MovementOp(Op):
    """The output's elements are the inputs', or a constant."""

    @property
    def is_movement(self) -> bool:
        """Always."""
        return True


@register_op
@dataclass(frozen=True)
class Slice(MovementOp):
    """Elements start, start + step, .. < stop along one axis (all non-negative, in range)."""

    onnx_names = ("Slice",)

    axis: int
    start: int
    stop: int
    step: int = 1

    def shape_rule(self, shapes: Shapes) -> Shape:
        """The input's, shorter along the axis."""
        x = shapes[0] or ()
        if not 0 <= self.axis < len(x):
            self.refuse(f"axis {self.axis} is not an axis of {x}")
        if not 0 <= self.start <= x[self.axis]:
            self.refuse(f"start {self.start} is outside axis {self.axis} of {x}")
        if not 0 <= self.stop <= x[self.axis]:
            self.refuse(f"stop {self.stop} is outside axis {self.axis} of {x}")
        if self.step <= 0:
            self.refuse(f"step {self.step} is not positive")
        length = max(0, -(-(self.stop - self.start) // self.step))
        return (*x[: self.axis], length, *x[self.axis + 1 :])

    def row_rule(self, in_shapes: Shapes, out_shape: Shape, start: int, stop: int) -> RowPart | Refusal:
        """The same rows, if it cuts along another axis."""
        return _same_rows(self, self.axis, len(in_shapes), out_shape, start, stop)


@register_op
@dataclass(frozen=True)
class Pad(MovementOp):
    """Constant padding: `before[i]` and `after[i]` elements of `value` on axis i (negative widths not allowed)."""

    onnx_names = ("Pad",)

    before: tuple[int, ...]
    after: tuple[int, ...]
    value: float = 0.0

    def shape_rule(self, shapes: Shapes) -> Shape:
        """The input's, longer by the widths."""
        x = shapes[0] or ()
        if not len(self.before) == len(self.after) == len(x):
            self.refuse(f"widths {self.before} and {self.after} do not fit {x}")
        if min((*self.before, *self.after), default=0) < 0:
            self.refuse("negative widths are not allowed")
        return tuple(low + dim + high for low, dim, high in zip(self.before, x, self.after, strict=True))

    def row_rule(self, in_shapes: Shapes, out_shape: Shape, start: int, stop: int) -> RowPart | Refusal:
        """The input rows in this range, and padding for the rest of it."""
        axis = len(out_shape) - 2
        size, before = row_count(in_shapes[0]), self.before[axis]
        in_start, in_stop = max(start - before, 0), min(stop - before, size)
        if in_start >= in_stop:
            return Refusal(f"output rows {start} to {stop - 1} lie wholly in the padding")
        top, bottom = in_start - (start - before), stop - before - in_stop
        part = replace(self, before=_with(self.before, axis, top), after=_with(self.after, axis, bottom))
        return RowPart(part, ((in_start, in_stop), *(None,) * (len(in_shapes) - 1)))


@register_op
@dataclass(frozen=True)
class Concat(MovementOp):
    """Concatenation of all inputs along a non-negative axis."""

    onnx_names = ("Concat",)

    axis: int

    def shape_rule(self, shapes: Shapes) -> Shape:
        """The inputs', their lengths along the axis added up."""
        parts = [shape for shape in shapes if shape is not None]
        first = parts[0]
        if len(parts) != len(shapes):
            self.refuse("an input is absent")
        if not 0 <= self.axis < len(first):
            self.refuse(f"axis {self.axis} is not an axis of {first}")
        others = {(*part[: self.axis], *part[self.axis + 1 :]) for part in parts}
        if len(others) > 1 or len({len(part) for part in parts}) > 1:
            self.refuse(f"shapes {parts} differ outside axis {self.axis}")
        return (*first[: self.axis], sum(part[self.axis] for part in parts), *first[self.axis + 1 :])

    def row_rule(self, in_shapes: Shapes, out_shape: Shape, start: int, stop: int) -> RowPart | Refusal:
        """The same rows of every input, if it joins along another axis."""
        return _same_rows(self, self.axis, len(in_shapes), out_shape, start, stop)


@register_op
@dataclass(frozen=True)
class Reshape(MovementOp):
    """The same elements, in the same order, under another (fully known) shape: Reshape, Flatten, Squeeze, Unsqueeze."""

    onnx_names = ("Reshape",)

    shape: tuple[int, ...]

    def shape_rule(self, shapes: Shapes) -> Shape:
        """The new shape."""
        x = shapes[0] or ()
        if math.prod(self.shape) != math.prod(x):
            self.refuse(f"{x} and {self.shape} do not hold the same number of elements")
        return self.shape


@register_op
@dataclass(frozen=True)
class Transpose(MovementOp):
    """Permutation of the axes."""

    onnx_names = ("Transpose",)

    perm: tuple[int, ...]

    def shape_rule(self, shapes: Shapes) -> Shape:
        """The input's, permuted."""
        x = shapes[0] or ()
        if sorted(self.perm) != list(range(len(x))):
            self.refuse(f"{self.perm} is not a permutation of the axes of {x}")
        return tuple(x[axis] for axis in self.perm)


def _same_rows(op: Op, axis: int, inputs: int, out_shape: Shape, start: int, stop: int) -> RowPart | Refusal:
    if axis == len(out_shape) - 2:
        return Refusal(f"{op.onnx_name} works along the rows")
    return RowPart(op, ((start, stop),) * inputs)


def _with(widths: tuple[int, ...], axis: int, width: int) -> tuple[int, ...]:
    return (*widths[:axis], width, *widths[axis + 1 :])
