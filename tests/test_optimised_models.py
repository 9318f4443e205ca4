"""Models written by ONNX Runtime's own optimiser: the same nodes may leave the host, at the same times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

import pimflow
import pimflow_zoo
from pimflow.frontend import load_model
from pimflow.ir import Conv2d, Elementwise, Gemm, MatMul, OnnxOp
from support.onnx_models import model_of
from support.opaque_models import CONTRIB, normal


def optimised(model: onnx.ModelProto, folder: Path) -> Path:
    """The model as ONNX Runtime writes it at optimisation level "extended"."""
    path = folder / "optimised.onnx"
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 4
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return path


def residual() -> onnx.ModelProto:
    """Two blocks of ResNet-18, with other activations between them, and its head."""
    weights = {name: np.float32(0.05) * normal(64, 64, 3, 3) for name in ("w0", "w1", "w2", "w3")}
    weights |= {"fc": normal(10, 64), "bias": normal(10)}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["c0"], "c0", pads=[1] * 4),
        helper.make_node("Relu", ["c0"], ["r0"], "r0"),
        helper.make_node("Conv", ["r0", "w1"], ["c1"], "c1", pads=[1] * 4),
        helper.make_node("Add", ["c1", "x"], ["a1"], "a1"),
        helper.make_node("Relu", ["a1"], ["r1"], "r1"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "c2", pads=[1] * 4),
        helper.make_node("LeakyRelu", ["c2"], ["r2"], "r2", alpha=0.2),
        helper.make_node("Conv", ["r2", "w3"], ["c3"], "c3", pads=[1] * 4),
        helper.make_node("HardSigmoid", ["c3"], ["r3"], "r3", alpha=0.3, beta=0.4),
        helper.make_node("GlobalAveragePool", ["r3"], ["p"], "p"),
        helper.make_node("Flatten", ["p"], ["f"], "f"),
        helper.make_node("Gemm", ["f", "fc", "bias"], ["g"], "g", transB=1),
        helper.make_node("Tanh", ["g"], ["y"], "t"),
    ]
    return model_of(nodes, {"x": (1, 64, 28, 28)}, ["y"], weights)


@pytest.mark.parametrize("name", ["residual", "zoo:toy", "zoo:mobilenet-v2"])
def test_times_before_and_after_agree(name: str, tmp_path: Path) -> None:
    model = residual() if name == "residual" else pimflow_zoo.build(name.removeprefix("zoo:"))
    path = optimised(model, tmp_path)
    kinds = {node.op_type for node in onnx.load(path).graph.node}
    assert "FusedConv" in kinds, "the optimiser fused nothing"
    before, after = (pimflow.compile(given, policy="newton++").report for given in (model, path))
    assert after.baseline.time_us == pytest.approx(before.baseline.time_us, rel=0.02)
    assert after.baseline.conv_us == pytest.approx(before.baseline.conv_us, rel=0.02)
    assert after.result.time_us == pytest.approx(before.result.time_us, rel=0.02)


def test_an_optimised_model_has_the_same_values(tmp_path: Path) -> None:
    path = optimised(residual(), tmp_path)
    assert not [node for node in load_model(path).nodes if isinstance(node.op, OnnxOp)]
    compiled = pimflow.compile(path, policy="pim")
    assert len([node for node in compiled.graph.nodes if node.device == "pim"]) >= 4
    assert compiled.verify().passed


def fused_conv(**attributes: Any) -> onnx.ModelProto:
    """A fused convolution with a second tensor added before the activation, and no bias."""
    weights = {"w": normal(8, 4, 3, 3)}
    node = helper.make_node("FusedConv", ["x", "w", "", "z"], ["y"], "n", domain=CONTRIB, **attributes)
    return model_of([node], {"x": (1, 4, 9, 9), "z": (1, 8, 7, 7)}, ["y"], weights, domains={CONTRIB: 1})


ACTIVATIONS: list[tuple[str, list[float], Elementwise]] = [
    ("Relu", [], Elementwise("Relu")),
    ("LeakyRelu", [0.25], Elementwise("LeakyRelu", (("alpha", 0.25),))),
    ("Clip", [-0.5, 0.75], Elementwise("Clip", (("max", 0.75), ("min", -0.5)))),
    ("HardSigmoid", [0.25, 0.5], Elementwise("HardSigmoid", (("alpha", 0.25), ("beta", 0.5)))),
]


@pytest.mark.parametrize(("kind", "parameters", "expected"), ACTIVATIONS)
def test_a_fused_convolution_is_imported_as_its_parts(
    kind: str, parameters: list[float], expected: Elementwise
) -> None:
    extra = {"activation_params": parameters} if parameters else {}
    model = fused_conv(activation=kind, **extra)
    graph = load_model(model)
    assert [node.op for node in graph.nodes] == [Conv2d((3, 3)), Elementwise("Add"), expected]
    assert graph.nodes[-1].name == "n"
    assert pimflow.compile(model, policy="pim", use_cache=False).verify().passed


def test_an_activation_that_is_not_known_stays() -> None:
    (node,) = load_model(fused_conv()).nodes[1:]
    assert node.op == Elementwise("Add")
    with pytest.raises(pimflow.PimflowError):
        load_model(fused_conv(activation="SomethingNew"))


def product(left: tuple[int, ...], right: tuple[int, ...], **attributes: Any) -> onnx.ModelProto:
    node = helper.make_node("FusedMatMul", ["x", "w"], ["y"], "n", domain=CONTRIB, **attributes)
    return model_of([node], {"x": left}, ["y"], {"w": normal(*right)}, domains={CONTRIB: 1})


def test_a_fused_product_of_matrices_is_a_gemm() -> None:
    model = product((16, 512), (256, 512), transB=1, alpha=0.125)
    assert [node.op for node in load_model(model).nodes] == [Gemm(0.125, 1.0, False, True)]
    compiled = pimflow.compile(model, policy="pim", use_cache=False)
    assert compiled.graph.node("n").device == "pim"
    assert compiled.verify().passed


def test_a_fused_product_of_others_is_a_matmul_and_its_factor() -> None:
    model = product((2, 16, 512), (512, 256), alpha=0.125)
    graph = load_model(model)
    assert [node.op for node in graph.nodes] == [MatMul(), Elementwise("Mul")]
    (factor,) = (graph.constants[name] for name in graph.node("n").inputs if name in graph.constants)
    assert factor == np.float32(0.125)
    assert pimflow.compile(model, policy="pim", use_cache=False).verify().passed
    assert [node.op for node in load_model(product((2, 16, 512), (512, 256))).nodes] == [MatMul()]


def test_transposes_within_a_batch_stay_fused() -> None:
    (node,) = load_model(product((2, 16, 64), (2, 8, 64), transB=1)).nodes
    assert isinstance(node.op, OnnxOp)


def test_a_fused_gemm_is_imported_as_its_parts() -> None:
    node = helper.make_node(
        "FusedGemm", ["x", "w", "b"], ["y"], "n", domain=CONTRIB, transB=1, activation="LeakyRelu", activation_alpha=0.5
    )
    weights = {"w": normal(256, 512), "b": normal(256)}
    model = model_of([node], {"x": (16, 512)}, ["y"], weights, domains={CONTRIB: 1})
    expected = [Gemm(trans_b=True), Elementwise("LeakyRelu", (("alpha", 0.5),))]
    assert [node.op for node in load_model(model).nodes] == expected
    assert pimflow.compile(model, policy="pim", use_cache=False).verify().passed


@pytest.mark.parametrize(
    ("kind", "opset", "attributes", "expected"),
    [
        ("QuickGelu", 17, {"alpha": 1.0}, ["Sigmoid", "Mul"]),
        ("QuickGelu", 17, {"alpha": 1.5}, ["Mul", "Sigmoid", "Mul"]),
        ("Gelu", 17, {}, ["Mul", "Erf", "Add", "Mul", "Mul"]),
        ("Gelu", 20, {}, ["Gelu"]),
    ],
)
def test_activations_that_were_fused_run_in_the_epilogue(
    kind: str, opset: int, attributes: dict[str, Any], expected: list[str]
) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
        helper.make_node(kind, ["c"], ["y"], "n", domain=CONTRIB, **attributes),
    ]
    model = model_of(nodes, {"x": (1, 4, 9, 9)}, ["y"], {"w": normal(8, 4, 3, 3)}, opset, domains={CONTRIB: 1})
    compiled = pimflow.compile(model, policy="gpu", use_cache=False)
    assert [node.kind for node in compiled.graph.nodes[1:]] == expected
    assert {node.placement.fused_into for node in compiled.graph.nodes[1:]} == {"conv"}
    assert compiled.verify().passed
