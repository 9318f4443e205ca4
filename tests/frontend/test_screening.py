"""Models that would crash the process in native code are refused first; nodes of a graph have unique names."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from pimflow.errors import ModelError
from pimflow.frontend import load_model
from pimflow.frontend.screening import MAX_NODES
from pimflow.ir import Array
from pimflow.runtime.execute.ort import run_graph
from support.onnx_models import model_of, run_plain, single, with_ranks

INFO = helper.make_tensor_value_info


def refusal(model: onnx.ModelProto) -> str:
    with pytest.raises(ModelError) as caught:
        load_model(model)
    return str(caught.value)


def attention(**heads: Any) -> onnx.ModelProto:
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], name="n", **heads)
    return model_of([node], dict.fromkeys("qkv", (2, 4, 24)), opset=23)


def grouped_attention(heads: int) -> onnx.ModelProto:
    names = ["q", "k", "v", "", "", "lengths", "total"]
    node = helper.make_node(
        "GroupQueryAttention",
        names,
        ["y", "pk", "pv"],
        name="n",
        domain="com.microsoft",
        num_heads=heads,
        kv_num_heads=2,
    )
    constants = {"lengths": np.array([5], np.int32), "total": np.array(6, np.int32)}
    inputs = {"q": (1, 6, 32), "k": (1, 6, 16), "v": (1, 6, 16)}
    return model_of([node], inputs, ["y"], constants, domains={"com.microsoft": 1})


def vectoriser(**attributes: Any) -> onnx.ModelProto:
    given: dict[str, Any] = {"mode": "TF", "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 0}
    given |= {"ngram_counts": [0, 2], "ngram_indexes": [0, 1, 2], "pool_int64s": [5, 6, 7, 8]} | attributes
    node = helper.make_node("TfIdfVectorizer", ["x"], ["y"], name="n", **given)
    model = model_of([node], {"x": (6,)})
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    return model


def recurrent(kind: str, gates: int, shape: tuple[int, int, int], **attributes: Any) -> onnx.ModelProto:
    """A recurrent layer of four units over an empty input."""
    weights = [np.zeros((1, 4 * gates, shape[2]), np.float32), np.zeros((1, 4 * gates, 4), np.float32)]
    return single(kind, shape, weights, hidden_size=4, **attributes)


def stft(window: Array) -> onnx.ModelProto:
    return single("STFT", (1, 128, 1), [np.array(8), window])


def split(size: int) -> onnx.ModelProto:
    model = single("SplitToSequence", (3, 6), [np.array(size)], axis=1)
    model.graph.output[0].type.CopyFrom(helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, None)))
    return model


def computed_split(size: int) -> onnx.ModelProto:
    """A split that is not an initialiser: it is known only once it is computed."""
    model = split(-size)
    model.graph.node.insert(0, helper.make_node("Neg", ["c0"], ["d"]))
    model.graph.node[1].input[1] = "d"
    return model


def in_function(model: onnx.ModelProto) -> onnx.ModelProto:
    """The node of a model as a function, with its constants inside."""
    (node,) = model.graph.node
    inner = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in model.graph.initializer]
    del model.graph.initializer[:]
    made = helper.make_function("d", "f", ["x"], ["y"], [*inner, node], model.opset_import)
    model.functions.append(made)
    model.opset_import.append(helper.make_opsetid("d", 1))
    model.graph.node[0].CopyFrom(helper.make_node("f", ["x"], ["y"], domain="d"))
    return model


def loop(trips: Any, condition: Any = True) -> onnx.ModelProto:
    nodes = [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Neg", ["x"], ["s"])]
    inputs = [INFO("i", TensorProto.INT64, []), INFO("go", TensorProto.BOOL, [])]
    body = helper.make_graph(nodes, "body", inputs, [INFO("on", TensorProto.BOOL, []), INFO("s", 1, [2])])
    made = helper.make_node("Loop", ["trips", "first"], ["y"], "loop", body=body)
    constants = {"trips": np.array(trips, np.int64), "first": np.array(condition, bool)}
    return with_ranks(model_of([made], {"x": (2,)}, constants=constants), 2)


def one_hot(depth: Any, *, in_branch: bool = False) -> onnx.ModelProto:
    """Integers from x; in a branch, the depth is a Constant around it."""
    values = {"values": np.array([0, 1], np.float32)}
    cast = helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64)
    node = helper.make_node("OneHot", ["i", "depth", "values"], ["y"])
    if not in_branch:
        return model_of([cast, node], {"x": (3,)}, constants={**values, "depth": np.array(depth, np.int64)})
    body = helper.make_graph([node], "body", [], [INFO("y", 1, None)])
    constant = numpy_helper.from_array(np.array(depth, np.int64))
    nodes = [
        helper.make_node("Constant", [], ["depth"], value=constant),
        cast,
        helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
        helper.make_node("IsNaN", ["m"], ["p"]),
        helper.make_node("If", ["p"], ["z"], then_branch=body, else_branch=body),
    ]
    return model_of(nodes, {"x": (3,)}, ["z"], values)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (recurrent("GRU", 3, (0, 2, 3)), r"it needs steps, batch and features, but its input is \(0, 2, 3\)"),
        (recurrent("GRU", 3, (5, 0, 3)), "it needs steps, batch and features"),
        (recurrent("GRU", 3, (5, 2, 0)), "it needs steps, batch and features"),
        (recurrent("LSTM", 4, (5, 0, 3)), "it needs a batch"),
        (split(0), r"split is \[0\]; it must be 1 or more"),
        (one_hot([]), r"depth is \[\]; it must have one element"),
        (in_function(split(0)), r"split is \[0\]"),
        (loop([]), r"trip count is \[\]; it must have one element"),
        (loop(3, []), r"condition is \[\]; it must have one element"),
        (one_hot(-3), r"depth is \[-3\]"),
        (one_hot([], in_branch=True), r"depth is \[\]"),
        (computed_split(0), r"split is \[0\]"),
        (with_ranks(stft(np.array(1, np.float32)), 4), r"window \(\) is not a vector"),
        (stft(np.ones(0, np.float32)), r"window \(0,\) is not a vector of numbers"),
    ],
)
def test_operands_on_which_kernels_abort_are_refused(model: onnx.ModelProto, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        load_model(model)


def test_operands_that_kernels_accept() -> None:
    steps = recurrent("LSTM", 4, (0, 2, 3)), recurrent("RNN", 1, (5, 0, 3)), stft(np.ones(16, np.float32))
    splits = split(2), computed_split(2), in_function(split(2))
    for model in (*steps, *splits, loop(0), loop([3]), one_hot(4), one_hot(4, in_branch=True)):
        assert load_model(model).nodes


def test_an_attribute_with_the_wrong_type_is_refused() -> None:
    model = single("LeakyRelu", (2, 3), alpha=0.5)
    model.graph.node[0].attribute[0].type = AttributeProto.INT
    assert "'alpha' is declared as INT but holds FLOAT" in refusal(model)
    model.graph.node[0].attribute[0].type = AttributeProto.UNDEFINED
    assert "'alpha' is declared as nothing but holds FLOAT" in refusal(model)
    made = model_of([helper.make_node("Constant", [], ["c"], value_int=3)], {}, ["c"], dtype=TensorProto.INT64)
    made.graph.node[0].attribute[0].type = AttributeProto.STRING
    assert "'value_int' is declared as STRING but holds INT" in refusal(made)


def test_an_omitted_zero_is_read() -> None:
    model = single("Softmax", (2, 3), axis=0)
    model.graph.node[0].attribute[0].ClearField("i")
    assert [node.kind for node in load_model(model).nodes] == ["Softmax"]


PARTS = helper.make_node("Split", ["x"], ["a", "b", "c"], axis=1, num_outputs=2)

CRASHES = {  # each crashed the process, in ONNX's shape inference or in ONNX Runtime
    "batch_dims": single("GatherND", (2, 4), [np.array([[0, 1]])], batch_dims=-5),
    "blocksize": single("DepthToSpace", (1, 4, 2, 2), blocksize=2**40),
    "axis": single("LayerNormalization", (2, 4), [np.ones(4, np.float32)], axis=2**31),
    "group": single("Conv", (1, 3, 8, 8), [np.ones((4, 3, 3, 3), np.float32)], group=0),
    "kv_num_heads": attention(q_num_heads=3, kv_num_heads=0),
    "q_num_heads": attention(q_num_heads=2**40, kv_num_heads=3),
    "num_heads": grouped_attention(2**40),
    "max_skip_count": vectoriser(max_skip_count=2**31),
    "ngram_indexes": vectoriser(ngram_indexes=[0, 1]),
    "num_outputs": model_of([PARTS], {"x": (2, 6)}, PARTS.output, opset=18),
    "frame_length": single("STFT", (1, 128, 1), [np.array(8), None, np.array(0)]),
}


@pytest.mark.parametrize("what", list(CRASHES))
def test_models_that_crash_native_code_are_refused(what: str) -> None:
    model = CRASHES[what]
    model.graph.node[0].name = "n"
    message = refusal(model)
    assert "'n'" in message
    assert what in message


def test_valid_models_are_not_refused() -> None:
    for model in (attention(q_num_heads=3, kv_num_heads=3), grouped_attention(4), vectoriser()):
        assert load_model(model).nodes[0].name == "n"


def test_results_that_cannot_be_left_out_have_names() -> None:
    parts = ["", "y"]  # each of these ended the process in ONNX Runtime 1.32
    branch = helper.make_graph([helper.make_node(kind, ["x"], [kind]) for kind in ("Relu", "Neg")], "branch", [], [])
    branch.output.extend([INFO("Relu", 1, None), INFO("Neg", 1, None)])
    body = helper.make_graph([helper.make_node("Neg", ["v"], ["w"])], "body", [], [])
    body.input.extend([INFO("i", TensorProto.INT64, []), INFO("go", TensorProto.BOOL, []), INFO("v", 1, None)])
    body.output.extend([INFO("go", TensorProto.BOOL, []), INFO("w", 1, None), INFO("w", 1, None)])
    true = {"p": np.array(True)}
    choice = helper.make_node("If", ["p"], parts, then_branch=branch, else_branch=branch)
    loop = helper.make_node("Loop", ["n", "p", "x"], parts, body=body)
    halves = helper.make_node("Split", ["x"], parts, axis=1)
    for node, constants in ((choice, true), (loop, true | {"n": np.array(2)}), (halves, {})):
        message = refusal(model_of([node], {"x": (2, 4)}, constants=constants, opset=13))
        assert f"'y' ({node.op_type}): result 0 has no name" in message
        node.output[0] = "z"
        load_model(model_of([node], {"x": (2, 4)}, constants=constants, opset=13))


def test_results_that_are_optional_need_no_names() -> None:
    weights = [np.ones((1, 16, 6), np.float32), np.ones((1, 16, 4), np.float32)]
    model = single("LSTM", (3, 1, 6), weights, hidden_size=4)
    model.graph.node[0].output[:] = ["", "y"]
    x = np.arange(18, dtype=np.float32).reshape(3, 1, 6) / 18
    np.testing.assert_array_equal(run_graph(load_model(model), {"x": x})["y"], run_plain(model, {"x": x})["y"])


def test_attributes_in_subgraphs_and_functions_are_checked_too() -> None:
    cut = helper.make_node("DepthToSpace", ["x"], ["z"], name="inner", blocksize=2**40)
    body = helper.make_graph([cut], "body", [], [INFO("z", 1, None)])
    choice = helper.make_node("If", ["p"], ["y"], then_branch=body, else_branch=body)
    model = model_of([choice], {"x": (1, 4, 2, 2), "p": ()})
    model.graph.input[1].type.tensor_type.elem_type = TensorProto.BOOL
    assert "'inner'" in refusal(model)
    called = model_of([helper.make_node("f", ["x"], ["y"], domain="d")], {"x": (1, 4, 2, 2)}, domains={"d": 1})
    called.functions.append(helper.make_function("d", "f", ["x"], ["z"], [cut], called.opset_import))
    assert "'inner'" in refusal(called)


def calling(node: onnx.NodeProto, attribute: str, value: int, ranked: bool) -> onnx.ModelProto:
    """A call of a function with an attribute to which its only node refers; whether ranks of results are declared."""
    node.attribute.add(name=attribute, ref_attr_name="given", type=AttributeProto.INT)
    call = helper.make_node("f", ["x"], node.output, domain="d", given=value)
    model = model_of([call], {"x": (2, 4, 2, 2)}, node.output, opset=18, domains={"d": 1})
    model.functions.append(helper.make_function("d", "f", ["x"], node.output, [node], model.opset_import, ["given"]))
    return with_ranks(model, *[4] * len(node.output)) if ranked else model


@pytest.mark.parametrize("ranked", [False, True])  # without ranks, the checker asks ONNX Runtime before any inlining
@pytest.mark.parametrize(
    ("kind", "results", "attribute", "right", "wrong"),
    [("DepthToSpace", ["y"], "blocksize", 2, 2**40), ("Split", ["y", "z"], "num_outputs", 2, 1)],
)
def test_attributes_given_to_functions_are_checked(
    kind: str, results: list[str], attribute: str, right: int, wrong: int, ranked: bool
) -> None:
    model = calling(helper.make_node(kind, ["x"], results, name="n"), attribute, right, ranked)
    graph, x = load_model(model), np.arange(32, dtype=np.float32).reshape(2, 4, 2, 2)
    for name, array in run_plain(model, {"x": x}).items():
        np.testing.assert_array_equal(run_graph(graph, {"x": x})[name], array)
    message = refusal(calling(helper.make_node(kind, ["x"], results, name="n"), attribute, wrong, ranked))
    assert f"({kind})" in message
    assert attribute in message


def test_two_nodes_of_one_name_are_refused() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="n"), helper.make_node("Neg", ["a"], ["y"], name="n")]
    assert "graph: 2 nodes (Relu, Neg) are named 'n'" in refusal(model_of(nodes, {"x": (2, 3)}))
    called = model_of([helper.make_node("f", ["x"], ["y"], domain="d")], {"x": (2, 3)}, domains={"d": 1})
    called.functions.append(helper.make_function("d", "f", ["x"], ["y"], nodes, called.opset_import))
    assert "function 'f': 2 nodes (Relu, Neg) are named 'n'" in refusal(called)


def test_two_constants_of_one_name_are_accepted() -> None:
    values = [np.float32(2), np.float32(3)]
    nodes = [helper.make_node("Constant", [], [f"c{i}"], name="n", value_float=value) for i, value in enumerate(values)]
    nodes += [helper.make_node("Mul", ["x", "c0"], ["a"]), helper.make_node("Add", ["a", "c1"], ["y"])]
    model = model_of(nodes, {"x": (2, 3)})
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert (run_plain(model, {"x": x})["y"] == 2 * x + 3).all()
    np.testing.assert_array_equal(run_graph(load_model(model), {"x": x})["y"], 2 * x + 3)


def test_too_many_nodes_are_refused_at_once() -> None:
    large = model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": (2, 3)})
    large.graph.node.MergeFrom([large.graph.node[0]] * MAX_NODES)
    started = time.process_time()
    assert f"the model has {MAX_NODES + 1} nodes" in refusal(large)
    assert time.process_time() - started < 1, "before any of them is checked"
