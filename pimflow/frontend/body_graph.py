"""The body of an If, Loop or Scan as a graph of opaque nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from pimflow.frontend.importing import import_node
from pimflow.ir import Array, Graph, Value
from pimflow.ir.names import FreshNames
from pimflow.onnxio.tensors import sparse_to_array, to_array

Captured = tuple[Value | None, Array | None]
"""The shape and type of a value that a body captures, and its elements if it is a constant."""


def body_graph(
    body: onnx.GraphProto,
    inputs: Sequence[Value | None],
    captured: Sequence[Captured],
    opset: Mapping[str, int],
) -> Graph:
    """The graph in an attribute of an operator, without shapes but those of its inputs.

    Args:
        body: the body in the operator's attribute; captured values are named "@0", "@1", ... It may be modified.
        inputs: shapes and types of its inputs; there may be fewer than it has, if the operator omits some.
        captured: the captured values.
        opset: versions of operators by domain.

    Returns:
        The graph; its own inputs come before captured values.
    """
    values = {info.name: Value(info.name, None, "") for info in body.input}
    for info, value in zip(body.input, inputs, strict=False):
        if value is not None:
            values[info.name] = Value(info.name, value.shape, value.dtype)
    constants = {tensor.name: to_array(tensor) for tensor in body.initializer}
    constants |= {sparse.values.name: sparse_to_array(sparse) for sparse in body.sparse_initializer}
    for place, (value, array) in enumerate(captured):
        name = f"@{place}"
        if array is not None:
            constants[name] = array
        elif value is not None:
            values[name] = Value(name, value.shape, value.dtype)
    values |= {name: Value(name, array.shape, array.dtype.name) for name, array in constants.items()}
    names = FreshNames(())
    nodes = tuple(import_node(proto, names.fresh(proto.name or proto.op_type)) for proto in body.node)
    return Graph(
        name=body.name,
        inputs=tuple(name for name in values if name not in constants),
        outputs=tuple(info.name for info in body.output),
        nodes=nodes,
        values=values | {name: Value(name, None, "") for node in nodes for name in node.outputs if name},
        constants=constants,
        opset=dict(opset),
    )
