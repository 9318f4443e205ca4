"""Imports a checked `ModelProto` as a graph of opaque nodes: names, constants and subgraphs, without inference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

from pimflow.errors import ModelError
from pimflow.frontend.binding import ShapeBindings, bind_inputs
from pimflow.frontend.fixing import fixed_arrays
from pimflow.frontend.functions import inlined
from pimflow.frontend.reading import Source, is_external, load_tensor
from pimflow.frontend.screening import screen_inlined
from pimflow.ir import UNPLACED, Array, Graph, Node, OnnxOp, Placement, Value, topological_order
from pimflow.ir.names import FreshNames
from pimflow.onnxio.captures import CAPTURES, abstract_captures
from pimflow.onnxio.export import PLACEHOLDER, set_external, stripped
from pimflow.onnxio.placement import placement_of
from pimflow.onnxio.tensors import attribute_value, sparse_to_array, to_tensor, type_text

DEFAULT_OPSET = 17
"""The opset of models that use no operator of ONNX's own domain, and so declare no version of it."""


def import_graph(source: Source, shapes: ShapeBindings, annotations: bool) -> Graph:
    """The model's graph, with bound input shapes; every node is an `OnnxOp`, and shapes of other values are unknown.

    Fixed inputs are constants of the graph.

    Args:
        source: the model.
        shapes: sizes of inputs and symbolic dims.
        annotations: whether to read back placements and tags that pimflow wrote into the model.

    Raises:
        ModelError: a tensor is damaged, or an attribute that a function is called with is out of range.
        ShapeError: dims are unbound, or a shape does not fit.
        OptionError: an input cannot be fixed to the given value.
    """
    constants = {tensor.name: source.array(tensor) for tensor in source.proto.graph.initializer}
    for sparse in source.proto.graph.sparse_initializer:
        constants[sparse.values.name] = sparse_to_array(sparse)
    proto = _inlined(source, constants)
    inputs = [info for info in proto.graph.input if info.name not in constants]
    bound = bind_inputs(inputs, shapes)
    fixed = fixed_arrays(bound, source.fixed)
    constants |= fixed
    nodes = topological_order(tuple(_nodes(proto.graph.node, annotations)))
    values = {value.name: value for value in bound}
    values |= {name: Value(name, array.shape, array.dtype.name) for name, array in constants.items()}
    values |= {name: Value(name, None, "") for node in nodes for name in node.outputs if name}
    for node in nodes:
        unmade = next((name for name in node.inputs if name and name not in values), None)
        if unmade is not None:
            raise ModelError(f"node {node.name!r} ({node.kind}) reads {unmade!r}, but no node makes it")
    for info in proto.graph.output:
        if info.name not in values:
            raise ModelError(f"model {source.name!r}: no node makes its output {info.name!r}")
        if not values[info.name].dtype:
            values[info.name] = Value(info.name, None, type_text(info.type))
    return Graph(
        name=source.name,
        inputs=tuple(info.name for info in inputs if info.name not in fixed),
        outputs=tuple(info.name for info in proto.graph.output),
        nodes=nodes,
        values=values,
        constants=constants,
        opset=_opsets(proto),
    )


def _opsets(proto: onnx.ModelProto) -> dict[str, int]:
    opsets = {"" if opset.domain == "ai.onnx" else opset.domain: opset.version for opset in proto.opset_import}
    opsets.setdefault("", DEFAULT_OPSET)
    return opsets


def _inlined(source: Source, constants: dict[str, Array]) -> onnx.ModelProto:
    """A copy of the model without its weights, with local functions inlined and all attribute data inside."""
    light = onnx.ModelProto()
    light.ir_version = source.proto.ir_version
    light.opset_import.extend(source.proto.opset_import)
    light.functions.extend(source.proto.functions)
    light.graph.name = source.proto.graph.name
    light.graph.input.extend(source.proto.graph.input)
    light.graph.output.extend(source.proto.graph.output)
    light.graph.node.extend(source.proto.graph.node)
    for node in (*light.graph.node, *(node for function in light.functions for node in function.node)):
        _internalise(node, source)
    if not light.functions:
        return light
    for name, array in constants.items():
        tensor = light.graph.initializer.add(name=name, data_type=onnx.TensorProto.UINT8, dims=[array.nbytes])
        tensor.data_location = onnx.TensorProto.EXTERNAL
        set_external(tensor, PLACEHOLDER, 0, array.nbytes)
    proto = inlined(light)
    screen_inlined(proto.graph.node)
    return proto


def _internalise(node: onnx.NodeProto, source: Source) -> None:
    """Brings external data of attributes (and of tensors in subgraphs) into the node, in place."""
    for attribute in node.attribute:
        tensors = [attribute.t, *attribute.tensors]
        graphs = [attribute.g, *attribute.graphs]
        for graph in graphs:
            tensors.extend(graph.initializer)
            for inner in graph.node:
                _internalise(inner, source)
        for tensor in tensors:
            if is_external(tensor):
                tensor.CopyFrom(to_tensor(tensor.name, load_tensor(tensor, source.path)))


def _nodes(protos: Iterable[onnx.NodeProto], annotations: bool) -> Iterator[Node]:
    """The nodes under their own names; nameless ones, and all but the first with a given name, get fresh names."""
    protos = list(protos)
    names = FreshNames(proto.name for proto in protos)
    used: set[str] = set()
    for index, proto in enumerate(protos):
        if not proto.name or proto.name in used:
            name = names.fresh(proto.name or f"{proto.op_type}_{index}")
        else:
            name = proto.name
        used.add(name)
        yield import_node(proto, name, annotations)


def import_node(proto: onnx.NodeProto, name: str, annotations: bool = False) -> Node:
    """One node as an `OnnxOp`; outside values that its subgraphs read become inputs of the node."""
    attributes = list(proto.attribute)
    captured = abstract_captures(attributes)
    values = {attribute.name: attribute_value(attribute) for attribute in attributes}
    if captured:
        values[CAPTURES] = len(captured)
    domain = "" if proto.domain == "ai.onnx" else proto.domain
    inputs, outputs = stripped(proto.input, proto.op_type, domain), stripped(proto.output)
    placement, tags = _annotations(proto) if annotations else (UNPLACED, ())
    op = OnnxOp(proto.op_type, domain, tuple(sorted(values.items())))
    return Node(op, (*inputs, *captured), outputs, name, placement, tags)


def _annotations(proto: onnx.NodeProto) -> tuple[Placement, tuple[tuple[str, str], ...]]:
    try:
        return placement_of({entry.key: entry.value for entry in proto.metadata_props})
    except ValueError as error:
        raise ModelError(f"node {proto.name!r}: its placement is damaged: {error}", "compile the model again") from None
