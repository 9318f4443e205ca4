"""IR -> ONNX: every typed op in the form of the graph's own opset."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Protocol

import numpy as np
import onnx
from onnx import helper, shape_inference

from pimflow.ir import (
    Array,
    BatchNorm,
    Concat,
    Conv2d,
    Elementwise,
    Gemm,
    GlobalPool,
    Graph,
    Node,
    OnnxOp,
    Op,
    OpRules,
    Pad,
    Pool2d,
    Reshape,
    Slice,
    Transpose,
)
from pimflow.ir.expansion.base import CONTRIB
from pimflow.ir.names import FreshNames
from pimflow.ir.ops.opaque import PREPARED, AttributeValue
from pimflow.ir.packed import PER_AXIS_OPSET
from pimflow.onnxio.captures import CAPTURES, capture_count, restore_captures, subgraphs
from pimflow.onnxio.placement import metadata_of
from pimflow.onnxio.tensors import (
    NUMPY_NATIVE,
    ONNX_ERRORS,
    attribute_proto,
    dtype_code,
    numpy_dtype,
    to_tensor,
    value_info,
)
from pimflow.records import NamedTuple

IR_VERSION = 10
"""The IR version written, unless the opset needs a later one. Node metadata needs 10."""

PLACEHOLDER = "pimflow.constants"
"""File name in references to constants that are passed separately from the model; there is no such file."""

PACKED = ("packed", "")
"""Tag of a node that dequantises a packed constant: the compiler treats its result as a constant."""

LONGEST_FOLLOWED = 1 << 16
"""The longest vector whose elements ONNX's shape inference may follow; vectors of sizes are shorter."""

SMALL_TENSOR_BYTES = 8 * 1024
"""Constants up to this size may be needed to infer shapes."""

AttributeMap = Mapping[str, AttributeValue]


class SplitModel(NamedTuple):
    """A model and the constants stored outside it, to which it refers with `PLACEHOLDER` in place of their data."""

    proto: onnx.ModelProto
    constants: dict[str, Array]

    @classmethod
    def of(cls, proto: onnx.ModelProto, constants: dict[str, Array]) -> SplitModel:
        """A split model from one whose initialisers with these names have no data: their placeholders are set."""
        for tensor in proto.graph.initializer:
            if tensor.name in constants:
                set_external(tensor, PLACEHOLDER, 0, constants[tensor.name].nbytes)
        return cls(proto, constants)


ModelContent = str | bytes | onnx.ModelProto | SplitModel
"""A model to read or run: a path, or a model in memory."""


def to_onnx(graph: Graph) -> onnx.ModelProto:
    """The graph as an ONNX model with all constants inside, in the graph's own opset.

    Devices and tags become `metadata_props` of the nodes. The model may exceed the 2 GB that protobuf can
    serialise: `save_onnx` writes such a model with external data.
    """
    return split_model(graph, None).proto


def split_model(
    graph: Graph,
    inline_limit_bytes: int | None,
    *,
    with_ranks: bool = True,
    nodes: Sink | None = None,
    values: Sink | None = None,
) -> SplitModel:
    """The graph as an ONNX model that only refers to constants larger than a limit (None: all are inside).

    Args:
        graph: the graph.
        inline_limit_bytes: the limit.
        with_ranks: whether outputs of unknown rank are given the one that ONNX infers, as its checker requires.
        nodes: receives the nodes in place of the model.
        values: receives the types of intermediate values in place of the model.
    """
    model = onnx.ModelProto(producer_name="pimflow")
    proto = model.graph  # filled in place: composing messages would hold their content twice
    proto.name = graph.name or "graph"
    bare = [name for name in graph.outputs if graph.value(name).shape is None] if with_ranks else []
    writer = OnnxWriter(graph, proto.node if nodes is None or bare else nodes)
    plain = {name: array for name, array in graph.constants.items() if not writer.write_packed(name)}
    for node in graph.nodes:
        writer.write(node)
    opsets = [helper.make_opsetid(domain, version) for domain, version in sorted(writer.domains.items())]
    model.opset_import.extend(opsets)
    model.ir_version = _ir_version(opsets)
    arrays = {**plain, **writer.constants}
    outside = {name: array for name, array in arrays.items() if _is_large(array, inline_limit_bytes)}
    for name, array in arrays.items():
        proto.initializer.append(_reference(name, array) if name in outside else to_tensor(name, array))
    for infos, names in ((proto.input, graph.inputs), (proto.output, graph.outputs)):
        infos.extend(value_info(graph.value(name)) for name in names)
    types = proto.value_info if values is None else values
    for name in _intermediates(graph):
        types.append(value_info(graph.value(name)))
    if bare:
        _add_output_ranks(model)
    return SplitModel(model, outside)


class Sink(Protocol):
    """What receives messages one by one."""

    def append(self, message: Any, /) -> None:
        """Adds a message."""


def _add_output_ranks(model: onnx.ModelProto) -> None:
    """Gives outputs of data-dependent shape the rank that ONNX infers."""
    bare = [info for info in model.graph.output if _lacks_rank(info)]
    if not bare:
        return
    tensors = model.graph.initializer
    small = [tensor for tensor in tensors if len(tensor.raw_data) <= SMALL_TENSOR_BYTES and not tensor.external_data]
    known = {tensor.name for tensor in small}
    large = [
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in tensors
        if tensor.name not in known
    ]
    graph = model.graph
    light = helper.make_graph(graph.node, graph.name, [*graph.input, *large], graph.output, small)
    light = helper.make_model(light, opset_imports=model.opset_import, ir_version=model.ir_version)
    try:
        inferred = {info.name: info for info in _inferred(light).output}
    except ONNX_ERRORS:
        return
    for info in bare:
        if not _lacks_rank(inferred[info.name]):
            info.type.CopyFrom(inferred[info.name].type)


def _inferred(model: onnx.ModelProto) -> onnx.GraphProto:
    """The graph with the shapes that ONNX infers, with data propagation if it is needed and no vector is long."""
    graph: onnx.GraphProto = shape_inference.infer_shapes(model).graph
    if not any(map(_lacks_rank, graph.output)) or _has_long_vector(graph):
        return graph
    followed: onnx.GraphProto = shape_inference.infer_shapes(model, data_prop=True).graph
    return followed


def _has_long_vector(graph: onnx.GraphProto) -> bool:
    """Whether a value is a vector too long for ONNX's data propagation, which takes a microsecond per element."""
    shapes = (info.type.tensor_type.shape.dim for info in (*graph.input, *graph.value_info, *graph.output))
    if any(len(dims) == 1 and dims[0].dim_value > LONGEST_FOLLOWED for dims in shapes):
        return True
    return any(_has_long_vector(body) for node in graph.node for body in subgraphs(node.attribute))


def _lacks_rank(info: onnx.ValueInfoProto) -> bool:
    return bool(info.type.HasField("tensor_type")) and not info.type.tensor_type.HasField("shape")


def _ir_version(opsets: Sequence[onnx.OperatorSetIdProto]) -> int:
    return max(IR_VERSION, int(helper.find_min_ir_version_for(list(opsets), ignore_unknown=True)))


def _is_large(array: Array, limit_bytes: int | None) -> bool:
    return limit_bytes is not None and array.nbytes > limit_bytes and array.dtype.name in NUMPY_NATIVE


def _reference(name: str, array: Array) -> onnx.TensorProto:
    tensor = onnx.TensorProto(
        name=name,
        data_type=dtype_code(array.dtype.name),
        dims=array.shape,
        data_location=onnx.TensorProto.EXTERNAL,
    )
    set_external(tensor, PLACEHOLDER, 0, array.nbytes)
    return tensor


def set_external(tensor: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    """Points a tensor at a range of bytes in a file."""
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def _intermediates(graph: Graph) -> list[str]:
    outer = {*graph.inputs, *graph.outputs}
    names = (name for node in graph.nodes for name in node.outputs if name and name not in outer)
    return [name for name in names if graph.value(name).shape is not None and graph.value(name).dtype]


def opaque_proto(node: Node, op: OnnxOp, taken: Collection[str]) -> onnx.NodeProto:
    """An opaque node in ONNX form. `taken` are the names that its subgraphs must not use for their own values."""
    protos = [attribute_proto(name, value) for name, value in op.attributes if name != CAPTURES]
    own = len(node.inputs) - capture_count(node)
    if own < len(node.inputs):
        restore_captures(protos, node.inputs[own:], FreshNames(taken))
    return _node_proto(node, op.op_type, op.domain, node.inputs[:own], protos)


def _node_proto(
    node: Node, op_type: str, domain: str, inputs: Sequence[str], attributes: Sequence[onnx.AttributeProto]
) -> onnx.NodeProto:
    names = stripped(inputs, op_type, domain)
    return onnx.NodeProto(
        op_type=op_type, domain=domain, name=node.name, input=names, output=node.outputs, attribute=attributes
    )


def stripped(names: Iterable[str], op_type: str = "", domain: str = "") -> tuple[str, ...]:
    """Operands without trailing absent ones, except for the first two of a Loop, which have to be listed if absent."""
    kept, least = list(names), 2 if (domain, op_type) == ("", "Loop") else 0
    while len(kept) > least and not kept[-1]:
        kept.pop()
    return tuple(kept)


class OnnxWriter:
    """Writes the nodes of one graph, and collects the additional constants that the opset's form of an op needs.

    Args:
        graph: the graph.
        nodes: receives copies of its nodes in ONNX form.
    """

    def __init__(self, graph: Graph, nodes: Sink) -> None:
        self.graph = graph
        self.opset = graph.opset.get("", 0)
        self.domains = dict(graph.opset)
        self.nodes = nodes
        self.constants: dict[str, Array] = {}
        self._numbers: dict[int, str] = {}
        self._names = FreshNames(graph.values)
        self._node_names = FreshNames(graph.node_by_name)

    def constant(self, base: str, array: Array) -> str:
        """A new constant; returns its name."""
        name = self._names.fresh(base)
        self.constants[name] = array
        return name

    def number(self, value: int) -> str:
        """A shared vector of a single integer: split models have thousands of Slices, which read four each."""
        if value not in self._numbers:
            self._numbers[value] = self.constant(f"int64_{value}", np.array([value], np.int64))
        return self._numbers[value]

    def write_packed(self, name: str) -> bool:
        """Adds the node that dequantises a constant, and its operands, if the model stores it in fewer bits."""
        packed = self.graph.packed_form(name)
        if packed is None:
            return False
        parts = zip(("elements", "scale", "zero_point"), packed.operands, strict=False)
        operands = ["" if array is None else self.constant(f"{name}_{part}", array) for part, array in parts]
        node_name = self._node_names.fresh(f"{name}_dequantise")
        self.write(Node(self._in_own_opset(packed.op), tuple(operands), (name,), node_name, tags=(PACKED,)))
        return True

    def _in_own_opset(self, op: OnnxOp) -> OnnxOp:
        """A DequantizeLinear; if the opset's version has no axis, ONNX Runtime's own, which always had one."""
        if op.domain or self.opset >= PER_AXIS_OPSET or not op.attributes:
            return op
        self.domains.setdefault(CONTRIB, 1)
        return replace(op, domain=CONTRIB)

    def write(self, node: Node) -> None:
        """Adds one node by its op's rule."""
        if EXPORT.find(node.op) is None and _is_plain(type(node.op)):
            self.add(node, node.op.onnx_name)
        else:
            EXPORT.of(node.op)(self, node, node.op)

    def add(
        self,
        node: Node,
        op_type: str,
        attributes: AttributeMap | None = None,
        inputs: Sequence[str] | None = None,
    ) -> None:
        """Adds an operator of the op's domain for the node; absent trailing inputs are left out.

        Args:
            node: the node, for its name, outputs and placement.
            op_type: the operator.
            attributes: attributes by name.
            inputs: inputs, by default the node's own.
        """
        names = node.inputs if inputs is None else inputs
        protos = [attribute_proto(name, value) for name, value in sorted((attributes or {}).items())]
        self.append(node, _node_proto(node, op_type, node.op.onnx_domain, names, protos))

    def step(self, node: Node, op_type: str, inputs: Sequence[str], attributes: AttributeMap) -> str:
        """Adds one of several ONNX operators for a node, with a result that only the others read.

        Returns:
            The name of that value.
        """
        name = self._names.fresh(f"{node.name}_{op_type}")
        protos = [attribute_proto(key, value) for key, value in sorted(attributes.items())]
        self.nodes.append(
            onnx.NodeProto(op_type=op_type, name=name, input=list(inputs), output=[name], attribute=protos)
        )
        return name

    def append(self, node: Node, proto: onnx.NodeProto) -> None:
        """Adds a node that is already in ONNX form, with the placement of `node`."""
        for key, value in metadata_of(node.placement, node.tags).items():
            proto.metadata_props.add(key=key, value=value)
        self.nodes.append(proto)


def _is_plain(kind: type[Op]) -> bool:
    """Whether an op has no parameters, so that in ONNX it is just its name and inputs."""
    return not fields(kind)


EXPORT: OpRules[Callable[[OnnxWriter, Node, Any], None]] = OpRules("ONNX export", asks=lambda kind: not _is_plain(kind))
"""How an op with parameters is written in the graph's own opset: the rule adds its operators to the writer."""


@EXPORT.register(OnnxOp)
def _opaque(writer: OnnxWriter, node: Node, op: OnnxOp) -> None:
    if op.domain == PREPARED:
        node = replace(node, inputs=(node.inputs[0], _selection(writer, node), *node.inputs[2:]))
        op = replace(op, domain="")
    writer.append(node, opaque_proto(node, op, writer.graph.values))


def _selection(writer: OnnxWriter, node: Node) -> str:
    """Adds the nodes that make the W that ONNX requires of a prepared recurrence; returns its name.

    The gates of all directions are side by side in the input, so W of a direction is its own rows of an identity
    matrix; a product with them is exact.
    """
    graph = writer.graph
    directions, gates, _ = graph.shape(node.inputs[2])
    every = graph.shape(node.inputs[0])[-1]
    sizes = writer.constant(f"{node.name}_sizes", np.array([every, every], np.int64))
    zeros = writer.step(node, "ConstantOfShape", [sizes], {})
    dtype = graph.value(node.inputs[0]).dtype
    eye = writer.step(node, "EyeLike", [zeros], {"dtype": dtype_code("float32")})
    if dtype != "float32":  # ONNX Runtime has no 16-bit EyeLike
        eye = writer.step(node, "Cast", [eye], {"to": dtype_code(dtype)})
    shape = writer.constant(f"{node.name}_shape", np.array([directions, gates, every], np.int64))
    return writer.step(node, "Reshape", [eye, shape], {})


@EXPORT.register(Conv2d)
def _conv(writer: OnnxWriter, node: Node, op: Conv2d) -> None:
    attributes: dict[str, AttributeValue] = {"kernel_shape": op.kernel, "strides": op.strides, "pads": op.pads}
    writer.add(node, "Conv", {**attributes, "dilations": op.dilations, "group": op.groups})


@EXPORT.register(Gemm)
def _gemm(writer: OnnxWriter, node: Node, op: Gemm) -> None:
    attributes: dict[str, AttributeValue] = {"transA": int(op.trans_a), "transB": int(op.trans_b)}
    inputs = [name for name in node.inputs if name]
    if len(inputs) == 2 and writer.opset < 11:  # C became optional in opset 11
        dtype = numpy_dtype(writer.graph.value(inputs[0]).dtype)
        inputs.append(writer.constant(f"{node.name}_zero", np.zeros(1, dtype)))
    writer.add(node, "Gemm", {**attributes, "alpha": float(op.alpha), "beta": float(op.beta)}, inputs)


@EXPORT.register(BatchNorm)
def _batch_norm(writer: OnnxWriter, node: Node, op: BatchNorm) -> None:
    writer.add(node, "BatchNormalization", {"epsilon": float(op.epsilon)})


@EXPORT.register(Elementwise)
def _elementwise(writer: OnnxWriter, node: Node, op: Elementwise) -> None:
    if op.kind != "Clip" or writer.opset < 11:
        writer.add(node, op.kind, dict(op.attributes))
        return
    dtype = numpy_dtype(writer.graph.value(node.inputs[0]).dtype)
    inputs = list(node.inputs)
    bounds = dict(op.attributes)
    for key in ("min", "max"):
        bound = bounds.get(key)
        present = bound is not None
        inputs.append(writer.constant(f"{node.name}_{key}", np.array(bound, dtype)) if present else "")
    writer.add(node, "Clip", inputs=inputs)


@EXPORT.register(Pool2d)
def _pool(writer: OnnxWriter, node: Node, op: Pool2d) -> None:
    attributes: dict[str, AttributeValue] = {"kernel_shape": op.kernel, "strides": op.strides, "pads": op.pads}
    if op.dilations != (1, 1):
        attributes["dilations"] = op.dilations
    if op.ceil_mode:
        attributes["ceil_mode"] = 1
    if op.count_include_pad and op.kind == "average":
        attributes["count_include_pad"] = 1
    writer.add(node, op.onnx_name, attributes)


@EXPORT.register(GlobalPool)
def _global_pool(writer: OnnxWriter, node: Node, op: GlobalPool) -> None:
    writer.add(node, op.onnx_name)


@EXPORT.register(Slice)
def _slice(writer: OnnxWriter, node: Node, op: Slice) -> None:
    if writer.opset >= 10:
        numbers = map(writer.number, (op.start, op.stop, op.axis, op.step))
        writer.add(node, "Slice", inputs=[node.inputs[0], *numbers])
    elif op.step == 1:
        writer.add(node, "Slice", {"axes": (op.axis,), "starts": (op.start,), "ends": (op.stop,)})
    else:  # steps came with opset 10
        indices = writer.constant(f"{node.name}_indices", np.arange(op.start, op.stop, op.step, dtype=np.int64))
        writer.add(node, "Gather", {"axis": op.axis}, [node.inputs[0], indices])


@EXPORT.register(Pad)
def _pad(writer: OnnxWriter, node: Node, op: Pad) -> None:
    pads = (*op.before, *op.after)
    if writer.opset < 11:
        writer.add(node, "Pad", {"mode": "constant", "pads": pads, "value": float(op.value)})
        return
    widths = writer.constant(f"{node.name}_pads", np.array(pads, np.int64))
    value = writer.constant(
        f"{node.name}_value", np.array(op.value, numpy_dtype(writer.graph.value(node.inputs[0]).dtype))
    )
    writer.add(node, "Pad", {"mode": "constant"}, [node.inputs[0], widths, value])


@EXPORT.register(Concat)
def _concat(writer: OnnxWriter, node: Node, op: Concat) -> None:
    writer.add(node, "Concat", {"axis": op.axis})


@EXPORT.register(Reshape)
def _reshape(writer: OnnxWriter, node: Node, op: Reshape) -> None:
    shape = writer.constant(f"{node.name}_shape", np.array(op.shape, np.int64))
    attributes: dict[str, AttributeValue] = {"allowzero": 1} if 0 in op.shape else {}  # opset 14
    writer.add(node, "Reshape", attributes, [node.inputs[0], shape])


@EXPORT.register(Transpose)
def _transpose(writer: OnnxWriter, node: Node, op: Transpose) -> None:
    writer.add(node, "Transpose", {"perm": op.perm} if op.perm else {})
