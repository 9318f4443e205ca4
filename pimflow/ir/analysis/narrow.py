"""Products of 8-bit integers: their operands are dequantised, or are weights that hold integers themselves.

A sum of products of x = (q - z) s and w = (p - y) t is s t times the sum of (q - z)(p - y). A unit that multiplies
bytes computes the sum of q (p - y), in 32 bits; z times the sum of a column of weights is a constant, which is
subtracted. So q may have any zero point, weights minus their zero points must fit into 8 bits, and weights have at most
one scale per column.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from pimflow.ir.expansion import expand, is_expandable
from pimflow.ir.graph import Array, Graph, Node
from pimflow.ir.ops.base import Op
from pimflow.ir.ops.contraction import Contraction
from pimflow.ir.ops.movement import Pad, Reshape, Slice, Transpose
from pimflow.ir.ops.opaque import OnnxOp
from pimflow.ir.placement import NarrowOperands
from pimflow.ir.refusal import Refusal

BYTE = "int8"
_BYTES = ("int8", "uint8")
_LARGEST_DEPTH = (1 << 31) // (255 * 128)
"""The longest dot product whose sum fits into 32 bits for any bytes."""


def narrow_operands(graph: Graph, node: Node) -> NarrowOperands | Refusal:
    """The 8-bit operands of a product, or of the product in an operator; or why it does not multiply bytes."""
    scope: tuple[Graph, ...] = (graph,)
    if is_expandable(node.op):
        expansion = expand(graph, node)
        if isinstance(expansion, Refusal):
            return expansion
        scope, node = (expansion.graph, graph), expansion.graph.node(expansion.product)
    if not isinstance(node.op, Contraction):
        return Refusal("it is not a matrix product")
    step = _source_step(scope, node.inputs[0])
    if isinstance(step, Refusal):
        return step
    owner = next((part for part in scope if part.is_constant(node.inputs[1])), graph)
    steps = weight_steps(owner, node.inputs[1], node.op.channel_axis)
    if isinstance(steps, Refusal):
        return steps
    shape = owner.shape(node.inputs[1])
    depth = math.prod(shape) // shape[node.op.channel_axis]
    if depth > _LARGEST_DEPTH:
        return Refusal("its sums have more terms than 32 bits hold", depth, _LARGEST_DEPTH, "products of bytes")
    return NarrowOperands(BYTE, step)


def weight_steps(graph: Graph, name: str, channel_axis: int) -> npt.NDArray[np.float32] | Refusal:
    """The scales of 8-bit integer weights: one for all [], or one per column [columns]; or why there are none.

    Args:
        graph: the graph that holds the weights.
        name: name of the weights.
        channel_axis: the axis of the weights that holds the product's columns.
    """
    array = graph.constants.get(name)
    if array is None:
        return Refusal("its right-hand side is computed")
    packed = graph.packed_form(name)
    if packed is None:
        return np.ones((), np.float32) if _are_bytes(array) else Refusal("its weights are not kept in 8 bits")
    elements, scale, zero = (*packed.operands, None)[:3]
    attributes = dict(packed.op.attributes)
    if elements is None or scale is None or elements.dtype.name not in _BYTES or attributes.get("block_size"):
        return Refusal("its weights are not kept in 8 bits with a scale per column")
    axis = attributes.get("axis", 1)
    assert isinstance(axis, int)
    if scale.size > 1 and axis % elements.ndim != channel_axis % elements.ndim:
        return Refusal("its weights have scales along the depth of the product")
    along = [-1 if place == axis % elements.ndim else 1 for place in range(elements.ndim)]
    least = np.zeros((), np.int32) if zero is None else zero.astype(np.int32).reshape(along if zero.size > 1 else [])
    if not _are_bytes(np.subtract(elements.astype(np.int32), least)):
        return Refusal("its weights minus their zero points take more than 8 bits")
    return scale.astype(np.float32).reshape(-1 if scale.size > 1 else ())


def _are_bytes(array: Array) -> bool:
    """Whether all elements are signed 8-bit integers."""
    if not array.size or array.min() < -128 or array.max() > 127:
        return False
    return array.dtype.kind in "iu" or bool((array == np.rint(array)).all())


def _source_step(scope: tuple[Graph, ...], name: str) -> float | Refusal:
    """The scale of a left-hand side that was dequantised and then only moved."""
    owner, producer = _producer(scope, name)
    while producer is not None and _only_moves(producer.op):
        owner, producer = _producer(scope, producer.inputs[0])
    if producer is None or not isinstance(producer.op, OnnxOp) or producer.op.op_type != "DequantizeLinear":
        return Refusal("its left-hand side is not dequantised")
    scale = next((part.constants[producer.inputs[1]] for part in scope if part.is_constant(producer.inputs[1])), None)
    if owner.value(producer.inputs[0]).dtype not in _BYTES or scale is None or scale.size != 1:
        return Refusal("its left-hand side does not have 8 bits and one scale that is known before the run")
    step = float(scale.reshape(-1)[0])
    return step if 0 < step < math.inf else Refusal("the scale of its left-hand side is not a positive number")


def _producer(scope: tuple[Graph, ...], name: str) -> tuple[Graph, Node | None]:
    """The graph and the node that make a value."""
    found = ((graph, graph.producer(name)) for graph in scope)
    return next(((graph, producer) for graph, producer in found if producer is not None), (scope[0], None))


def _only_moves(op: Op) -> bool:
    if isinstance(op, Pad):
        return op.value == 0
    return isinstance(op, (Slice, Reshape, Transpose)) or (isinstance(op, OnnxOp) and op.op_type == "Gather")
