"""Placing rules of views: Slice, Split, Identity, Reshape, Transpose."""

from __future__ import annotations

from typing import cast

from pimflow.ir import MovementVerdict, Node, OnnxOp, Reshape, Slice, Transpose
from pimflow.ir.analysis.movement_walk import PLACING, Movement, Walk
from pimflow.ir.analysis.spaces import MIXED, Alias, Box, Space
from pimflow.ir.analysis.tensor_layout import (
    Index,
    axis_order,
    dense_strides,
    is_contiguous,
    permuted,
    reshaped_strides,
    same_strides,
    transpose_keeps_bytes,
)
from pimflow.ir.analysis.views import all_accept


@PLACING.register(Slice)
def _slice(walk: Walk, node: Node, op: Slice, prior: Movement | None) -> Movement:
    source, out = node.inputs[0], node.output
    shape = walk.graph.shape(out)
    if op.step != 1:
        if op.axis == axis_order(len(shape))[-1]:
            return walk.copy_verdict(
                node, f"takes one element in {op.step} of the innermost axis; kernels read dense runs"
            )
        _alias(walk, out, Alias(source, "step", op.axis, op.start, op.step, strides=_stepped(walk, source, op)))
        return Movement(True, 0, "offset and stride in the region of its input")
    space = walk.space(source)
    origin = list(space.places[source].lo)
    origin[op.axis] += op.start
    walk.join(out, space, Box.at(origin, shape))
    return Movement(True, 0, "offset in the region of its input")


def _stepped(walk: Walk, source: str, op: Slice) -> Index | None:
    alias = walk.space(source).alias
    if alias is None or alias.strides is None:
        return None
    return (*alias.strides[: op.axis], alias.strides[op.axis] * op.step, *alias.strides[op.axis + 1 :])


@PLACING.register(OnnxOp)
def _opaque(walk: Walk, node: Node, op: OnnxOp, prior: Movement | None) -> Movement:
    return _split(walk, node, op) if op.op_type == "Split" else _identity(walk, node)


def _split(walk: Walk, node: Node, op: OnnxOp) -> Movement:
    source = node.inputs[0]
    space = walk.space(source)
    rank = len(walk.graph.shape(source))
    axis = cast(int, dict(op.attributes).get("axis", 0)) % rank
    origin = list(space.places[source].lo)
    for out in node.outputs:
        shape = walk.graph.shape(out)
        walk.join(out, space, Box.at(origin, shape))
        origin[axis] += shape[axis]
    return Movement(True, 0, "offsets in the region of its input")


def _identity(walk: Walk, node: Node) -> Movement:
    space = walk.space(node.inputs[0])
    walk.join(node.output, space, space.places[node.inputs[0]])
    return Movement(True, 0, "the same bytes")


def _alias(walk: Walk, out: str, alias: Alias) -> None:
    shape = walk.graph.shape(out)
    box = Box.at((0,) * len(shape), shape)
    space = Space(box, walk.graph.value(out).dtype, MIXED, "shows another value's bytes", alias=alias)
    space.composed = walk.space(alias.base).composed
    walk.join(out, space, box)


@PLACING.register(Reshape)
def _reshape(walk: Walk, node: Node, op: Reshape, prior: Movement | None) -> Movement:
    source, out = node.inputs[0], node.output
    before, after = walk.graph.shape(source), walk.graph.shape(out)
    strides = _settled_strides(walk, source)
    if strides is None:
        return walk.copy_verdict(node, "the place of its input is not settled")
    return _place_view(walk, node, Alias(source, "reshape", strides=reshaped_strides(before, strides, after)))


@PLACING.register(Transpose)
def _transpose(walk: Walk, node: Node, op: Transpose, prior: Movement | None) -> Movement:
    source = node.inputs[0]
    strides = _settled_strides(walk, source)
    if strides is not None and _is_run(walk, source):
        return _place_view(walk, node, Alias(source, "transpose", perm=op.perm, strides=permuted(strides, op.perm)))
    if not transpose_keeps_bytes(walk.graph.shape(source), op.perm):
        return walk.copy_verdict(node, "reorders the elements")
    _alias(walk, node.output, Alias(source, "transpose", perm=op.perm))
    return Movement(True, 0, "the same bytes, axes renamed")


def _place_view(walk: Walk, node: Node, alias: Alias) -> Movement:
    """Makes a node's output a view of its input's bytes, if they are in order or all readers accept the strides."""
    out = node.output
    if alias.strides is None:
        return walk.copy_verdict(node, "reorders the elements")
    shape = walk.graph.shape(out)
    in_order = same_strides(shape, alias.strides, dense_strides(shape))
    if not in_order and not _readers_accept(walk, out, alias.strides, node.placement.movement):
        return walk.copy_verdict(node, "reorders the elements for readers that need them in order")
    _keep_dense(walk, node.inputs[0])
    _alias(walk, out, alias)
    return Movement(True, 0, "the same bytes" if in_order else "the same bytes, read with strides")


def _readers_accept(walk: Walk, name: str, strides: Index, verdict: MovementVerdict | None) -> bool:
    """Whether every reader accepts a value that is not in the layout's order.

    Products accept a transposed or pitched matrix (BLAS: trans and ld), copies accept anything. The readers of a value
    are known only in a whole graph; in regions the verdict in the node's placement decides.
    """
    if verdict is not None:
        return True
    if walk.region_of:
        return False
    return all_accept(walk.graph, name, strides)


def _settled_strides(walk: Walk, name: str) -> Index | None:
    """Element strides of a value that is one run of elements, a box in one, or a view of one; else None."""
    space = walk.space(name)
    if space.alias is not None:
        return space.alias.strides
    return dense_strides(_run_around(walk, name)) if space.strides is None else space.strides


def _run_around(walk: Walk, name: str) -> Index:
    """The shape of the run of elements that a value is or lies in."""
    space = walk.space(name)
    shape = space.places[name].shape
    return shape if is_contiguous(shape, space.hull.shape) else space.hull.shape


def _is_run(walk: Walk, name: str) -> bool:
    """Whether a value is one run of elements in its space, or a view of one."""
    space = walk.space(name)
    return space.alias is not None or is_contiguous(space.places[name].shape, space.hull.shape)


def _keep_dense(walk: Walk, name: str) -> None:
    """Requires the run of elements that a value is or lies in to stay dense."""
    space = walk.space(name)
    if space.alias is None:
        space.dense.add(_run_around(walk, name))
