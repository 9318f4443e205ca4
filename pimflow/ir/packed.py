"""Constants that a model keeps in few bits: what a DequantizeLinear makes of other constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pimflow.ir.ops.opaque import OnnxOp
from pimflow.records import dataclass

PER_AXIS_OPSET = 13
"""ONNX's DequantizeLinear takes a scale per channel from this opset on."""

_Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Packed:
    """How a model keeps a constant.

    Args:
        array: the elements, as the compiler reads them; what follows is of this array alone.
        op: makes them of `operands`, constants: elements, scale, and a zero point or None.
    """

    array: _Array
    op: OnnxOp
    operands: tuple[_Array | None, ...]

    @property
    def bytes(self) -> int:
        """What the operands take."""
        return sum(array.nbytes for array in self.operands if array is not None)

    def cut(self, part: _Array, axis: int, start: int, stop: int) -> Packed | None:
        """How `part`, the elements start .. stop-1 along an axis, is kept; None where that cannot be told."""
        elements, scale = self.operands[:2]
        if elements is None or scale is None or self._has_blocks:
            return None
        along = self._axis(elements) == axis
        window = (slice(None),) * axis + (slice(start, stop),)
        beside = [
            array[start:stop] if along and array is not None and array.size > 1 else array
            for array in self.operands[1:]
        ]
        return Packed(part, self.op, (np.ascontiguousarray(elements[window]), *beside))

    def scaled(self, axis: int, factors: Sequence[float] | _Array) -> Packed | None:
        """How the elements, times a factor for each place along an axis, are kept: by other scales, all positive.

        None where that cannot be told, or where elements that change their sign are no longer of their type.
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
        turned = least + (elements.astype(np.int32) - least) * _along(np.sign(wanted), axis, elements.ndim)
        whole = turned.astype(elements.dtype)
        if not (np.isfinite(step) & (step > 0)).all() or (whole.astype(np.int32) != turned).any():
            return None
        zeros = None if zero is None else np.broadcast_to(zero.reshape(-1), step.shape)
        op = replace(self.op, attributes=(("axis", axis),))
        return Packed(dequantised(whole, step, zeros, axis), op, (whole, step, zeros))

    def _axis(self, elements: _Array) -> int:
        """Along which scales are, where these are several."""
        axis = dict(self.op.attributes).get("axis", 1)
        assert isinstance(axis, int), "as ONNX has it"
        return axis % max(elements.ndim, 1)

    @property
    def _has_blocks(self) -> bool:
        return bool(dict(self.op.attributes).get("block_size"))


def dequantised(elements: _Array, scale: _Array, zero: _Array | None, axis: int) -> _Array:
    """What DequantizeLinear makes of them: (elements - zero) * scale, along an axis where these are vectors."""
    wide = elements.astype(np.int32)
    if zero is not None:
        wide = wide - _along(zero, axis, elements.ndim).astype(np.int32)
    made: _Array = (wide.astype(np.float32) * _along(scale, axis, elements.ndim).astype(np.float32)).astype(scale.dtype)
    return made


def _along(vector: _Array, axis: int, rank: int) -> _Array:
    """A vector along an axis of a tensor of that rank; one element without dimensions."""
    dims = [-1 if place == axis % rank else 1 for place in range(rank)]
    return vector.reshape(dims) if vector.size > 1 else vector.reshape(())
