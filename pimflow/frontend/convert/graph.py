"""Opaque nodes -> typed ops. Nodes without an exact typed form stay opaque."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pimflow.errors import GraphError
from pimflow.frontend.convert.site import CONVERSIONS, Site, Typed
from pimflow.ir import Array, Graph, Node, OnnxOp, Refusal, Value
from pimflow.ir.names import FreshNames
from pimflow.ir.shapes import TensorType, infer
from pimflow.records import NamedTuple


class TypedForm(NamedTuple):
    """A node's exact typed form, and the type of its result."""

    typed: Typed
    result: TensorType


def convert_graph(graph: Graph, forms: Mapping[str, TypedForm], known: Mapping[str, Array]) -> Graph:
    """The graph with every node in its typed form, if it has one with exactly the shape and type known for the node.

    Args:
        graph: a graph of opaque nodes, with all shapes that can be known.
        forms: typed forms that are already known, by node name.
        known: arrays of the values that do not depend on the graph's inputs, by name.
    """
    nodes: list[Node] = []
    chains = _Chains(graph)
    for node in (_without_unused(node, graph) for node in graph.nodes):
        form = forms.get(node.name) or typed_form(node, graph.values, known, graph.opset.get("", 0))
        if not isinstance(form, TypedForm) or not _agrees(form.result, graph.value(node.output)):
            nodes.append(node)
        else:
            nodes.extend(chains.write(node, form.typed))
    used = {*graph.inputs, *graph.outputs}
    used.update(name for node in nodes for name in (*node.inputs, *node.outputs) if name)
    return graph.replace(
        nodes=nodes,
        values={name: value for name, value in chains.values.items() if name in used},
        constants={name: array for name, array in chains.constants.items() if name in used},
    )


def _agrees(result: TensorType, known: Value) -> bool:
    return (result.shape, result.dtype) == (known.shape, known.dtype)


def typed_form(
    node: Node, values: Mapping[str, Value], constants: Mapping[str, Array], opset: int
) -> TypedForm | Refusal | None:
    """A node's exact typed form and the type of its result.

    None if the node has to stay opaque; a refusal if its operands and attributes do not fit each other.

    Args:
        node: an opaque node.
        values: the values that it reads, and its results as far as they are known.
        constants: arrays of the values that are known.
        opset: version of ONNX's own operators.
    """
    op = node.op
    if not isinstance(op, OnnxOp) or len(node.outputs) != 1:
        return None
    rule = CONVERSIONS.get((op.domain, op.op_type))
    static = all(values[name].shape is not None and values[name].dtype for name in node.inputs if name)
    if rule is None or not static or not node.inputs or not node.inputs[0]:
        return None
    try:
        found = rule(Site(node, values, constants, opset))
        if found is None:
            return None
        typed = found if isinstance(found, Typed) else Typed((found,), node.inputs)
        return TypedForm(typed, _result(typed, values))
    except GraphError as error:
        return Refusal(str(error))


def _result(typed: Typed, values: Mapping[str, Value]) -> TensorType:
    """The type of the result of a chain of ops.

    Raises:
        GraphError: its inputs do not fit.
    """
    inputs = [_value(operand, values) for operand in typed.inputs]
    if isinstance(typed.ops[-1], OnnxOp):  # Identity
        (value,) = inputs
        if value is None or value.shape is None:
            raise GraphError("Identity has no input")
        return TensorType(value.shape, value.dtype)
    for place, op in enumerate(typed.ops, start=1):
        (result,) = infer(op, inputs)
        extra = [_value(operand, values) for operand in typed.extra_operands.get(place, ())]
        inputs = [Value("", result.shape, result.dtype), *extra]
    return result


def _value(operand: str | Array, values: Mapping[str, Value]) -> Value | None:
    if isinstance(operand, str):
        return values[operand] if operand else None
    return Value("", operand.shape, operand.dtype.name)


def _without_unused(node: Node, graph: Graph) -> Node:
    """The node without an unused second output (the mask of Dropout, the indices of MaxPool)."""
    if len(node.outputs) != 2 or node.kind not in ("Dropout", "MaxPool"):
        return node
    unused = not graph.users(node.outputs[1]) and node.outputs[1] not in graph.outputs
    return replace(node, outputs=node.outputs[:1]) if unused else node


class _Chains:
    """Writes chains of ops in place of nodes, and collects values and constants, including those that chains add."""

    def __init__(self, graph: Graph) -> None:
        self.values = dict(graph.values)
        self.constants = dict(graph.constants)
        self._value_names = FreshNames(graph.values)
        self._node_names = FreshNames(graph.node_by_name)

    def write(self, node: Node, typed: Typed) -> list[Node]:
        """One node for each op; the last keeps the original's name and output."""
        chain: list[Node] = []
        inputs = tuple(self._name(node, operand) for operand in typed.inputs)
        for step, op in enumerate(typed.ops[:-1]):
            (result,) = infer(op, [self.values[name] if name else None for name in inputs])
            output = self._fresh(f"{node.output}_{step}", Value("", result.shape, result.dtype))
            name = self._node_names.fresh(f"{node.name}_{step}")
            chain.append(Node(op, inputs, (output,), name, node.placement, node.tags))
            inputs = (output, *(self._name(node, operand) for operand in typed.extra_operands.get(step + 1, ())))
        return [*chain, Node(typed.ops[-1], inputs, node.outputs, node.name, node.placement, node.tags)]

    def _name(self, node: Node, operand: str | Array) -> str:
        if isinstance(operand, str):
            return operand
        name = self._fresh(f"{node.output}_constant", Value("", operand.shape, operand.dtype.name))
        self.constants[name] = operand
        return name

    def _fresh(self, base: str, value: Value) -> str:
        name = self._value_names.fresh(base)
        self.values[name] = replace(value, name=name)
        return name
