"""What would end the process below Python is refused before; nodes of a graph have names of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from pimflow.errors import ModelError
from pimflow.frontend import load_model
from support.onnx_models import model_of, single

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


CRASHES = {  # each ended the process with a signal, in ONNX's shape inference or in ONNX Runtime
    "batch_dims": single("GatherND", (2, 4), [np.array([[0, 1]])], batch_dims=-5),
    "blocksize": single("DepthToSpace", (1, 4, 2, 2), blocksize=2**40),
    "axis": single("LayerNormalization", (2, 4), [np.ones(4, np.float32)], axis=2**31),
    "group": single("Conv", (1, 3, 8, 8), [np.ones((4, 3, 3, 3), np.float32)], group=0),
    "kv_num_heads": attention(q_num_heads=3, kv_num_heads=0),
    "q_num_heads": attention(q_num_heads=2**40, kv_num_heads=3),
    "num_heads": grouped_attention(2**40),
    "max_skip_count": vectoriser(max_skip_count=2**31),
    "ngram_indexes": vectoriser(ngram_indexes=[0, 1]),
    "frame_length": single("STFT", (1, 128, 1), [np.array(8), None, np.array(0)]),
}


@pytest.mark.parametrize("what", list(CRASHES))
def test_what_crashes_below_python_is_refused(what: str) -> None:
    model = CRASHES[what]
    model.graph.node[0].name = "n"
    message = refusal(model)
    assert "'n'" in message
    assert what in message


def test_what_is_right_is_not_refused() -> None:
    for model in (attention(q_num_heads=3, kv_num_heads=3), grouped_attention(4), vectoriser()):
        assert load_model(model).nodes[0].name == "n"


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


def test_two_nodes_of_one_name_are_refused() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="n"), helper.make_node("Neg", ["a"], ["y"], name="n")]
    assert "graph: 2 nodes (Relu, Neg) are named 'n'" in refusal(model_of(nodes, {"x": (2, 3)}))
    called = model_of([helper.make_node("f", ["x"], ["y"], domain="d")], {"x": (2, 3)}, domains={"d": 1})
    called.functions.append(helper.make_function("d", "f", ["x"], ["y"], nodes, called.opset_import))
    assert "function 'f': 2 nodes (Relu, Neg) are named 'n'" in refusal(called)
