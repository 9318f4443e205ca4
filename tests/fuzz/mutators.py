"""Mutators of ONNX models: each does one thing to a model that an exporter, an editor or an attacker might.

`mutant` draws one; `MUTATORS` holds them by name, for tests that need a specific one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

HUGE = (0, -1, 2, 7, 1 << 20, 10**9, 1 << 31, 1 << 40, 1 << 62, -(1 << 40), (1 << 63) - 1, -(1 << 63))
"""Sizes and attributes that no valid model has."""
NAMES = ("", " ", "a" * 10_000, "../../etc/passwd", "/", "\x1b[31mred\x1b]0;title\x07", "line\nfeed\r", "x\u202ey",
         "名前", "@0", "%x", "nul\x00", "a:b", "'\"")  # fmt: skip

Mutator = Callable[[onnx.ModelProto, Random], None]


class Mutant(NamedTuple):
    """A mutated model, and the names of the mutations."""

    how: str
    model: bytes


MUTATORS: dict[str, Mutator] = {}


def mutant(model: onnx.ModelProto, rng: Random) -> Mutant:
    """One or two mutations of a model, or damage to its bytes; `model` itself is not changed."""
    kind = rng.random()
    if kind < 0.06:
        return Mutant("bytes", damaged(model.SerializeToString(), rng))
    if kind < 0.08:
        return Mutant("nesting", nested(model.SerializeToString(), rng.choice((10, 29, 33, 60, 100, 1000))))
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    names = rng.sample(sorted(MUTATORS), k=rng.choice((1, 1, 1, 2)))
    for name in names:
        MUTATORS[name](changed, rng)
    return Mutant("+".join(names), changed.SerializeToString())


def damaged(data: bytes, rng: Random) -> bytes:
    """A file with a flipped bit, a hole, a truncation or an insertion."""
    at = rng.randrange(len(data))
    return rng.choice(
        (
            data[:at],
            data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :],
            data[:at] + rng.randbytes(rng.randint(1, 16)) + data[at:],
            data[:at] + data[at + rng.randint(1, 64) :],
            data[:at] + bytes(min(64, len(data) - at)) + data[at + 64 :],
        )
    )


def nested(data: bytes, depth: int) -> bytes:
    """A serialised model with an additional node: If within If within If, `depth` of them.

    Written byte by byte, because protobuf's own writer copies nested messages, and reads no deeper than 100 of them.
    """
    condition = numpy_helper.from_array(np.array(True), "deep").SerializeToString()
    identity = helper.make_node("Identity", ["deep"], ["d"]).SerializeToString()
    ending = _field(12, helper.make_empty_tensor_value_info("d").SerializeToString())
    branch = _field(1, identity) + _field(2, b"branch") + ending
    other, node = branch, identity
    for _ in range(depth):
        branches = ((b"then_branch", branch), (b"else_branch", other))
        attributes = b"".join(_field(5, _field(1, name) + _field(6, body) + b"\xa0\x01\x05") for name, body in branches)
        node = helper.make_node("If", ["deep"], ["d"]).SerializeToString() + attributes
        branch = _field(1, node) + _field(2, b"branch") + ending
    return data + _field(7, _field(1, node) + _field(5, condition))  # protobuf merges the two graphs of a model


def _field(number: int, content: bytes) -> bytes:
    """A field of a protobuf message that holds text, bytes or a message."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    groups = []
    while number >= 1 << 7:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])


def _mutator(function: Mutator) -> Mutator:
    MUTATORS[function.__name__.strip("_").replace("_", "-")] = function
    return function


def _node(model: onnx.ModelProto, rng: Random) -> Any:
    return rng.choice(model.graph.node) if model.graph.node else model.graph.node.add(op_type="Relu")


def _tensor(model: onnx.ModelProto, rng: Random) -> Any:
    tensors = model.graph.initializer
    if not tensors:
        tensors.append(numpy_helper.from_array(np.ones(1, np.float32), "fresh"))
    return rng.choice(tensors)


def _input(model: onnx.ModelProto, rng: Random) -> Any:
    return rng.choice(model.graph.input) if model.graph.input else model.graph.input.add(name="fresh")


def _values(model: onnx.ModelProto) -> list[str]:
    graph = model.graph
    named = [*graph.input, *graph.initializer]
    return [item.name for item in named] + [name for node in graph.node for name in node.output if name]


def _attribute(model: onnx.ModelProto, rng: Random) -> Any:
    with_attributes = [node for node in model.graph.node if node.attribute]
    if not with_attributes:
        return _node(model, rng).attribute.add(name="axis", type=AttributeProto.INT, i=0)
    return rng.choice(rng.choice(with_attributes).attribute)


def _rename(model: onnx.ModelProto, old: str, new: str) -> None:
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]
    for item in (*model.graph.input, *model.graph.output, *model.graph.initializer, *model.graph.value_info):
        item.name = new if item.name == old else item.name


@_mutator
def _drop_node(model: onnx.ModelProto, rng: Random) -> None:
    model.graph.node.remove(_node(model, rng))


@_mutator
def _repeat_node(model: onnx.ModelProto, rng: Random) -> None:
    model.graph.node.append(_node(model, rng))


@_mutator
def _reverse_nodes(model: onnx.ModelProto, rng: Random) -> None:
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in model.graph.node]
    rng.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


@_mutator
def _make_a_cycle(model: onnx.ModelProto, rng: Random) -> None:
    node = _node(model, rng)
    if node.input and node.output:
        node.input[0] = node.output[0]


@_mutator
def _rewire_an_input(model: onnx.ModelProto, rng: Random) -> None:
    node = _node(model, rng)
    if node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice([*_values(model), "", "nobody makes this"])


@_mutator
def _swap_inputs(model: onnx.ModelProto, rng: Random) -> None:
    node = _node(model, rng)
    node.input[:] = rng.sample(list(node.input), len(node.input))


@_mutator
def _drop_an_input(model: onnx.ModelProto, rng: Random) -> None:
    node = _node(model, rng)
    if node.input:
        del node.input[rng.randrange(len(node.input))]


@_mutator
def _add_inputs(model: onnx.ModelProto, rng: Random) -> None:
    _node(model, rng).input.extend(rng.choices(_values(model) or [""], k=rng.randint(1, 3)))


@_mutator
def _make_a_value_twice(model: onnx.ModelProto, rng: Random) -> None:
    node = _node(model, rng)
    if node.output:
        node.output[0] = rng.choice(_values(model))


@_mutator
def _drop_outputs_of_a_node(model: onnx.ModelProto, rng: Random) -> None:
    del _node(model, rng).output[:]


@_mutator
def _change_op_type(model: onnx.ModelProto, rng: Random) -> None:
    kinds = ["Relu", "Conv", "Gemm", "MatMul", "Concat", "Reshape", "Gather", "GatherND", "DepthToSpace", "NonZero",
             "Loop", "LSTM", "Expand", "Tile", "Range", "NoSuchOp", "", "ConstantOfShape", "Einsum"]  # fmt: skip
    _node(model, rng).op_type = rng.choice(kinds)


@_mutator
def _change_domain(model: onnx.ModelProto, rng: Random) -> None:
    _node(model, rng).domain = rng.choice(("ai.onnx", "com.microsoft", "nobody.knows", "ai.onnx.ml"))


@_mutator
def _change_an_integer_attribute(model: onnx.ModelProto, rng: Random) -> None:
    attribute = _attribute(model, rng)
    if attribute.ints:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(HUGE)
    else:
        attribute.i = rng.choice(HUGE)


@_mutator
def _change_a_float_attribute(model: onnx.ModelProto, rng: Random) -> None:
    _attribute(model, rng).f = rng.choice((float("nan"), float("inf"), -1e38, 0.0, 1e-45))


@_mutator
def _change_an_attribute_list(model: onnx.ModelProto, rng: Random) -> None:
    attribute = _attribute(model, rng)
    attribute.ints[:] = [rng.randint(0, 4) for _ in range(rng.choice((0, 1, 3, 5, 8)))]


@_mutator
def _change_an_attribute_type(model: onnx.ModelProto, rng: Random) -> None:
    _attribute(model, rng).type = rng.choice(AttributeProto.AttributeType.values())


@_mutator
def _drop_an_attribute(model: onnx.ModelProto, rng: Random) -> None:
    del _node(model, rng).attribute[:1]


@_mutator
def _add_an_attribute(model: onnx.ModelProto, rng: Random) -> None:
    name = rng.choice(("group", "axis", "kernel_shape", "perm", "to", "unknown", "auto_pad", "ceil_mode", "batch_dims"))
    value: Any = rng.choice((1, -1, 3, [1, 1], [0, 1, 2, 3], 0.5, "VALID", "nonsense"))
    _node(model, rng).attribute.append(helper.make_attribute(name, value))


@_mutator
def _huge_pads(model: onnx.ModelProto, rng: Random) -> None:
    windows = [node for node in model.graph.node if node.op_type in ("Conv", "MaxPool", "AveragePool")]
    node = rng.choice(windows) if windows else _node(model, rng)
    kept = [attribute for attribute in node.attribute if attribute.name not in ("pads", "auto_pad")]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute("pads", [rng.choice(HUGE) for _ in range(4)])])


@_mutator
def _change_a_tensors_dims(model: onnx.ModelProto, rng: Random) -> None:
    tensor = _tensor(model, rng)
    dims = list(tensor.dims) or [1]
    dims[rng.randrange(len(dims))] = rng.choice(HUGE)
    tensor.dims[:] = dims


@_mutator
def _reshape_a_tensor(model: onnx.ModelProto, rng: Random) -> None:
    """Give a tensor another shape with matching data: valid in itself, but at odds with the nodes that read it."""
    tensor = _tensor(model, rng)
    shape = [max(1, size + rng.choice((-1, 0, 0, 1))) if size < 1 << 12 else size for size in map(abs, tensor.dims)]
    rng.shuffle(shape)
    array = np.random.default_rng(rng.getrandbits(32)).standard_normal(shape[: rng.choice((1, 2, 4, 9))])
    tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float32), tensor.name))


@_mutator
def _cut_a_tensors_data(model: onnx.ModelProto, rng: Random) -> None:
    tensor = _tensor(model, rng)
    tensor.raw_data = tensor.raw_data[: len(tensor.raw_data) // 2] + b"\xff" * rng.choice((0, 1))


@_mutator
def _fill_a_tensor(model: onnx.ModelProto, rng: Random) -> None:
    """Fill a tensor of sizes, axes, indices or other numbers with extreme values."""
    tensor = _tensor(model, rng)
    try:
        array = np.array(numpy_helper.to_array(tensor))
    except (ValueError, TypeError, KeyError):  # another mutation damaged it
        return
    extremes: Sequence[float] = HUGE if array.dtype.kind in "iu" else (float("nan"), float("inf"), 1e38, -0.0, 0.0)
    with np.errstate(all="ignore"):
        array.reshape(-1)[:] = np.array([rng.choice(extremes) for _ in range(min(array.size, 64))] or [0])[
            np.arange(array.size) % max(1, min(array.size, 64))
        ].astype(array.dtype)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


@_mutator
def _change_a_tensors_type(model: onnx.ModelProto, rng: Random) -> None:
    _tensor(model, rng).data_type = rng.choice(TensorProto.DataType.values())


@_mutator
def _move_a_tensor_outside(model: onnx.ModelProto, rng: Random) -> None:
    tensor = _tensor(model, rng)
    places = ("../secret", "/etc/passwd", "/dev/zero", "missing.bin", "", ".", "a\x00b", "d" * 300, "model.onnx")
    del tensor.external_data[:]
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", rng.choice(places)), ("offset", rng.choice(("0", "-1", " 0 ", "1" * 5000, "٠"))),
                       ("length", rng.choice(("0", "4", "999999999999", "x"))))[: rng.randint(1, 3)]:  # fmt: skip
        tensor.external_data.add(key=key, value=value)


@_mutator
def _make_a_tensor_an_input_of_another_type(model: onnx.ModelProto, rng: Random) -> None:
    tensor = _tensor(model, rng)
    shape = [rng.randint(1, 9) for _ in tensor.dims]
    kind = rng.choice((TensorProto.FLOAT, TensorProto.INT64, TensorProto.DOUBLE))
    model.graph.input.append(helper.make_tensor_value_info(tensor.name, kind, shape))


@_mutator
def _sparse_tensor(model: onnx.ModelProto, rng: Random) -> None:
    values = numpy_helper.from_array(np.ones(2, np.float32), rng.choice(_values(model)))
    indices = numpy_helper.from_array(np.array([0, rng.choice(HUGE)], np.int64), "indices")
    dims = [rng.choice((4, 1 << 20, 10**12))]
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, dims))


@_mutator
def _change_a_dim_of_an_input(model: onnx.ModelProto, rng: Random) -> None:
    dims = _input(model, rng).type.tensor_type.shape.dim
    dim = rng.choice(dims) if dims else dims.add()
    if rng.random() < 0.2:
        dim.dim_param = rng.choice(("N", *NAMES))
    else:
        dim.dim_value = rng.choice((*HUGE, 1, 3, 5, 10**6, 10**10))


@_mutator
def _change_an_inputs_type(model: onnx.ModelProto, rng: Random) -> None:
    _input(model, rng).type.tensor_type.elem_type = rng.choice(TensorProto.DataType.values())


@_mutator
def _take_an_inputs_type(model: onnx.ModelProto, rng: Random) -> None:
    _input(model, rng).ClearField("type")


@_mutator
def _drop_an_input_of_the_graph(model: onnx.ModelProto, rng: Random) -> None:
    if model.graph.input:
        del model.graph.input[rng.randrange(len(model.graph.input))]


@_mutator
def _change_the_outputs(model: onnx.ModelProto, rng: Random) -> None:
    output = model.graph.output.add()
    output.name = rng.choice([*_values(model), "nobody makes this", ""])
    output.type.tensor_type.elem_type = rng.choice((TensorProto.FLOAT, TensorProto.INT64, 0))


@_mutator
def _drop_the_outputs(model: onnx.ModelProto, rng: Random) -> None:
    del model.graph.output[:]


@_mutator
def _contradict_by_value_info(model: onnx.ModelProto, rng: Random) -> None:
    shape = [rng.choice((1, 3, 8, 10**9)) for _ in range(rng.randint(0, 5))]
    kind = rng.choice((TensorProto.FLOAT, TensorProto.INT64, TensorProto.FLOAT16))
    info = helper.make_tensor_value_info(rng.choice(_values(model)), kind, shape)
    model.graph.value_info.append(info)


@_mutator
def _contradict_by_output(model: onnx.ModelProto, rng: Random) -> None:
    if model.graph.output:
        dims = rng.choice(model.graph.output).type.tensor_type.shape.dim
        dims.add(dim_value=rng.choice((1, 3, 10**9)))


@_mutator
def _name_nodes_alike(model: onnx.ModelProto, rng: Random) -> None:
    first = _node(model, rng).name
    _node(model, rng).name = first
    _node(model, rng).name = first


@_mutator
def _rename_a_node(model: onnx.ModelProto, rng: Random) -> None:
    _node(model, rng).name = rng.choice(NAMES)


@_mutator
def _rename_a_value(model: onnx.ModelProto, rng: Random) -> None:
    _rename(model, rng.choice(_values(model)), rng.choice(NAMES))


@_mutator
def _change_opset(model: onnx.ModelProto, rng: Random) -> None:
    del model.opset_import[rng.randrange(2) :]
    versions = (-1, 0, 1, 6, 7, 8, 9, 10, 11, 12, 13, 18, 21, 23, 99, (1 << 62))
    model.opset_import.add(domain=rng.choice(("", "", "ai.onnx", "com.microsoft")), version=rng.choice(versions))


@_mutator
def _change_ir_version(model: onnx.ModelProto, rng: Random) -> None:
    model.ir_version = rng.choice((0, 1, 3, 4, 8, 10, 12, 99, 1 << 62, -1))


def _function(name: str, calls: Sequence[str], opset: int) -> onnx.FunctionProto:
    """x -> y through calls of other functions, with a Relu where a call is ""."""
    nodes, last = [], "x"
    for index, call in enumerate(calls):
        nodes.append(helper.make_node(call or "Relu", [last], [f"t{index}"], domain="made" if call else ""))
        last = f"t{index}"
    nodes.append(helper.make_node("Identity", [last], ["y"]))
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("made", 1)]
    return helper.make_function("made", name, ["x"], ["y"], nodes, opsets)


def _call(model: onnx.ModelProto, rng: Random, name: str) -> None:
    model.opset_import.append(helper.make_opsetid("made", 1))
    node = _node(model, rng)
    if node.input:
        node.op_type, node.domain = name, "made"
        del node.attribute[:]
        del node.input[1:]


def _opset(model: onnx.ModelProto) -> int:
    return next((item.version for item in model.opset_import if not item.domain), 17)


@_mutator
def _call_a_function(model: onnx.ModelProto, rng: Random) -> None:
    model.functions.append(_function("relu", [""], rng.choice((_opset(model), 13, 17, 20))))
    _call(model, rng, "relu")


@_mutator
def _call_exponentially(model: onnx.ModelProto, rng: Random) -> None:
    """Add functions that each call the previous one twice: a few lines that expand to millions of nodes."""
    depth = rng.choice((4, 22, 40, 200))
    chain = [_function("f0", [""], _opset(model))]
    chain += [_function(f"f{level}", [f"f{level - 1}"] * 2, _opset(model)) for level in range(1, depth)]
    model.functions.extend(chain)
    _call(model, rng, f"f{depth - 1}")


@_mutator
def _call_recursively(model: onnx.ModelProto, rng: Random) -> None:
    model.functions.append(_function("f", [rng.choice(("f", "g"))], _opset(model)))
    model.functions.append(_function("g", ["f"], _opset(model)))
    _call(model, rng, "f")


@_mutator
def _nest_subgraphs(model: onnx.ModelProto, rng: Random) -> None:
    """Add If within If within If, the innermost reading a value from outside."""
    source = rng.choice(_values(model))
    branch = _branch(helper.make_node("Identity", [source], ["inner"]), "inner")
    for level in range(rng.choice((1, 3, 16))):
        node = helper.make_node("If", ["condition"], [f"n{level}"], then_branch=branch, else_branch=branch)
        branch = _branch(node, f"n{level}")
        if branch.ByteSize() > 1 << 20:
            break
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "condition"))
    model.graph.node.append(branch.node[0])


def _branch(node: onnx.NodeProto, output: str) -> onnx.GraphProto:
    return helper.make_graph([node], "branch", [], [helper.make_empty_tensor_value_info(output)])


@_mutator
def _loop_long(model: onnx.ModelProto, rng: Random) -> None:
    """Add a loop with a huge trip count over nothing."""
    inputs = [helper.make_tensor_value_info("i", TensorProto.INT64, []),
              helper.make_tensor_value_info("more", TensorProto.BOOL, [])]  # fmt: skip
    outputs = [helper.make_tensor_value_info("again", TensorProto.BOOL, [])]
    body = helper.make_graph([helper.make_node("Identity", ["more"], ["again"])], "body", inputs, outputs)
    trips = numpy_helper.from_array(np.array(rng.choice((3, 10**4, 1 << 40)), np.int64), "trips")
    model.graph.initializer.extend([trips, numpy_helper.from_array(np.array(rng.random() < 0.5), "go")])
    model.graph.node.append(helper.make_node("Loop", ["trips", "go"], [], "loop", body=body))


@_mutator
def _ask_for_an_endless_constant(model: onnx.ModelProto, rng: Random) -> None:
    """Add a result that is computed from constants, and larger than any memory."""
    sizes = numpy_helper.from_array(np.array([rng.choice(HUGE) for _ in range(rng.randint(1, 3))], np.int64), "sizes")
    model.graph.initializer.append(sizes)
    kind = rng.choice(("ConstantOfShape", "Expand", "Tile", "Range"))
    one = numpy_helper.from_array(np.ones(1, np.float32), "one")
    model.graph.initializer.append(one)
    inputs = {"ConstantOfShape": ["sizes"], "Range": ["sizes", "sizes", "sizes"]}.get(kind, ["one", "sizes"])
    model.graph.node.append(helper.make_node(kind, inputs, ["endless"]))
    model.graph.output.append(helper.make_empty_tensor_value_info("endless"))
    model.graph.output[-1].type.tensor_type.elem_type = TensorProto.FLOAT


@_mutator
def _scramble_metadata(model: onnx.ModelProto, rng: Random) -> None:
    for key in ("pimflow.device", "device", *NAMES[:4]):
        _node(model, rng).metadata_props.add(key=key, value=rng.choice(NAMES))
    model.graph.name = rng.choice(NAMES)
    model.producer_name = rng.choice(NAMES)


def mutants(models: Mapping[str, onnx.ModelProto], seed: int) -> Iterator[tuple[str, Mutant]]:
    """Endless mutants: the name of the model that each was made from, and the mutant."""
    rng = Random(seed)
    while True:
        name = rng.choice(sorted(models))
        yield name, mutant(models[name], rng)
