"""Models of very many nodes are loaded and run in pieces; pieces never accept what ONNX Runtime refuses as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from pimflow.errors import ModelError
from pimflow.frontend import load_model
from pimflow.onnxio import pieces, session, wire
from pimflow.onnxio.export import SplitModel
from pimflow.onnxio.pieces import LongModel, loads_in_pieces, runs_in_pieces
from support.onnx_models import model_of

X = np.random.default_rng(3).standard_normal((2, 4)).astype(np.float32)


@pytest.fixture(autouse=True)
def _of_two_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_OPERANDS", 2)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The operators of every session."""
    seen: list[list[str]] = []

    def open_session(text: bytes, *rest: Any) -> Any:
        seen.append([node.op_type for node in onnx.ModelProto.FromString(text).graph.node])
        return session.open_session(text, *rest)

    monkeypatch.setattr(pieces, "open_session", open_session)
    return seen


def split(*nodes: onnx.NodeProto, apart: Sequence[str] = (), **constants: Any) -> LongModel:
    model = model_of(nodes, {"x": (2, 4)}, constants=constants)
    for tensor in model.graph.initializer:
        if tensor.name in apart:
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
    return LongModel.of_split(SplitModel.of(model, {name: constants[name] for name in apart}))


def node(kind: str, reads: str, makes: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, reads.split(), makes.split(), **attributes)


CHAIN = (node("Relu", "x", "a"), node("Add", "a w", "b"), node("Mul", "b a", "c"), node("Neg", "c", "y"))


def test_a_session_has_the_nodes_of_one_piece(opened: list[list[str]]) -> None:
    model = split(*CHAIN, w=X, apart=["w"])
    whole = [["Relu"], ["Add"], ["Mul"], ["Neg"]]
    assert loads_in_pieces(model)
    assert opened == whole
    assert runs_in_pieces(model, {"x": X})
    assert opened == 2 * whole


def test_a_short_model_is_not_divided(opened: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_OPERANDS", 6)
    model = split(*CHAIN, w=X)
    assert not loads_in_pieces(model)
    assert not runs_in_pieces(model, {"x": X})
    assert not opened
    monkeypatch.setattr(pieces, "PIECE_OPERANDS", 5)
    assert loads_in_pieces(model)
    assert opened == [["Relu", "Add", "Mul"], ["Neg"]]


def test_what_does_not_fit_a_result_of_another_piece_is_refused() -> None:
    odd = (node("Concat", "x x", "a", axis=1), node("Add", "a w", "y"))
    assert loads_in_pieces(split(*odd, w=np.ones((2, 8), np.float32)))
    assert not loads_in_pieces(split(*odd, w=np.ones((2, 7), np.float32)))
    typed = (node("Shape", "x", "a"), node("Add", "a w", "y"))
    assert not loads_in_pieces(split(*typed, w=X))


@pytest.mark.parametrize(("rows", "runs"), [(8, False), (9, True)])
def test_pieces_run_on_the_values_of_those_before(rows: int, runs: bool) -> None:
    product = (node("Shape", "x", "a"), node("ReduceProd", "a", "b"), node("Gather", "w b", "y"))  # row 2 * 4
    model = split(*product, w=np.ones((rows, 2), np.float32))
    assert loads_in_pieces(model)
    assert runs_in_pieces(model, {"x": X}) == runs


def test_scalars_and_values_of_unknown_shape_pass_from_piece_to_piece() -> None:
    model = split(
        node("ReduceSum", "x", "a", keepdims=0),
        node("NonZero", "x", "b"),
        node("Cast", "b", "c", to=TensorProto.FLOAT),
        node("Mul", "c a", "y"),
    )
    assert loads_in_pieces(model)
    assert runs_in_pieces(model, {"x": X})


BODY = helper.make_graph([node("Relu", "x", "z")], "body", [], [helper.make_empty_tensor_value_info("z")])
UNDIVIDED = {
    "out of order": split(node("Neg", "a", "y"), node("Relu", "x", "a"), node("Add", "x x", "b")),
    "made twice": split(node("Relu", "x", "a"), node("Add", "x x", "a"), node("Neg", "a", "y")),
    "a body": split(node("If", "w", "a", then_branch=BODY, else_branch=BODY), *CHAIN[:3], w=np.array(True)),
    "no such value": split(node("Relu", "x", "a"), node("Add", "a b", "y")),
    "no such output": split(node("Relu", "x", "a"), node("Add", "a a", "b")),
    "a sequence": split(node("SequenceConstruct", "x x", "a"), node("SequenceLength", "a", "y")),
}


@pytest.mark.parametrize("what", list(UNDIVIDED))
def test_other_models_are_left_to_a_session_over_the_whole(what: str) -> None:
    assert not loads_in_pieces(UNDIVIDED[what])
    assert not runs_in_pieces(UNDIVIDED[what], {"x": X})


def test_constants_in_files_are_left_to_a_session_over_the_whole() -> None:
    model = split(*CHAIN, w=X, apart=["w"])
    assert not loads_in_pieces(model._replace(constants={}))


def test_running_out_of_time_is_not_a_refusal() -> None:
    size = 1 << 11
    nodes = [node("Expand", "w s", "v0"), *(node("MatMul", f"v{i} v{i}", f"v{i + 1}") for i in range(64))]
    model = split(*nodes, node("Neg", "v64", "y"), w=np.zeros(1, np.float32), s=np.array([size, size]))
    with pytest.raises(ModelError, match="terminate"):
        runs_in_pieces(model, {"x": X}, limit_s=0.01)


def test_every_form_of_a_model_gives_the_same_pieces(opened: list[list[str]]) -> None:
    model = model_of(CHAIN, {"x": (2, 4)}, constants={"w": X})
    model.graph.value_info.append(helper.make_tensor_value_info("a" * 200, TensorProto.FLOAT, (2, 4)))
    from_bytes = LongModel.of_bytes(model.SerializeToString())
    assert from_bytes is not None
    forms = (from_bytes, LongModel.of_split(SplitModel(model, {})), LongModel.of_graph(load_model(model)))
    opened.clear()
    for long in forms:
        assert not long.proto.graph.node
        assert not long.proto.graph.value_info
        assert [info.name for info in long.proto.graph.output] == ["y"]
        assert runs_in_pieces(long, {"x": X})
    assert opened == 3 * [["Relu"], ["Add"], ["Mul"], ["Neg"]]


@pytest.mark.parametrize("number", [onnx.GraphProto.NODE_FIELD_NUMBER, onnx.GraphProto.NAME_FIELD_NUMBER])
def test_bytes_in_another_order_are_parsed_whole(number: int) -> None:
    """Fields of a message may be in any order, but protobuf writes them by their numbers."""
    model = model_of(CHAIN, {"x": (2, 4)}, constants={"w": X})
    data = model.SerializeToString()
    again = onnx.GraphProto(node=CHAIN[:1]) if number == 1 else onnx.GraphProto(name="before")
    graph = again.SerializeToString()
    model.ClearField("graph")
    whole = onnx.ModelProto.FromString(data).graph.SerializeToString()
    swapped = graph + whole if number > 1 else whole + graph
    parts = (model.SerializeToString(), *wire.field(onnx.ModelProto.GRAPH_FIELD_NUMBER, [swapped]))
    assert LongModel.of_bytes(b"".join(parts)) is None
    assert LongModel.of_bytes(data[:-1]) is None
    assert LongModel.of_bytes(b"no model") is None
