"""Evaluation of values that depend only on a graph and on shapes, with numpy on views: an index of E x F takes E
elements.

Exporters expand an index of edges to the shape of the features that it scatters. Here, an array that repeats along an
axis is a view with stride 0, and arithmetic is done only once along such an axis. Results equal ONNX Runtime's, exactly
for integers and to the last bit or two for floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from pimflow.ir import Array, AttributeValue
from pimflow.ir.registry import Registry
from pimflow.onnxio.tensors import numpy_dtype, type_text

Arrays = Sequence["Array | None"]
Attributes = Mapping[str, AttributeValue]
Anything = npt.NDArray[Any]

STRUCTURE: Registry[str, Callable[[Arrays, Attributes], Array | None]] = Registry("structure evaluation")
"""Evaluation rules by op_type of ONNX's own domain; a rule returns None for a form that is left to ONNX Runtime."""


def compact(array: Array) -> Array:
    """The array with every repeated axis (stride 0) cut to one element; itself if there is none."""
    if 0 not in array.strides:
        return array
    return array[tuple(slice(0, 1) if step == 0 else slice(None) for step in array.strides)]


def held_bytes(array: Array) -> int:
    """Bytes of the distinct elements, as far as strides show."""
    return compact(array).nbytes


def memory_of(array: Array) -> tuple[object, ...]:
    """The memory that an array views, and how: equal for views of the same elements, as long as one is alive."""
    return array.__array_interface__["data"][0], array.shape, array.strides, array.dtype.str


def is_uniform(array: Array) -> bool:
    """Whether all elements are equal; False for an empty array."""
    small = compact(array)
    return bool(small.size) and bool((small == small.reshape(-1)[0]).all())


def as_matrix(array: Anything) -> Anything:
    """The array with all dims but the first merged into one; there may be no such dims, and no elements."""
    return array.reshape(len(array), math.prod(array.shape[1:]))


def along_rows(array: Array) -> Array | None:
    """The vector [rows] that the array repeats along all its other axes; None if there is none."""
    small = compact(array)
    if not array.ndim:
        return None
    if not array.size:
        return np.zeros(array.shape[:1], array.dtype)
    rows = as_matrix(small)
    if rows.shape[1] > 1 and not (rows == rows[:, :1]).all():
        return None
    return np.broadcast_to(rows[:, 0], array.shape[:1])


def evaluate_structure(op_type: str, arrays: Arrays, attributes: Attributes) -> Array | None:
    """A node's single result as a read-only array or view; None if there is no rule for the node, or it cannot run.

    Args:
        op_type: an op_type of ONNX's own domain.
        arrays: its inputs, None for absent ones.
        attributes: its attributes, by name.
    """
    rule = STRUCTURE.get(op_type)
    if rule is None:
        return None
    with np.errstate(all="ignore"):  # 0 ** -0.5 is an infinity that a later Where removes
        try:
            result = rule(arrays, attributes)
        except (ValueError, IndexError, ZeroDivisionError):  # ONNX Runtime decides, and reports why
            return None
    if result is None:
        return None
    view: Array = np.asarray(result).view()
    view.flags.writeable = False
    return view


def _first(arrays: Arrays) -> Anything:
    array = arrays[0]
    assert array is not None
    return array


def _pair(arrays: Arrays) -> tuple[Anything, Anything]:
    first, second = arrays[0], arrays[1]
    assert first is not None
    assert second is not None
    return first, second


def _integer(attributes: Attributes, name: str, default: int) -> int:
    value = attributes.get(name, default)
    return value if isinstance(value, int) else default


def elementwise(function: Callable[..., Anything], *arrays: Anything) -> Anything:
    """A function of the broadcast operands, computed only once along axes where all of them repeat."""
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    views = [np.broadcast_to(array, shape) for array in arrays]
    once = [all(view.strides[axis] == 0 for view in views) for axis in range(len(shape))]
    cut = tuple(slice(0, 1) if repeats else slice(None) for repeats in once)
    result = np.asarray(function(*(view[cut] for view in views)))
    return np.broadcast_to(result, shape)


def _register_elementwise() -> None:
    functions: dict[str, Callable[..., Anything]] = {
        "Add": np.add,
        "Sub": np.subtract,
        "Mul": np.multiply,
        "Equal": np.equal,
        "Greater": np.greater,
        "GreaterOrEqual": np.greater_equal,
        "Less": np.less,
        "LessOrEqual": np.less_equal,
        "And": np.logical_and,
        "Or": np.logical_or,
        "Xor": np.logical_xor,
        "Not": np.logical_not,
        "IsNaN": np.isnan,
        "Neg": np.negative,
        "Abs": np.abs,
        "Sqrt": np.sqrt,
        "Reciprocal": np.reciprocal,
        "Exp": np.exp,
        "Log": np.log,
        "Where": np.where,
        "Floor": np.floor,
        "Ceil": np.ceil,
    }

    def rule(function: Callable[..., Anything]) -> Callable[[Arrays, Attributes], Array | None]:
        def apply(arrays: Arrays, attributes: Attributes) -> Array | None:
            return elementwise(function, *(array for array in arrays if array is not None))

        return apply

    for name, function in functions.items():
        STRUCTURE.add(name, rule(function))


_register_elementwise()


def _register_extrema() -> None:
    """Registers Max and Min; with one operand (as one exporter writes them) the result is that operand."""

    def rule(function: Callable[..., Anything]) -> Callable[[Arrays, Attributes], Array | None]:
        def apply(arrays: Arrays, attributes: Attributes) -> Array | None:
            return reduce(partial(elementwise, function), [array for array in arrays if array is not None])

        return apply

    STRUCTURE.add("Max", rule(np.maximum))
    STRUCTURE.add("Min", rule(np.minimum))


_register_extrema()


@STRUCTURE.register("Clip")
def _clip(arrays: Arrays, attributes: Attributes) -> Array:
    result = _first(arrays)
    least, most = (arrays[index] if index < len(arrays) else None for index in (1, 2))
    result = result if least is None else elementwise(np.maximum, result, least)
    return result if most is None else elementwise(np.minimum, result, most)


@STRUCTURE.register("Div")
def _div(arrays: Arrays, attributes: Attributes) -> Array | None:
    """Integer division, which ONNX truncates, is left to ONNX Runtime."""
    left, right = _pair(arrays)
    return elementwise(np.divide, left, right) if left.dtype.kind == "f" else None


@STRUCTURE.register("Pow")
def _pow(arrays: Arrays, attributes: Attributes) -> Array | None:
    base, exponent = _pair(arrays)
    if base.dtype.kind != "f":
        return None
    return elementwise(lambda b, e: np.power(b, e.astype(b.dtype)), base, exponent)


@STRUCTURE.register("IsInf")
def _is_inf(arrays: Arrays, attributes: Attributes) -> Array | None:
    both = _integer(attributes, "detect_negative", 1) and _integer(attributes, "detect_positive", 1)
    return elementwise(np.isinf, _first(arrays)) if both else None


@STRUCTURE.register("Cast")
def _cast(arrays: Arrays, attributes: Attributes) -> Array | None:
    import onnx

    name = type_text(onnx.helper.make_tensor_type_proto(_integer(attributes, "to", 0), None))
    if _first(arrays).dtype.kind not in "iufb" or name in ("object", ""):
        return None
    return elementwise(lambda array: array.astype(numpy_dtype(name)), _first(arrays))


@STRUCTURE.register("Identity")
def _identity(arrays: Arrays, attributes: Attributes) -> Array:
    return _first(arrays)


@STRUCTURE.register("Expand")
def _expand(arrays: Arrays, attributes: Attributes) -> Array:
    array, shape = _pair(arrays)
    return np.broadcast_to(array, np.broadcast_shapes(array.shape, tuple(int(dim) for dim in shape)))


@STRUCTURE.register("Reshape")
def _reshape(arrays: Arrays, attributes: Attributes) -> Array | None:
    array, dims = _pair(arrays)
    keep_zero = _integer(attributes, "allowzero", 0)
    shape = [int(dim) if dim or keep_zero else array.shape[axis] for axis, dim in enumerate(dims)]
    if -1 in shape:
        others = int(np.prod([dim for dim in shape if dim != -1]))
        shape[shape.index(-1)] = array.size // others if others else 0
    return _reshaped(array, tuple(shape))


def _reshaped(array: Array, shape: tuple[int, ...]) -> Array:
    """The array in another shape: a view if only dims of 1 are added or removed."""
    kept = [axis for axis, size in enumerate(array.shape) if size != 1]
    if tuple(array.shape[axis] for axis in kept) != tuple(size for size in shape if size != 1):
        return array.reshape(shape)
    sources = iter(kept)
    strides = [0 if size == 1 else array.strides[next(sources)] for size in shape]
    if array.ndim == 0 or array.size == 0:
        return array.reshape(shape)
    return np.lib.stride_tricks.as_strided(array, shape, strides, writeable=False)


@STRUCTURE.register("Squeeze")
def _squeeze(arrays: Arrays, attributes: Attributes) -> Array:
    array, axes = _first(arrays), arrays[1] if len(arrays) > 1 else None
    given = range(array.ndim) if axes is None else [int(axis) % array.ndim for axis in axes]
    dropped = {axis for axis in given if array.shape[axis] == 1}
    return _reshaped(array, tuple(size for axis, size in enumerate(array.shape) if axis not in dropped))


@STRUCTURE.register("Unsqueeze")
def _unsqueeze(arrays: Arrays, attributes: Attributes) -> Array:
    array, axes = _pair(arrays)
    rank = array.ndim + len(axes.reshape(-1))
    added, sizes = {int(axis) % rank for axis in axes.reshape(-1)}, iter(array.shape)
    return _reshaped(array, tuple(1 if axis in added else next(sizes) for axis in range(rank)))


@STRUCTURE.register("Transpose")
def _transpose(arrays: Arrays, attributes: Attributes) -> Array:
    array, perm = _first(arrays), attributes.get("perm")
    axes = [int(axis) for axis in perm if isinstance(axis, int)] if isinstance(perm, tuple) else None
    transposed: Array = array.transpose(axes)
    return transposed


@STRUCTURE.register("Concat")
def _concat(arrays: Arrays, attributes: Attributes) -> Array:
    parts = [array for array in arrays if array is not None]
    return np.concatenate(parts, axis=_integer(attributes, "axis", 0))


@STRUCTURE.register("Tile")
def _tile(arrays: Arrays, attributes: Attributes) -> Array:
    """A view if every axis either is not repeated, has size 1, or has stride 0; else a copy."""
    array, repeats = _pair(arrays)
    times = [int(count) for count in repeats]
    axes = zip(times, array.shape, array.strides, strict=True)
    if all(count == 1 or size == 1 or not step for count, size, step in axes):
        cut = tuple(slice(0, 1) if count != 1 else slice(None) for count in times)
        return np.broadcast_to(array[cut], [count * size for count, size in zip(times, array.shape, strict=True)])
    return np.tile(array, times)


@STRUCTURE.register("Range")
def _range(arrays: Arrays, attributes: Attributes) -> Array | None:
    start, limit = _pair(arrays)
    step = arrays[2]
    assert step is not None
    if start.dtype.kind != "i":
        return None
    first, last, by = (int(np.asarray(item).reshape(())) for item in (start, limit, step))
    return np.arange(first, last, by, dtype=start.dtype)


@STRUCTURE.register("NonZero")
def _non_zero(arrays: Arrays, attributes: Attributes) -> Array:
    array = _first(arrays)
    return np.flatnonzero(array)[np.newaxis] if array.ndim == 1 else np.stack(np.nonzero(array))


@STRUCTURE.register("Slice")
def _slice(arrays: Arrays, attributes: Attributes) -> Array | None:
    if len(arrays) < 3:  # before opset 10
        return None
    array, starts, ends, axes, steps = (arrays[index] if index < len(arrays) else None for index in range(5))
    assert array is not None
    assert starts is not None
    assert ends is not None
    chosen = range(len(starts)) if axes is None else [int(axis) % array.ndim for axis in axes]
    by = np.ones(len(starts), np.int64) if steps is None else steps
    cuts = [slice(None)] * array.ndim
    for axis, first, last, step in zip(chosen, starts.tolist(), ends.tolist(), by.tolist(), strict=True):
        cuts[axis] = slice(first, last, step)
    return array[tuple(cuts)]


@STRUCTURE.register("Gather")
def _gather(arrays: Arrays, attributes: Attributes) -> Array:
    array, index = _pair(arrays)
    axis = _integer(attributes, "axis", 0) % max(array.ndim, 1)
    if index.size == 1:  # a view of one row
        picked = array[(slice(None),) * axis + (int(index.reshape(())),)]
        shape = (*array.shape[:axis], *index.shape, *array.shape[axis + 1 :])
        return _reshaped(picked, shape)
    if not array.strides[axis] and array.shape[axis]:
        return _repeated_rows(array, index, axis)
    once = tuple(slice(0, 1) if not step else slice(None) for step in array.strides)
    picked = np.take(array[once], index, axis=axis)
    return np.broadcast_to(picked, (*array.shape[:axis], *index.shape, *array.shape[axis + 1 :]))


def _repeated_rows(array: Anything, index: Anything, axis: int) -> Array:
    """Rows gathered from an array whose rows are all the same."""
    row = array[(slice(None),) * axis + (0,)]
    expanded = row.reshape((*row.shape[:axis], *(1 for _ in index.shape), *row.shape[axis:]))
    return np.broadcast_to(expanded, (*array.shape[:axis], *index.shape, *array.shape[axis + 1 :]))


@STRUCTURE.register("GatherElements")
def _gather_elements(arrays: Arrays, attributes: Attributes) -> Array:
    array, index = _pair(arrays)
    axis = _integer(attributes, "axis", 0) % array.ndim
    read = array[tuple(slice(None) if other == axis else slice(0, size) for other, size in enumerate(index.shape))]
    return np.take_along_axis(read, np.where(index < 0, index + array.shape[axis], index), axis=axis)


@STRUCTURE.register("GatherND")
def _gather_nd(arrays: Arrays, attributes: Attributes) -> Array | None:
    array, index = _pair(arrays)
    if _integer(attributes, "batch_dims", 0):
        return None
    picked: Array = array[tuple(np.moveaxis(index, -1, 0))]
    return picked


@STRUCTURE.register("ScatterND")
def _scatter_nd(arrays: Arrays, attributes: Attributes) -> Array | None:
    data, index = _pair(arrays)
    updates = arrays[2]
    if attributes.get("reduction", "none") != "none":
        return None
    out = np.array(data)
    out[tuple(np.moveaxis(index, -1, 0))] = updates
    return out


_SCATTERS: Mapping[AttributeValue, Any] = {"add": np.add, "max": np.maximum, "min": np.minimum, "mul": np.multiply}


@STRUCTURE.register("ScatterElements")
def _scatter_elements(arrays: Arrays, attributes: Attributes) -> Array | None:
    """Computed only once along axes where base, index and updates all repeat."""
    data, index = _pair(arrays)
    updates, reduction = arrays[2], attributes.get("reduction", "none")
    assert updates is not None
    axis = _integer(attributes, "axis", 0) % max(data.ndim, 1)
    if not index.size:
        return data
    repeats = [
        other != axis
        and data.shape[other] == index.shape[other]
        and not any(a.strides[other] for a in (data, index, updates))
        for other in range(data.ndim)
    ]
    cut = tuple(slice(0, 1) if once else slice(None) for once in repeats)
    out, where = np.array(data[cut]), index[cut]
    if int(where.min()) < 0:
        where = np.where(where < 0, where + data.shape[axis], where)
    rows = along_rows(where) if not axis and out.shape[1:] == where.shape[1:] else None
    if rows is not None and reduction in ("add", "max", "min") and out.dtype.kind == "f":
        _scatter_rows(as_matrix(out), rows, as_matrix(updates[cut]), reduction)
        return np.broadcast_to(out, data.shape)
    grid = np.ogrid[tuple(slice(0, size) for size in where.shape)]
    target = (*grid[:axis], where, *grid[axis + 1 :])
    if reduction == "none":
        out[target] = updates[cut]
    elif reduction in _SCATTERS:
        _SCATTERS[reduction].at(out, target, updates[cut])
    else:
        return None
    return np.broadcast_to(out, data.shape)


def _scatter_rows(out: Anything, rows: Anything, updates: Anything, reduction: AttributeValue) -> None:
    """Scatters rows of updates into rows of `out`, in place: linear, and fast for sums and for uniform updates."""
    if reduction == "add" and is_uniform(updates):
        out += np.bincount(rows, minlength=len(out))[:, np.newaxis] * updates.reshape(-1)[0]
    elif reduction == "add":
        for column in range(out.shape[1]):
            out[:, column] += np.bincount(rows, updates[:, column], len(out)).astype(out.dtype)
    elif is_uniform(updates):
        touched = np.bincount(rows, minlength=len(out)) > 0
        out[touched] = _SCATTERS[reduction](out[touched], updates.reshape(-1)[0])
    else:
        _SCATTERS[reduction].at(out, rows, updates)


@STRUCTURE.register("OneHot")
def _one_hot(arrays: Arrays, attributes: Attributes) -> Array | None:
    index, depth = _pair(arrays)
    values = arrays[2]
    assert values is not None
    if _integer(attributes, "axis", -1) not in (-1, index.ndim):
        return None
    classes = np.arange(int(np.asarray(depth).reshape(())))
    wrapped = np.where(index < 0, index + len(classes), index)
    encoded: Array = np.where(wrapped[..., None] == classes, values[1], values[0])
    return encoded
