"""The product of all inputs of LSTM, GRU and RNN, separated from the recurrence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import pimflow
from pimflow.errors import ModelError
from pimflow.frontend import load_model
from pimflow.ir import Array, Refusal
from pimflow.ir.expansion import expand
from pimflow.ir.ops.opaque import PREPARED, OnnxOp
from pimflow.onnxio.export import to_onnx
from support.expansions import check_expansion, reason
from support.onnx_models import model_of
from support.opaque_models import CONTRIB, integers, normal, opaque_model
from support.values import assert_varies

STEPS, BATCH, FEATURES, HIDDEN = 6, 3, 40, 16
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def model(
    op_type: str, direction: str = "forward", beside: dict[str, Array] | None = None, **attributes: Any
) -> onnx.ModelProto:
    """A model of one layer. `beside`: further operands by name, "" for an absent one."""
    directions, gates = 1 + (direction == "bidirectional"), GATES[op_type] * HIDDEN
    small = np.float32(0.3)
    given = {"w": small * normal(directions, gates, FEATURES), "r": small * normal(directions, gates, HIDDEN)}
    given |= beside or {}
    order = ["x", *(name if array.size else "" for name, array in given.items())]
    sizes = (BATCH, STEPS) if attributes.get("layout") else (STEPS, BATCH)
    return opaque_model(
        op_type,
        {"x": (*sizes, FEATURES)},
        {name: array for name, array in given.items() if array.size},
        order,
        attributes.pop("outputs", ("y", "h")),
        hidden_size=HIDDEN,
        direction=direction,
        **attributes,
    )


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_all_directions_have_one_product(op_type: str, direction: str) -> None:
    compiled = check_expansion(model(op_type, direction), ["MatMul", op_type])
    assert compiled.graph.shape(compiled.graph.nodes[0].output)[2] % (GATES[op_type] * HIDDEN) == 0


ABSENT = np.zeros(0, np.float32)
STATES = {"b": normal(1, 8 * HIDDEN), "lengths": np.array([6, 2, 4], np.int32), "h0": normal(1, BATCH, HIDDEN)}
PEEPHOLES = {**STATES, "c0": normal(1, BATCH, HIDDEN), "p": normal(1, 3 * HIDDEN)}
OF_GRU = {"b": normal(1, 6 * HIDDEN), "lengths": ABSENT, "h0": normal(1, BATCH, HIDDEN)}


@pytest.mark.parametrize(
    ("op_type", "beside", "attributes"),
    [
        ("LSTM", PEEPHOLES, {"outputs": ("y", "h", "c")}),
        ("LSTM", {"b": normal(1, 8 * HIDDEN)}, {"clip": 0.5, "activations": ["HardSigmoid", "Tanh", "Softsign"]}),
        ("LSTM", {}, {"outputs": ("", "h"), "input_forget": 1}),
        ("GRU", OF_GRU, {"linear_before_reset": 1}),
        ("GRU", OF_GRU, {"linear_before_reset": 0, "outputs": ("y",)}),
        ("RNN", {"b": normal(1, 2 * HIDDEN)}, {"activations": ["Relu"], "outputs": ("", "h")}),
    ],
)
def test_the_recurrence_keeps_its_other_operands(
    op_type: str, beside: dict[str, Array], attributes: dict[str, Any]
) -> None:
    check_expansion(model(op_type, "forward", beside, **attributes), ["MatMul", op_type])


def test_computed_states(tmp_path: Path) -> None:
    """Also saved and loaded as a folder: ONNX is written, and the compiled model is read back."""
    constants = {"w": normal(1, 64, FEATURES), "r": normal(1, 64, HIDDEN)}
    inputs = {"x": (STEPS, BATCH, FEATURES), "h0": (1, BATCH, HIDDEN), "c0": (1, BATCH, HIDDEN)}
    order = ["x", "w", "r", "", "", "h0", "c0"]
    given = opaque_model("LSTM", inputs, constants, order, ("y", "h", "c"), hidden_size=HIDDEN)
    compiled = check_expansion(given, ["MatMul", "LSTM"])
    compiled.save(tmp_path / "out")
    written = onnx.load(tmp_path / "out" / "model.onnx")
    onnx.checker.check_model(written)
    assert [node.op_type for node in written.graph.node if node.domain] == []
    loaded = pimflow.load(tmp_path / "out")
    assert loaded.graph.nodes == compiled.graph.nodes
    assert isinstance(loaded.graph.nodes[-1].op, OnnxOp)
    assert loaded.graph.nodes[-1].op.domain == PREPARED
    assert loaded.graph.values == compiled.graph.values
    assert loaded.timeline == compiled.timeline
    assert loaded.verify(pim="values").passed


@pytest.mark.parametrize(("dtype", "opset"), [(onnx.TensorProto.FLOAT16, 17), (onnx.TensorProto.BFLOAT16, 22)])
def test_half_precision(dtype: int, opset: int, tmp_path: Path) -> None:
    """ONNX Runtime has no 16-bit EyeLike."""
    narrow = helper.tensor_dtype_to_np_dtype(dtype)
    constants = {"w": normal(1, 64, FEATURES).astype(narrow), "r": normal(1, 64, HIDDEN).astype(narrow)}
    given = opaque_model(
        "LSTM", {"x": (STEPS, BATCH, FEATURES)}, constants, opset=opset, dtype=dtype, hidden_size=HIDDEN
    )
    compiled = pimflow.compile(given, policy="pim", use_cache=False)
    assert [node.kind for node in compiled.graph.nodes] == ["MatMul", "LSTM"]
    compiled.save(tmp_path / "out")
    loaded = pimflow.load(tmp_path / "out")
    assert loaded.graph.nodes == compiled.graph.nodes
    assert loaded.verify(pim="values").passed


def _batches_first(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape under `layout` 1 of an input [steps, batch, ..] or a result [(steps,) directions, batch, ..]."""
    at = shape.index(BATCH) if BATCH in shape else 0
    return (shape[at], *shape[:at], *shape[at + 1 :])


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_batches_first(op_type: str, direction: str) -> None:
    """ONNX Runtime does not support `layout` 1; onnx's reference evaluator is the oracle of the expansion."""
    given = model(op_type, direction, layout=1)
    with pytest.raises(ModelError, match="Batchwise recurrent operations"):
        pimflow.compile(given, use_cache=False)
    graph = load_model(model(op_type, direction))
    (node,) = graph.nodes
    assert isinstance(node.op, OnnxOp)
    first = replace(node.op, attributes=(*node.op.attributes, ("layout", 1)))
    turned = {name: replace(value, shape=_batches_first(graph.shape(name))) for name, value in graph.values.items()}
    values = {**graph.values, **{name: turned[name] for name in ("x", "y", "h")}}
    graph = graph.replace(nodes=[replace(node, op=first)], values=values)
    apart = expand(graph, graph.nodes[0])
    assert not isinstance(apart, Refusal)
    assert [node.kind for node in apart.graph.nodes] == ["MatMul", op_type]
    feeds = {"x": normal(BATCH, STEPS, FEATURES)}
    try:
        expected = ReferenceEvaluator(given).run(None, feeds)
    except (NotImplementedError, ValueError):
        pytest.skip("this version of onnx evaluates no batches first")
    found = ReferenceEvaluator(to_onnx(apart.graph)).run(None, feeds)
    for before, after in zip(expected, found, strict=True):
        assert_varies(before, op_type)
        np.testing.assert_allclose(after, before, atol=1e-5)


def test_the_steps_stay_and_are_priced() -> None:
    compiled = pimflow.compile(model("LSTM"), policy="pim", use_cache=False)
    (row,) = compiled.report.nodes
    assert row.spent.busy_parts_us["gpu"]["launch"] == pytest.approx(2 * STEPS * 5000 / 1365)
    verdict = pimflow.inspect(model("LSTM")).nodes[0]
    assert verdict.leaving_macs == STEPS * BATCH * 4 * HIDDEN * FEATURES == verdict.macs - STEPS * BATCH * 64 * HIDDEN
    assert verdict.verdict.startswith("yes, its product, ")


@pytest.mark.parametrize(("scales", "axis"), [((), 0), ((1,), 1), ((2,), 0), ((64,), 1)])
def test_low_precision_weights_stay_low_precision(scales: tuple[int, ...], axis: int) -> None:
    size = int(np.prod(scales))
    constants: dict[str, Array] = {
        "q": integers(2, 64, FEATURES),
        "scale": np.linspace(0.002, 0.004, size).astype(np.float32).reshape(scales),
        "zero": np.arange(size).astype(np.int8).reshape(scales),
        "r": np.float32(0.3) * normal(2, 64, HIDDEN),
    }
    nodes = [
        onnx.helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["w"], "w", axis=axis),
        onnx.helper.make_node("LSTM", ["x", "w", "r"], ["y"], "n", hidden_size=HIDDEN, direction="bidirectional"),
    ]
    compiled = pimflow.compile(
        model_of(nodes, {"x": (STEPS, 1, FEATURES)}, ["y"], constants), policy="pim", use_cache=False
    )
    assert [node.kind for node in compiled.graph.nodes] == ["MatMul", "LSTM"]
    packed = compiled.graph.packed_form(compiled.graph.nodes[0].inputs[1])
    assert packed is not None
    assert packed.operands[0] is not None
    assert packed.operands[0].dtype == np.int8
    result = compiled.verify(pim="values")
    assert result.passed, result.text()
    assert compiled.verify().max_rel_err < 1e-6


def test_reasons_against_expansion() -> None:
    computed = opaque_model("RNN", {"x": (4, 1, 8), "w": (1, 16, 8)}, {"r": normal(1, 16, 16)}, hidden_size=16)
    assert "weights of its inputs are computed" in reason(computed)
    old = opaque_model(
        "RNN", {"x": (4, 1, 8)}, {"w": normal(1, 16, 8), "r": normal(1, 16, 16)}, opset=8, hidden_size=16
    )
    assert "from opset 9 on" in reason(old)
    wide = {"w": np.zeros((1, 2**14 + 16, 1), np.float32), "r": np.zeros((1, 2**14 + 16, 2**10 * 4 + 4), np.float32)}
    graph = load_model(opaque_model("LSTM", {"x": (1, 1, 1)}, wide, hidden_size=2**12 + 4))
    apart = expand(graph, graph.nodes[0], elements=False)
    assert isinstance(apart, Refusal)
    assert "16400 gates, but ONNX takes products of at most 16384" in apart.reason


def test_dynamically_quantised_layers_stay_whole() -> None:
    """It quantises every step's input and state by their range, and accepts no precomputed product."""
    constants: dict[str, Array] = {
        "w": integers(1, FEATURES, 4 * HIDDEN),
        "r": integers(1, HIDDEN, 4 * HIDDEN),
        **{f"{name}_scale": np.full(1, 0.005, np.float32) for name in "wr"},
        **{f"{name}_zero": np.zeros(1, np.int8) for name in "wr"},
    }
    order = ["x", "w", "r", "", "", "", "", "", "w_scale", "w_zero", "r_scale", "r_zero"]
    inputs = {"x": (STEPS, BATCH, FEATURES)}
    given = opaque_model("DynamicQuantizeLSTM", inputs, constants, order, domain=CONTRIB, hidden_size=HIDDEN)
    assert "its steps multiply in 8 bits, and take no precomputed products" in reason(given)
    compiled = pimflow.compile(given, policy="pim", use_cache=False)
    assert [(node.kind, node.device) for node in compiled.graph.nodes] == [("DynamicQuantizeLSTM", "gpu")]
    assert compiled.verify().passed
