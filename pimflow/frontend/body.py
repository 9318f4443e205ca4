"""Bodies of If, Loop and Scan, read like a model's own graph: with shapes inferred, and typed ops where exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from pimflow.frontend.convert import convert_graph
from pimflow.frontend.importing import import_node
from pimflow.frontend.inference import declared_types, infer_graph
from pimflow.ir import Array, Graph, Value
from pimflow.ir.names import FreshNames
from pimflow.onnxio.tensors import sparse_to_array, to_array
from pimflow.records import dataclass


@dataclass(frozen=True)
class Body:
    """A body converted to a graph.

    Args:
        graph: its nodes, with the operands of the first iteration; its own inputs come before captured values.
        known: arrays of values that do not depend on its inputs, by name.
    """

    graph: Graph
    known: Mapping[str, Array]


def read_body(
    body: onnx.GraphProto,
    inputs: Sequence[Value | None],
    captured: Sequence[tuple[Value | None, Array | None]],
    opset: Mapping[str, int],
) -> Body:
    """The graph in an attribute of an operator.

    Args:
        body: the body in the operator's attribute; captured values are named "@0", "@1", ... It may be modified.
        inputs: shapes and types of its inputs; there may be fewer than it has, if the operator omits some.
        captured: shapes and types of the captured values, with the elements of constants.
        opset: versions of operators by domain.

    Raises:
        ModelError: ONNX Runtime refuses a node of constants.
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
    graph = Graph(
        name=body.name,
        inputs=tuple(name for name in values if name not in constants),
        outputs=tuple(info.name for info in body.output),
        nodes=nodes,
        values=values | {name: Value(name, None, "") for node in nodes for name in node.outputs if name},
        constants=constants,
        opset=dict(opset),
    )
    inferred = infer_graph(graph, declared_types(body), judge=False)
    return Body(convert_graph(inferred.graph, inferred.forms, inferred.known), inferred.known)
