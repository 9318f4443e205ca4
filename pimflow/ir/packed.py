"""Constants that a model stores in few bits, as the DequantizeLinear of other constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pimflow.ir.ops.opaque import OnnxOp
from pimflow.records import dataclass

PER_AXIS_OPSET = 13
"""The first opset whose DequantizeLinear takes a scale per channel."""

_Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Packed:
    """How a model stores a constant in few bits.

    Args:
        array: the elements as the compiler reads them; the other fields describe this very array.
        op: the DequantizeLinear that computes them.
        operands: its constant operands: elements, scale, and a zero point or None.
    """

    array: _Array
    op: OnnxOp
    operands: tuple[_Array | None, ...]

    @property
    def bytes(self) -> int:
        """Total size of the operands in bytes."""
        return sum(array.nbytes for array in self.operands if array is not None)

    def cut(self, part: _Array, axis: int, start: int, stop: int) -> Packed | None:
        """The packed form of `part`, elements start .. stop-1 along an axis; None if it cannot be derived."""
        elements, scale = self.operands[:2]
        if elements is None or scale is None or self._has_blocks:
            return None
        along = self._axis(elements) == axis
        window = (slice(None),) * axis + (slice(start, stop),)
        scales = [
            array[start:stop] if along and array is not None and array.size > 1 else array
            for array in self.operands[1:]
        ]
        return Packed(part, self.op, (np.ascontiguousarray(elements[window]), *scales))

    def scaled(self, axis: int, factors: Sequence[float] | _Array) -> Packed | None:
        """The packed form of the elements times one factor per index along an axis: new scales, all positive.

        None if it cannot be derived, or if elements that change sign do not fit their type.
        """
        elements, scale, zero = (*self.operands, None)[:3]
        if elements is None or scale is None or self._has_blocks:
            return None
        if scale.size > 1 and self._axis(elements) != axis:
            return None
        wanted = np.asarray(factors, np.float64)
        with np.errstate(over="ignore"):
            step = (scale.reshape(-1) * np.where(wanted == 0, 1.0, np.abs(wanted))).astype(scale.dtype)
        least = 0 if zero is None else _along(zero, axis, elements.ndim).astype(np.int32)
        signed = least + (elements.astype(np.int32) - least) * _along(np.sign(wanted), axis, elements.ndim)
        whole = signed.astype(elements.dtype)
        if not (np.isfinite(step) & (step > 0)).all() or (whole.astype(np.int32) != signed).any():
            return None
        zeros = None if zero is None else np.broadcast_to(zero.reshape(-1), step.shape)
        op = replace(self.op, attributes=(("axis", axis),))
        return Packed(dequantised(whole, step, zeros, axis), op, (whole, step, zeros))

    def _axis(self, elements: _Array) -> int:
        """The axis of the scales, if there are several."""
        axis = dict(self.op.attributes).get("axis", 1)
        assert isinstance(axis, int), "as ONNX has it"
        return axis % max(elements.ndim, 1)

    @property
    def _has_blocks(self) -> bool:
        return bool(dict(self.op.attributes).get("block_size"))


def dequantised(elements: _Array, scale: _Array, zero: _Array | None, axis: int) -> _Array:
    """The result of DequantizeLinear: (elements - zero) * scale, with vectors of these applied along an axis."""
    wide = elements.astype(np.int32)
    if zero is not None:
        wide = wide - _along(zero, axis, elements.ndim).astype(np.int32)
    made: _Array = (wide.astype(np.float32) * _along(scale, axis, elements.ndim).astype(np.float32)).astype(scale.dtype)
    return made


def _along(vector: _Array, axis: int, rank: int) -> _Array:
    """A vector shaped to broadcast along an axis of a tensor of that rank; a single element as a scalar."""
    dims = [-1 if place == axis % rank else 1 for place in range(rank)]
    return vector.reshape(dims) if vector.size > 1 else vector.reshape(())
