"""Nodes with explicit attributes instead of defaults, or of types and sizes implied by their operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pimflow.ir import Array, Node, OnnxOp, Value
from pimflow.ir.ops.window import pool_pads
from pimflow.onnxio.tensors import dtype_code


def canonicalised(node: Node, values: Mapping[str, Value], known: Mapping[str, Array], opset: int) -> Node:
    """The node in a form that ONNX's inference and ONNX Runtime interpret alike; itself if it already is.

    Args:
        node: a node with an opaque operator.
        values: types of the values that it reads.
        known: arrays of the known values that it reads.
        opset: opset version of ONNX's own domain.
    """
    op = node.op
    if not isinstance(op, OnnxOp) or op.domain:
        return node
    if op.op_type == "CastLike":
        return _without_like(node, op, values)
    if op.op_type == "STFT":
        return _one_sided(node, op)
    if op.op_type in ("AveragePool", "LpPool", "MaxPool"):
        return _with_pads(node, op, values[node.inputs[0]].shape)
    if op.op_type == "Reshape" and opset >= 14:
        return _of_size_zero(node, op, values[node.inputs[0]].shape, known.get(node.inputs[1]))
    return node


def chosen_places(node: Node, known: Mapping[str, Array]) -> Array | None:
    """The places that a Compress with a known condition keeps; None for other nodes."""
    op = node.op
    if not isinstance(op, OnnxOp) or (op.domain, op.op_type) != ("", "Compress"):
        return None
    condition = known.get(node.inputs[1])
    return None if condition is None else np.flatnonzero(condition)


def _without_like(node: Node, op: OnnxOp, values: Mapping[str, Value]) -> Node:
    """A CastLike as the equivalent Cast, so that it does not depend on a value only for its type."""
    code = dtype_code(values[node.inputs[1]].dtype)
    attributes = tuple(sorted({**dict(op.attributes), "to": code}.items()))
    return replace(node, op=OnnxOp("Cast", "", attributes), inputs=node.inputs[:1]) if code else node


def _one_sided(node: Node, op: OnnxOp) -> Node:
    """An STFT with an explicit `onesided`: ONNX's inference assumes the opposite of the default."""
    return node if "onesided" in dict(op.attributes) else _with_attribute(node, op, "onesided")


def _with_pads(node: Node, op: OnnxOp, shape: tuple[int, ...] | None) -> Node:
    """A pool with explicit pads instead of "SAME_UPPER" or "SAME_LOWER": ONNX's inference counts dilations in, ONNX
    Runtime's kernels do not."""
    given: dict[str, Any] = dict(op.attributes)
    mode, kernel = given.pop("auto_pad", ""), given.get("kernel_shape", ())
    if mode not in ("SAME_UPPER", "SAME_LOWER") or shape is None or len(shape) != 2 + len(kernel):
        return node
    ones = (1,) * len(kernel)
    strides, dilations = given.get("strides", ones), given.get("dilations", ones)
    if not len(strides) == len(dilations) == len(kernel) or min(kernel + strides + dilations) < 1:
        return node
    pads = pool_pads(mode, shape[2:], kernel, strides, dilations, given.get("ceil_mode", 0) != 0)
    if pads is None:
        return node
    return replace(node, op=OnnxOp(op.op_type, "", tuple(sorted({**given, "pads": pads}.items()))))


def _of_size_zero(node: Node, op: OnnxOp, shape: tuple[int, ...] | None, target: Array | None) -> Node:
    """A Reshape of no elements to [1, 0], for example, of a relation without edges: 0 is then a size, not a copied dim.

    ONNX Runtime's kernel refuses it, unless its fusion of Shape, Concat and Reshape has turned it into [1, -1] before.
    """
    if shape is None or target is None or 0 not in shape:
        return node
    sizes: list[int] = target.reshape(-1).tolist()
    if -1 in sizes:
        return node
    copied = [size or shape[axis] for axis, size in enumerate(sizes[: len(shape)])]
    fits = 0 in copied and 0 not in sizes[len(shape) :]
    return node if fits else _with_attribute(node, op, "allowzero")


def _with_attribute(node: Node, op: OnnxOp, name: str) -> Node:
    """The node with an attribute set to 1."""
    return replace(node, op=OnnxOp(op.op_type, "", tuple(sorted({**dict(op.attributes), name: 1}.items()))))
