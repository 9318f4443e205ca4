"""Inputs fixed to a known value: they become constants, and values that depend only on them are folded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from pimflow.data import Number
from pimflow.errors import OptionError, counted, did_you_mean
from pimflow.ir import Array, Value

FixedValues = Mapping[str, Number | tuple[Number, ...]]
"""By input, one number for all its elements, or all of them in row-major order."""


_KINDS = ("bool", "int", "uint", "float")
"""The supported element types, without their widths."""


def fixed_arrays(inputs: Sequence[Value], fixed: FixedValues) -> dict[str, Array]:
    """The fixed inputs as arrays, with the shapes and types that the model declares.

    Args:
        inputs: the model's inputs with static shapes.
        fixed: the values that they are fixed to.

    Raises:
        OptionError: there is no such input, it is not numeric, the count differs, or its type cannot hold a number.
    """
    named = {value.name: value for value in inputs}
    for name in fixed:
        if name not in named:
            near = did_you_mean(name, named) or f"its inputs are {', '.join(named)}"
            raise OptionError(f"the model has no input {name!r} that could be fixed", near)
    return {name: _array(named[name], given) for name, given in fixed.items()}


def _array(value: Value, given: Number | tuple[Number, ...]) -> Array:
    if value.dtype.rstrip("0123456789") not in _KINDS or value.shape is None:
        raise OptionError(f"input {value.name!r} is {value.dtype}: only bools, integers and floats can be fixed")
    numbers = given if isinstance(given, tuple) else (given,)
    if isinstance(given, tuple) and len(numbers) != value.elements:
        shape = "x".join(map(str, value.shape)) or "scalar"
        elements = counted(value.elements, "element")
        raise OptionError(
            f"input {value.name!r} ({shape}) is fixed to {counted(len(numbers), 'number')}, but has {elements}",
            "give all of them in row-major order, or one for all",
        )
    array = np.array([_checked(value, number) for number in numbers], value.dtype)
    filled: Array = np.broadcast_to(array, value.elements).reshape(value.shape).copy()
    return filled


def _checked(value: Value, number: Number) -> bool | int | float:
    """The number, if the input's type can hold it: floats may be rounded, but not to infinity."""
    number = float(number) if isinstance(number, str) else number
    dtype = np.dtype(value.dtype)
    if dtype.kind == "b":
        fits = number in (0, 1)
    elif dtype.kind == "f":
        fits = not math.isfinite(number) or abs(number) <= float(np.finfo(dtype).max)
    else:
        limits = np.iinfo(dtype)
        fits = limits.min <= number <= limits.max and number == int(number)
    if not fits:
        raise OptionError(
            f"input {value.name!r} is {value.dtype}, which cannot hold {number!r}", "fix it to another value"
        )
    return number if dtype.kind == "f" else int(number)
