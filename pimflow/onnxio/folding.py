"""Evaluation of nodes whose results are known before the model runs: functions of constants and static shapes.

Shape inference uses it to find the sizes of a Reshape, and `FoldConstants` to replace nodes by their results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from onnx import AttributeProto, GraphProto, helper

from pimflow.errors import ModelError
from pimflow.ir import Array, GatherRows, Graph, Node, OnnxOp, OpaqueAttribute, Packed, Refusal, Value
from pimflow.ir.analysis.tensor_layout import element_bytes
from pimflow.ir.ops.base import Op
from pimflow.ir.ops.opaque import AttributeValue
from pimflow.onnxio.captures import capture_count, subgraphs
from pimflow.onnxio.export import PACKED
from pimflow.onnxio.session import GraphSession, ort_dtype
from pimflow.onnxio.tensors import NUMPY_NATIVE, attribute_proto, brief, is_boundless, sparse_to_array, to_array
from pimflow.onnxio.widening import NARROW

RANDOM_OPERATORS = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
"""Operators that draw random numbers, different ones in each run unless they have a seed."""

FOLD_LIMIT_BYTES = 256 * 2**20
"""The maximum size of a result is this or `GROWTH_LIMIT` times its inputs, whichever is more."""

GROWTH_LIMIT = 8


def evaluate(
    node: Node,
    graph: Graph,
    values: Mapping[str, Value],
    constants: Mapping[str, Array],
    limit_bytes: int = FOLD_LIMIT_BYTES,
) -> list[Array] | Refusal | None:
    """The node's results, one for each output; arrays may be views of constants and must not be written to.

    Args:
        node: any node.
        graph: the graph that it is from (for the opset).
        values: all values known so far, with shapes.
        constants: all constants known so far.
        limit_bytes: limit on the size of a result, unless its inputs are nearly as large.

    Returns:
        The results; None if they depend on the model's inputs or are random; a refusal if they are constant, but it is
        better, or only possible, to compute them when the model runs.
    """
    if isinstance(node.op, OnnxOp):
        if capture_count(node) or is_random(node.op):
            return None
        if node.op.domain == "" and node.op.op_type in ("Shape", "Size"):
            return _shape_of(node.op, values[node.inputs[0]].shape)
    if not all(name in constants for name in node.inputs if name):
        return None
    if node.op.is_sparse and not isinstance(node.op, GatherRows):  # sums and products of learned features
        return Refusal(f"{node.name}: the result of {node.kind} is computed when the model runs")
    arrays = [constants[name] if name else None for name in node.inputs]
    if isinstance(node.op, OnnxOp):
        attributes = dict(node.op.attributes)
        if node.op.domain == "" and node.op.op_type in _DIRECT:
            array = _direct(node.op.op_type, arrays, attributes)
            return Refusal(f"{node.name}: the result of {node.kind} fits into no memory") if array is None else [array]
        if any(isinstance(value, OpaqueAttribute) and _is_graph(value) for value in attributes.values()):
            return Refusal(f"{node.name}: {node.kind} has subgraphs")
    return _run(node, graph, arrays, values, limit_bytes)


def packed_form(node: Node, array: Array, constants: Mapping[str, Array]) -> Packed | None:
    """The packed form of a constant that a node dequantises, even if it is not smaller.

    A 32-bit bias does not become smaller, but ONNX Runtime re-quantises floats next to quantised operands, with
    operators of opsets newer than the model's, and chooses different kernels if a scalar is a float.
    """
    if not isinstance(node.op, OnnxOp) or node.op.op_type != "DequantizeLinear":
        return None
    return Packed(array, node.op, tuple(constants[name] if name else None for name in node.inputs))


def unpacked(graph: Graph) -> Graph:
    """The inverse of packing by `split_model`: the graph with packed constants as constants again."""
    made: dict[str, Packed] = {}
    for node in graph.nodes:
        if PACKED in node.tags:
            found = evaluate(node, graph, graph.values, graph.constants)
            packed = packed_form(node, found[0], graph.constants) if isinstance(found, list) else None
            if packed is not None:
                made[node.output] = packed
    nodes = [node for node in graph.nodes if node.output not in made]
    named = {*graph.inputs, *graph.outputs, *(name for node in nodes for name in (*node.inputs, *node.outputs))}
    arrays = {**graph.constants, **{name: packed.array for name, packed in made.items()}}
    types = {name: Value(name, packed.array.shape, packed.array.dtype.name) for name, packed in made.items()}
    return graph.replace(
        nodes=nodes,
        values={name: value for name, value in {**graph.values, **types}.items() if name in named},
        constants={name: array for name, array in arrays.items() if name in named},
        packed=made,
    )


def is_random(op: Op) -> bool:
    """Whether an operator, or a node of its bodies, may give a different result in each run."""
    return isinstance(op, OnnxOp) and (_is_random_type(op.op_type) or any(map(_has_random_nodes, _bodies(op))))


def _is_random_type(op_type: str) -> bool:
    return op_type in RANDOM_OPERATORS or op_type == "Dropout"  # in training


def _has_random_nodes(body: GraphProto) -> bool:
    return any(
        _is_random_type(node.op_type) or any(map(_has_random_nodes, subgraphs(node.attribute))) for node in body.node
    )


def _bodies(op: OnnxOp) -> Iterable[GraphProto]:
    opaque = (value for _, value in op.attributes if isinstance(value, OpaqueAttribute)) if op.has_bodies else ()
    return subgraphs([AttributeProto.FromString(value.serialized) for value in opaque])


def _is_graph(value: OpaqueAttribute) -> bool:
    return AttributeProto.FromString(value.serialized).type in (AttributeProto.GRAPH, AttributeProto.GRAPHS)


def _frozen(array: Array) -> Array:
    array.flags.writeable = False
    return array


def _shape_of(op: OnnxOp, shape: tuple[int, ...] | None) -> list[Array] | None:
    if shape is None:
        return None
    if op.op_type == "Size":
        return [_frozen(np.array(np.prod(shape, dtype=np.int64)))]
    attributes = dict(op.attributes)
    start, end = attributes.get("start"), attributes.get("end")
    bounds = slice(start if isinstance(start, int) else None, end if isinstance(end, int) else None)
    return [_frozen(np.array(shape[bounds], np.int64))]


def _direct(op_type: str, arrays: Sequence[Array | None], attributes: Mapping[str, AttributeValue]) -> Array | None:
    """The result of one of the operators in `_DIRECT`; None if no memory could hold it.

    Raises:
        ModelError: its operands or attributes do not fit the operator.
    """
    given = [array for array in arrays if array is not None]
    if len(given) != (op_type != "Constant") or len(arrays) != len(given):
        raise ModelError(f"{op_type} does not take {len(arrays)} inputs")
    if op_type == "Identity":
        return _frozen(given[0])
    if op_type == "Constant":
        return _frozen(_constant(attributes))
    return _constant_of_shape(given[0], attributes)


_PLAIN = {
    AttributeProto.FLOAT: np.float32,
    AttributeProto.FLOATS: np.float32,
    AttributeProto.INT: np.int64,
    AttributeProto.INTS: np.int64,
}


def _constant(attributes: Mapping[str, AttributeValue]) -> Array:
    if len(attributes) != 1:
        raise ModelError(f"a Constant has one attribute, not {len(attributes)}", "export the model again")
    ((name, value),) = attributes.items()
    proto = attribute_proto(name, value)
    if proto.type == AttributeProto.TENSOR:
        return to_array(proto.t)
    if proto.type == AttributeProto.SPARSE_TENSOR:
        return sparse_to_array(proto.sparse_tensor)
    plain = helper.get_attribute_value(proto)
    if proto.type in _PLAIN:
        return np.array(plain, _PLAIN[proto.type])
    if proto.type not in (AttributeProto.STRING, AttributeProto.STRINGS):
        raise ModelError(f"a Constant's value is a {AttributeProto.AttributeType.Name(proto.type)}", "export it again")
    texts = plain if isinstance(plain, list) else [plain]
    array = np.array([text.decode("utf-8", "replace") for text in texts], object)
    return array if isinstance(plain, list) else array.reshape(())


def _constant_of_shape(sizes: Array, attributes: Mapping[str, AttributeValue]) -> Array | None:
    """A read-only view of one element, so that weights filled in this way take no memory; None if it is too large."""
    if sizes.ndim != 1 or sizes.dtype != np.int64 or sizes.min(initial=0) < 0:
        raise ModelError(f"ConstantOfShape takes a list of sizes, not {sizes.dtype}{list(sizes.shape)} {brief(sizes)}")
    value = attributes.get("value")
    tensor = AttributeProto.FromString(value.serialized).t if isinstance(value, OpaqueAttribute) else None
    fill = np.zeros(1, np.float32) if tensor is None else to_array(tensor)
    if fill.size != 1:
        raise ModelError(f"ConstantOfShape fills with one element, not {fill.size}")
    shape = tuple(int(size) for size in sizes)
    return None if is_boundless(shape) else np.broadcast_to(fill.reshape(()), shape)


_FOLDED_TYPES = NUMPY_NATIVE | NARROW
"""Element types of results that become constants."""

_DIRECT = frozenset({"Constant", "ConstantOfShape", "Identity"})
"""Operators that are evaluated without a session."""


def _run(
    node: Node, graph: Graph, arrays: Sequence[Array | None], values: Mapping[str, Value], limit_bytes: int
) -> list[Array] | Refusal:
    """Evaluates a node of constants with ONNX Runtime, unless its results exceed the limit."""
    given = sum(array.nbytes for array in arrays if array is not None)
    limit_bytes = max(limit_bytes, GROWTH_LIMIT * given)
    if node.kind == "Range":  # ONNX Runtime takes its constant operands only as scalars, its inputs also as vectors
        arrays = [array.reshape(()) if array is not None and array.size == 1 else array for array in arrays]
    constants = {name: array for name, array in zip(node.inputs, arrays, strict=True) if name and array is not None}
    try:
        session = node_session(node, graph, values, constants)
    except ModelError as error:  # it may still run in the whole model, where less is known about its inputs
        return Refusal(f"{node.name}: {error.what}")
    if session.widened:
        return Refusal(f"{node.name}: ONNX Runtime has no bf16 kernel for {node.kind}")
    for item in session.session.get_outputs():
        if not item.type.startswith("tensor(") or ort_dtype(item.type) not in _FOLDED_TYPES:
            return Refusal(f"{node.name}: numpy has no type for the {item.type} that {node.kind} produces")
        dims = [dim for dim in item.shape or () if isinstance(dim, int)]
        size = int(np.prod(dims, dtype=np.float64)) * (element_bytes(ort_dtype(item.type)) or 8)
        if size > limit_bytes:
            reason = f"{node.name}: the result of {node.kind} would take {size} bytes, the limit is {limit_bytes}"
            return Refusal(reason, size, limit_bytes, "bytes", "raise the limit")
    results = session.run({})
    return [_frozen(results[name]) if name else np.zeros(0) for name in node.outputs]


def node_session(node: Node, graph: Graph, values: Mapping[str, Value], constants: Mapping[str, Array]) -> GraphSession:
    """A session over one node; constant inputs are built in, the others have to be fed.

    Raises:
        ModelError: ONNX Runtime refuses the node.
    """
    names = tuple(dict.fromkeys(name for name in node.inputs if name))
    outputs = tuple(name for name in node.outputs if name)
    single = Graph(
        name=node.name,
        inputs=tuple(name for name in names if name not in constants),
        outputs=outputs,
        nodes=(node,),
        values={**{name: values[name] for name in names}, **{name: Value(name, None, "") for name in outputs}},
        constants={name: constants[name] for name in names if name in constants},
        opset=graph.opset,
    )
    return GraphSession(single, threads=1, optimise=False)
