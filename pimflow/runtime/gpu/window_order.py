"""Computes convolutions by value from tensors in column or window order, or directly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pimflow.ir import Array, Conv2d
from pimflow.targets.schema.gpu import Algorithm

Floats = npt.NDArray[np.floating[Any]]


def in_window_order(x: Array, op: Conv2d) -> Array:
    """The columns under each row of results, each once: element i of window row ho at column w.

    Args:
        x: [N, C, H, W].
        op: the convolution.

    Returns:
        [N, C, Ho, W, kh], with the padded width. If dilations are 1, window wo of a channel is the run of kh kw
        elements from (ho, wo stride) on.
    """
    padded = _padded(x, op)
    rows = _results(padded.shape[2], op, 0)
    taken = np.arange(rows)[:, None] * op.strides[0] + np.arange(op.kernel[0]) * op.dilations[0]
    return np.ascontiguousarray(np.moveaxis(padded[:, :, taken], 3, 4))


def in_columns(x: Array, op: Conv2d) -> Array:
    """All windows, each as a row of a matrix.

    Args:
        x: [N, C, H, W].
        op: the convolution.

    Returns:
        [N, Ho, Wo, C, kh, kw].
    """
    padded = _padded(x, op)
    rows, columns = (_results(size, op, axis) for axis, size in enumerate(padded.shape[2:]))
    y = np.arange(rows)[:, None] * op.strides[0] + np.arange(op.kernel[0]) * op.dilations[0]
    x_at = np.arange(columns)[:, None] * op.strides[1] + np.arange(op.kernel[1]) * op.dilations[1]
    windows = padded[:, :, y[:, None, :, None], x_at[None, :, None, :]]  # N, C, Ho, Wo, kh, kw
    return np.ascontiguousarray(np.moveaxis(windows, 1, 3))


def convolve(op: Conv2d, operands: Sequence[Array | None], algorithm: Algorithm) -> Array:
    """A convolution by an algorithm, image by image; sums are in single precision at least.

    Args:
        op: the convolution.
        operands: x [N, C, H, W], weights [O, C/groups, kh, kw], and optionally a bias [O].
        algorithm: "im2col", "im2win" or "direct".

    Returns:
        [N, O, Ho, Wo], in the type of x.
    """
    x, weights, *others = operands
    assert x is not None
    assert weights is not None
    wide = np.promote_types(x.dtype, np.float32)
    found: Floats = np.stack([_convolved(op, image[None].astype(wide), weights.astype(wide), algorithm) for image in x])
    if others and others[0] is not None:
        found += others[0].astype(wide)[:, None, None]
    result: Array = found.astype(x.dtype)
    return result


def _convolved(op: Conv2d, image: Array, weights: Array, algorithm: Algorithm) -> Array:
    """The result [O, Ho, Wo] for one image."""
    parts = weights.reshape(op.groups, -1, *weights.shape[1:])
    split = image.reshape(op.groups, 1, -1, *image.shape[2:])
    compute = {"im2col": _by_columns, "im2win": _by_windows, "direct": _directly}[algorithm]
    return np.concatenate([compute(op, channels, part) for channels, part in zip(split, parts, strict=True)])


def _by_columns(op: Conv2d, x: Array, weights: Array) -> Array:
    columns = in_columns(x, op)[0]
    rows, width = columns.shape[:2]
    results: Array = weights.reshape(len(weights), -1) @ columns.reshape(rows * width, -1).T
    return results.reshape(-1, rows, width)


def _by_windows(op: Conv2d, x: Array, weights: Array) -> Array:
    """The product of the weights in window order with windows, which overlap in the tensor: column j of a kernel is
    `dilation` x j columns after the beginning of the window."""
    windows = in_window_order(x, op)[0]  # C, Ho, W, kh
    width = _results(windows.shape[2], op, 1)
    steps = windows.strides
    shape = (*windows.shape[:2], width, op.kernel[1], op.kernel[0])
    strides = (*steps[:2], steps[2] * op.strides[1], steps[2] * op.dilations[1], steps[3])
    overlapping = np.lib.stride_tricks.as_strided(windows, shape, strides, writeable=False)  # C, Ho, Wo, kw, kh
    results: Array = np.tensordot(weights.transpose(0, 1, 3, 2), overlapping, axes=((1, 2, 3), (0, 3, 4)))
    return results


def _directly(op: Conv2d, x: Array, weights: Array) -> Array:
    """The sum over the elements of the kernel, each applied to all results."""
    padded = _padded(x, op)[0]
    rows, width = (_results(size, op, axis) for axis, size in enumerate(padded.shape[1:]))
    results: Floats = np.zeros((len(weights), rows, width), x.dtype)
    for i, j in np.ndindex(*op.kernel):
        top, left = i * op.dilations[0], j * op.dilations[1]
        seen = padded[:, top :: op.strides[0], left :: op.strides[1]][:, :rows, :width]
        results += np.tensordot(weights[:, :, i, j], seen, axes=(1, 0))
    return results


def _padded(x: Array, op: Conv2d) -> Array:
    top, left, bottom, right = op.pads
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))


def _results(padded: int, op: Conv2d, axis: int) -> int:
    """The number of windows along an axis."""
    return (padded - op.dilations[axis] * (op.kernel[axis] - 1) - 1) // op.strides[axis] + 1
