"""Refusal of models on which native libraries would crash and end the whole process.

Limits of attributes are those beyond which ONNX's shape inference or ONNX Runtime's kernels crash (SIGSEGV, SIGFPE,
SIGABRT) or allocate without bound: they use attributes before they check them. The limits were found by setting every
attribute of every operator that has a test in the onnx package, and of 61 of ONNX Runtime's own that run on a CPU
(including its kernels for blocked channels), to extreme values, one at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise

import onnx
from onnx import AttributeProto

from pimflow.errors import ModelError
from pimflow.frontend.functions import FunctionKey, all_nodes, function_key
from pimflow.ir import Array, Node, OnnxOp, Value
from pimflow.onnxio.captures import subgraphs
from pimflow.onnxio.tensors import brief, to_array
from pimflow.records import NamedTuple

MAX_NODES = 200_000
"""The maximum number of nodes of a model with functions inlined: a few that each call another twice exceed it."""

DEEPEST_CALLS = 100
"""The maximum nesting depth of function calls."""


class _Range(NamedTuple):
    least: int
    most: int


_AXIS = _Range(-64, 63)
_COUNT = _Range(1, 2**16)

_LIMITS: Mapping[str, _Range] = {
    "axis": _AXIS,
    "batch_axis": _AXIS,
    "time_axis": _AXIS,
    "batch_dims": _Range(0, 63),
    "blocksize": _COUNT,
    "group": _Range(1, 2**31 - 1),
    "num_heads": _Range(0, 2**16),
    "q_num_heads": _COUNT,
    "kv_num_heads": _COUNT,
    "max_skip_count": _Range(0, 2**16),
    "max_gram_length": _Range(1, 2**16),
}
"""Limits by attribute, for any operator."""


def screen(proto: onnx.ModelProto) -> None:
    """Checks names and attributes of all nodes, including those in subgraphs and functions.

    Raises:
        ModelError: there are too many nodes, two nodes of a graph have the same name, a result that is not optional has
            none, an attribute is out of range or does not hold its declared type, a size is below 1, functions are
            recursive, or a call does not fit its function.

    What a function refers to is not known before it is inlined (`screen_inlined`).
    """
    _check_count(len(proto.graph.node), "the model has")
    _screen(proto.graph.node, "graph")
    for function in proto.functions:
        _screen(function.node, f"function {function.name!r}")
        _screen_sizes(function.node, {})
    _screen_sizes(proto.graph.node, _initialisers(proto.graph))
    _check_calls(proto)


def screen_inlined(nodes: Iterable[onnx.NodeProto]) -> None:
    """Checks the attributes of nodes again that came from functions, where calls gave some of them.

    Raises:
        ModelError: one is out of range.
    """
    for node in all_nodes(nodes):
        _check_node(node)


def _screen(nodes: Iterable[onnx.NodeProto], where: str) -> None:
    nodes = list(nodes)
    _check_names(nodes, where)
    for node in nodes:
        _check_node(node)
        for body in subgraphs(node.attribute):
            _screen(body.node, f"subgraph {body.name!r}")


def _check_node(node: onnx.NodeProto) -> None:
    """Checks results and attributes, except attributes that refer to those of a call."""
    given = [attribute for attribute in node.attribute if not attribute.ref_attr_name]
    _check_results(node, given)
    for attribute in given:
        _check_content(node, attribute)
        _check_attribute(node, attribute)
    if node.op_type == "TfIdfVectorizer" and len(given) == len(node.attribute):
        _check_vectoriser(node)


def _check_calls(proto: onnx.ModelProto) -> None:
    """Refuses recursive functions, and calls that would expand to too many nodes.

    Functions that are never called are checked too: ONNX Runtime and onnx's inliner also refuse those.
    """
    functions = {function_key(function): function for function in proto.functions}
    sizes: dict[FunctionKey, int] = {}

    def size(nodes: Iterable[onnx.NodeProto], callers: tuple[FunctionKey, ...]) -> int:
        return sum(1 + called(node, callers) for node in all_nodes(nodes))

    def called(node: onnx.NodeProto, callers: tuple[FunctionKey, ...]) -> int:
        key = function_key(node)
        if key not in functions:
            return 0
        _check_call(node, functions[key])
        if key in callers:
            raise ModelError(f"the function {key[1]!r} calls itself", "ONNX has no recursion")
        if len(callers) >= DEEPEST_CALLS:
            raise ModelError(f"function calls are nested deeper than {DEEPEST_CALLS}")
        if key not in sizes:
            sizes[key] = size(functions[key].node, (*callers, key))
        return sizes[key]

    total = size(proto.graph.node, ())
    _check_count(total, "with its functions inlined, the model has")
    for function in proto.functions:
        size(function.node, (function_key(function),))


def _check_count(nodes: int, what: str) -> None:
    if nodes > MAX_NODES:
        raise ModelError(f"{what} {nodes} nodes; the limit is {MAX_NODES}", "compile parts of it")


def _check_call(call: onnx.NodeProto, function: onnx.FunctionProto) -> None:
    """Refuses a call with more operands or results than the function has; fewer are allowed."""
    for what, given, expected in (("inputs", call.input, function.input), ("outputs", call.output, function.output)):
        if len(given) > len(expected):
            raise ModelError(
                f"node {_label(call)} has {len(given)} {what}, the function {function.name!r} has {len(expected)}",
                "export the model again",
            )


def _check_names(nodes: Iterable[onnx.NodeProto], where: str) -> None:
    """Refuses duplicate names like ONNX Runtime, which ignores those of Constants: it makes them initialisers."""
    named = [node for node in nodes if node.name and node.op_type != "Constant"]
    counts = Counter(node.name for node in named)
    for name, count in counts.items():
        if count > 1:
            kinds = ", ".join(node.op_type for node in named if node.name == name)
            raise ModelError(f"{where}: {count} nodes ({kinds}) are named {name!r}", "give every node its own name")


_ANY_NUMBER = frozenset(("If", "Loop", "Scan", "SequenceMap", "Split"))
"""The operators with any number of results."""


def _check_results(node: onnx.NodeProto, attributes: Iterable[onnx.AttributeProto]) -> None:
    """Refuses an operator with any number of results if one has no name, as only optional results may be left out, or
    if their number is not the one that it declares."""
    if node.op_type not in _ANY_NUMBER or node.domain not in ("", "ai.onnx"):
        return
    if "" in node.output:
        raise ModelError(
            f"node {_label(node)}: result {list(node.output).index('')} has no name",
            f"name it, even if nothing reads it: no result of a {node.op_type} can be left out",
        )
    declared = next((attribute.i for attribute in attributes if attribute.name == "num_outputs"), None)
    if declared is not None and declared != len(node.output):
        raise ModelError(f"node {_label(node)} has {len(node.output)} results, but 'num_outputs' is {declared}")


_FIELDS: Mapping[int, str] = {
    AttributeProto.INT: "i",
    AttributeProto.INTS: "ints",
    AttributeProto.FLOAT: "f",
    AttributeProto.FLOATS: "floats",
    AttributeProto.STRING: "s",
    AttributeProto.STRINGS: "strings",
    AttributeProto.TENSOR: "t",
    AttributeProto.TENSORS: "tensors",
    AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    AttributeProto.SPARSE_TENSORS: "sparse_tensors",
    AttributeProto.GRAPH: "g",
    AttributeProto.GRAPHS: "graphs",
    AttributeProto.TYPE_PROTO: "tp",
    AttributeProto.TYPE_PROTOS: "type_protos",
}
"""The field that holds the value of an attribute, by its type."""


def _check_content(node: onnx.NodeProto, attribute: onnx.AttributeProto) -> None:
    """Refuses an attribute that holds a value of another type than it declares: readers differ in which they use.

    An attribute without any value is an empty list, or the 0 that some writers omit.
    """
    fields = {field.name for field, _ in attribute.ListFields() if field.name in _FIELDS.values()}
    if fields and _FIELDS.get(attribute.type) not in fields:
        declared = AttributeProto.AttributeType.Name(attribute.type) if attribute.type in _FIELDS else "nothing"
        found = ", ".join(AttributeProto.AttributeType.Name(kind) for kind, name in _FIELDS.items() if name in fields)
        raise ModelError(
            f"node {_label(node)}: the attribute {attribute.name!r} is declared as {declared} but holds {found}",
            "export or download the model again",
        )


def _check_attribute(node: onnx.NodeProto, attribute: onnx.AttributeProto) -> None:
    limits = _LIMITS.get(attribute.name)
    if limits is None or attribute.type != AttributeProto.INT or limits.least <= attribute.i <= limits.most:
        return
    raise ModelError(
        f"node {_label(node)}: the attribute {attribute.name!r} is {attribute.i}; "
        f"it must be between {limits.least} and {limits.most}"
    )


def _check_vectoriser(node: onnx.NodeProto) -> None:
    """TfIdfVectorizer finds the n-grams of `pool_*` by `ngram_counts`, and their columns by `ngram_indexes`."""
    lists = {attribute.name: attribute for attribute in node.attribute}
    indexes = list(lists["ngram_indexes"].ints) if "ngram_indexes" in lists else []
    counts = list(lists["ngram_counts"].ints) if "ngram_counts" in lists else []
    pool = next((lists[name] for name in ("pool_int64s", "pool_strings") if name in lists), AttributeProto())
    size = max(len(pool.ints), len(pool.strings))
    bounds = [*counts, size]
    ordered = all(0 <= start <= stop for start, stop in pairwise(bounds))
    grams = sum((stop - start) // length for length, (start, stop) in enumerate(pairwise(bounds), 1))
    if not ordered or grams != len(indexes) or min(indexes, default=0) < 0:
        raise ModelError(
            f"node {_label(node)}: 'ngram_counts' {counts} cut a pool of {size} into {grams} n-grams, "
            f"and there are {len(indexes)} 'ngram_indexes'"
        )


def _label(node: onnx.NodeProto) -> str:
    return f"{node.name or next(filter(None, node.output), '')!r} ({node.op_type})"


class _Size(NamedTuple):
    """An operand that is used before it is checked; `is_one`: it must have one element; `least`: its minimum."""

    name: str
    is_one: bool = True
    least: int = 1


_ANY = -(2**63)

_SIZES: Mapping[str, Mapping[int, _Size]] = {
    "If": {0: _Size("condition", least=0)},
    "Loop": {0: _Size("trip count", least=_ANY), 1: _Size("condition", least=0)},
    "OneHot": {1: _Size("depth")},
    "SplitToSequence": {1: _Size("split", is_one=False)},
    "STFT": {1: _Size("frame_step"), 3: _Size("frame_length")},
}
"""The operands to check, by operator and position."""


def screen_constants(node: Node, known: Mapping[str, Array]) -> None:
    """Checks the constant size operands of a node.

    Raises:
        ModelError: one is out of range.
    """
    if isinstance(node.op, OnnxOp) and not node.op.domain and node.op.op_type in _SIZES:
        arrays = {place: known[name] for place, name in enumerate(node.inputs) if name in known}
        _check_sizes(f"{node.name!r} ({node.op.op_type})", _SIZES[node.op.op_type], arrays)


def _screen_sizes(nodes: Collection[onnx.NodeProto], outer: Mapping[str, onnx.TensorProto]) -> None:
    """Checks the sizes that nodes read from initialisers and Constants, including those in subgraphs.

    ONNX Runtime infers shapes from these when a session is created, before anything can be asked about a node.
    """
    tensors = dict(outer)
    for node in nodes:
        if node.op_type == "Constant" and node.output and node.attribute and node.attribute[0].HasField("t"):
            tensors[node.output[0]] = node.attribute[0].t
    for node in nodes:
        if node.op_type in _SIZES and node.domain in ("", "ai.onnx"):
            sizes = _SIZES[node.op_type]
            given = {place: tensors.get(name) for place, name in enumerate(node.input) if place in sizes}
            arrays = {
                place: to_array(tensor) for place, tensor in given.items() if tensor is not None and _is_here(tensor)
            }
            _check_sizes(_label(node), sizes, arrays)
        for body in subgraphs(node.attribute):
            _screen_sizes(body.node, {**tensors, **_initialisers(body)})


def _is_here(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor's elements are part of it: neither in another file nor stored separately, as large ones are."""
    return bool(tensor.data_location != onnx.TensorProto.EXTERNAL)


def _initialisers(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    return {tensor.name: tensor for tensor in graph.initializer}


def _check_sizes(label: str, sizes: Mapping[int, _Size], arrays: Mapping[int, Array]) -> None:
    for place, size in sizes.items():
        array = arrays.get(place)
        if array is None or array.dtype.kind not in "iufb":
            continue
        if size.is_one and array.size != 1:
            raise ModelError(f"node {label}: {size.name} is {brief(array)}; it must have one element")
        if array.size == 1 and not array.reshape(-1)[0] >= size.least:
            raise ModelError(f"node {label}: {size.name} is {brief(array)}; it must be {size.least} or more")


_CONVOLUTIONS: Mapping[str, tuple[int, int]] = {"Conv": (1, 2), "ConvTranspose": (1, 2), "QLinearConv": (3, 8)}
"""Positions of the weights and the bias of convolutions."""

_EMPTY: Mapping[str, str] = {"GRU": "steps, batch and features", "LSTM": "a batch"}
"""The dims that must not be 0 for ONNX Runtime's kernels."""


def unfit_operands(node: Node, values: Mapping[str, Value]) -> str | None:
    """Why a kernel would crash on operands of these shapes, or None."""
    if not isinstance(node.op, OnnxOp) or node.op.domain:
        return None
    if node.op.op_type in _CONVOLUTIONS:
        return _unfit_bias(node, node.op, values)
    shapes = [values[name].shape if name else None for name in node.inputs]
    window = shapes[2] if node.op.op_type == "STFT" and len(shapes) > 2 else None
    if window is not None and (len(window) != 1 or not window[0]):
        return f"window {window} is not a vector of numbers"
    if node.op.op_type not in _EMPTY or not shapes or shapes[0] is None:
        return None
    batch = 0 if dict(node.op.attributes).get("layout", 0) else 1
    sizes = shapes[0][batch : batch + 1] if node.op.op_type == "LSTM" else shapes[0]
    return f"it needs {_EMPTY[node.op.op_type]}, but its input is {shapes[0]}" if 0 in sizes else None


def _unfit_bias(node: Node, op: OnnxOp, values: Mapping[str, Value]) -> str | None:
    """Why a convolution would read past the end of its bias, or use only part of it; None if neither.

    ONNX Runtime's kernels up to 1.23 do not check the size of the bias.
    """
    of_weights, of_bias = _CONVOLUTIONS[op.op_type]
    if len(node.inputs) <= of_bias or not node.inputs[of_bias]:
        return None
    weights, bias = values[node.inputs[of_weights]].shape, values[node.inputs[of_bias]].shape
    if weights is None or len(weights) < 3 or bias is None:
        return None
    channels = weights[0]
    if op.op_type == "ConvTranspose":
        group = dict(op.attributes).get("group", 1)
        channels = weights[1] * group if isinstance(group, int) else weights[1]
    if bias == (channels,):
        return None
    return f"bias {bias} does not have one element for each of {channels} channels"
