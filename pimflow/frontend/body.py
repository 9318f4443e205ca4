"""Bodies of If, Loop and Scan, read like a model's own graph: with shapes inferred, and typed ops where exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from pimflow.frontend.body_graph import Captured, body_graph
from pimflow.frontend.convert import convert_graph
from pimflow.frontend.inference import declared_types, infer_graph
from pimflow.ir import Array, Graph, Value
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
    captured: Sequence[Captured],
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
    graph = body_graph(body, inputs, captured, opset)
    inferred = infer_graph(graph, declared_types(body), judge=False)
    return Body(convert_graph(inferred.graph, inferred.forms, inferred.known), inferred.known)
