"""The gradient of deformable convolutions (Dai et al., Deformable Convolutional Networks, ICCV 2017; with masks Zhu et
al., CVPR 2019).

The values that the taps of every window read form columns, which are multiplied by the weights: dW is a product with
columns, and the gradient of columns passes on to the elements around each place, to the places, and to the masks.
Channels are divided into parts with places of their own, each treated as an image; columns are recomputed, since they
are larger than x.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pimflow.ir.analysis.rows import Shape
from pimflow.ir.gradients.contraction import Windows, bias_gradient, windows_of
from pimflow.ir.gradients.places import (
    Axis,
    Corner,
    coordinate_gradients,
    corners_of,
    linear_taps,
    map_gradient,
    sampled,
)
from pimflow.ir.gradients.tape import TRAINED_INPUTS, Gradients, Tape, differentiates, integer
from pimflow.ir.graph import Node
from pimflow.ir.ops.movement import Concat
from pimflow.ir.ops.opaque import OnnxOp
from pimflow.ir.refusal import Refusal
from pimflow.records import dataclass

TRAINED_INPUTS.register(("", "DeformConv"))((1, 3))


@dataclass(frozen=True)
class _Deformed:
    """A deformable convolution: x [N, C, ..], weights [O, C/groups, *kernel], offsets [N, parts taps axes, *outputs],
    for each place from the outermost axis on."""

    tape: Tape
    x: str
    weights: str
    offsets: str
    outputs: Shape
    windows: Windows
    parts: int

    @property
    def images(self) -> int:
        """The number of images, counting each part of an image's channels as one."""
        return self.tape.shape(self.x)[0] * self.parts

    @property
    def width(self) -> int:
        """The number of channels of a part."""
        return self.tape.shape(self.x)[1] // self.parts

    @property
    def taps(self) -> int:
        """The number of taps of a window."""
        return math.prod(self.windows.kernel)

    @property
    def spots(self) -> int:
        """The number of windows of an image."""
        return math.prod(self.outputs)

    @property
    def count(self) -> int:
        """The total number of places."""
        return self.images * self.taps * self.spots

    @cached_property
    def rows(self) -> str:
        """The map as one row of channels per element."""
        shape = self.tape.shape(self.x)
        parts = self.tape.reshape(self.x, (self.images, self.width, math.prod(shape[2:])))
        transposed = self.tape.matrix_transpose(parts)
        return self.tape.reshape(transposed, (self.images * math.prod(shape[2:]), self.width))

    def of_map(self, rows: str) -> str:
        """The inverse of `rows`: rows reshaped as the map."""
        cells = self.tape.shape(rows)[0] // self.images
        transposed = self.tape.matrix_transpose(self.tape.reshape(rows, (self.images, cells, self.width)))
        return self.tape.reshape(transposed, self.tape.shape(self.x))

    @cached_property
    def axes(self) -> list[Axis]:
        """The positions that the taps read, from the innermost axis on."""
        tape, count = self.tape, self.windows.axes
        given = tape.reshape(self.offsets, (self.images, self.taps, count, self.spots))
        made = []
        for axis, size in enumerate(tape.shape(self.x)[2:]):
            offset = tape.reshape(tape.slice(given, 2, axis, axis + 1), (self.images, self.taps * self.spots))
            at = tape.add(offset, tape.constant(self._undeformed(axis).astype(tape.dtype(offset)), "taps"))
            made.append(Axis(size, linear_taps(tape, at, size)))
        return made[::-1]

    def _undeformed(self, axis: int) -> npt.NDArray[np.int64]:
        """The positions that taps would read along an axis without offsets: [1, taps spots]."""
        windows = self.windows
        begins = np.indices(self.outputs)[axis].reshape(1, -1) * windows.strides[axis] - windows.pads[axis]
        within = np.indices(windows.kernel)[axis].reshape(-1, 1) * windows.dilations[axis]
        return np.asarray(begins + within).reshape(1, -1)

    @cached_property
    def corners(self) -> list[Corner]:
        """The elements that the taps read."""
        return corners_of(self.tape, self.axes)

    @cached_property
    def read(self) -> str:
        """The values that the taps read, by place: [count, width]."""
        return sampled(self.tape, self.corners, self.rows, self.count)

    def grouped(self, columns: str) -> str:
        """Columns by place, reordered for the product: [groups, windows, taps of a group's channels]."""
        tape, images, groups = self.tape, self.images // self.parts, self.windows.groups
        parts = tape.reshape(columns, (images, self.parts, self.taps, self.spots, self.width))
        together = tape.transpose(parts, (0, 3, 1, 4, 2))
        reach = self.parts * self.width * self.taps // groups
        return tape.transpose(tape.reshape(together, (images * self.spots, groups, reach)), (1, 0, 2))

    def by_place(self, columns: str) -> str:
        """The inverse of `grouped`: columns by place."""
        tape, images = self.tape, self.images // self.parts
        together = tape.transpose(columns, (1, 0, 2))
        parts = tape.reshape(together, (images, self.spots, self.parts, self.width, self.taps))
        return tape.reshape(tape.transpose(parts, (0, 2, 4, 1, 3)), (self.count, self.width))

    def of_offsets(self, along: list[str]) -> str:
        """The gradients of places, given by axis from the innermost, in the layout of the offsets."""
        tape = self.tape
        parts = [tape.reshape(part, (self.images, self.taps, 1, self.spots)) for part in reversed(along)]
        return tape.reshape(tape.op(Concat(2), *parts), tape.shape(self.offsets))


@differentiates("DeformConv")
def _deform_conv(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    (x, weights, offsets), bias, mask = node.inputs[:3], tape.operand(node, 3), tape.operand(node, 4)
    (dy,), shape = gradients, tape.shape(weights)
    outputs, groups = tape.shape(dy)[2:], integer(op, "group", 1)
    own = _Deformed(tape, x, weights, offsets, outputs, windows_of(op, shape[2:]), integer(op, "offset_group", 1))
    lead = (tape.shape(dy)[0], groups, shape[0] // groups, own.spots)
    rows = tape.transpose(tape.reshape(dy, lead), (1, 0, 3, 2))
    rows = tape.reshape(rows, (groups, lead[0] * own.spots, shape[0] // groups))
    by_group = tape.reshape(weights, (groups, shape[0] // groups, math.prod(shape[1:])))
    masks = tape.reshape(mask, (own.count, 1)) if mask else ""
    made = dict.fromkeys(range(len(node.inputs)), "")
    if tape.wants(weights):
        read = tape.mul(own.read, masks) if mask else own.read
        made[1] = tape.reshape(tape.product(tape.matrix_transpose(rows), own.grouped(read)), shape)
    if bias and tape.wants(bias):
        made[3] = bias_gradient(tape, dy)
    if not any(name and tape.wants(name) for name in (x, offsets, mask)):
        return list(made.values())
    columns = own.by_place(tape.product(rows, by_group))
    if mask and tape.wants(mask):
        made[4] = tape.reshape(tape.sum(tape.mul(columns, own.read), (1,)), tape.shape(mask))
    columns = tape.mul(columns, masks) if mask else columns
    if tape.wants(x):
        d_map = map_gradient(tape, own.corners, columns, (tape.value(x).elements // own.width, own.width))
        if isinstance(d_map, Refusal):
            return d_map
        made[0] = own.of_map(d_map)
    if tape.wants(offsets):
        made[2] = own.of_offsets(coordinate_gradients(tape, own.axes, own.corners, columns, own.rows))
    return list(made.values())
