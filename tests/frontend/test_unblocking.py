"""Blocked channel layouts, which ONNX Runtime's optimiser writes for this CPU, converted back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import pimflow
import pimflow_zoo
from pimflow.frontend import load_model
from pimflow.ir import Array, OnnxOp
from pimflow.onnxio.blocks import BLOCKED, channel_block
from support.onnx_models import model_of
from support.opaque_models import normal

pytestmark = pytest.mark.skipif(not channel_block(), reason="ONNX Runtime has no kernels for blocks on this CPU")
EXPORTED = Path(__file__).parents[1] / "data" / "exported"


def optimised(model: onnx.ModelProto, folder: Path) -> Path:
    """The model as ONNX Runtime writes it with default options."""
    path = folder / "optimised.onnx"
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 4
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return path


def kinds_in_blocks(path: Path) -> set[str]:
    return {node.op_type for node in onnx.load(path).graph.node if node.domain == BLOCKED}


def network() -> onnx.ModelProto:
    """Channels that do not fill whole blocks, all kinds of convolutions, pools, and upsampling."""
    shapes: dict[str, tuple[int, ...]] = {
        "w0": (20, 3, 3, 3),
        "w1": (40, 20, 1, 1),
        "w2": (48, 1, 3, 3),
        "w3": (40, 48, 1, 1),
        "w4": (64, 32, 3, 3),
        "w5": (48, 40, 1, 1),
        "w6": (10, 64, 1, 1),
    }
    weights: dict[str, Array] = {name: np.float32(0.2) * normal(*shape) for name, shape in shapes.items()}
    weights |= {f"b{index}": normal(shapes[f"w{index}"][0]) for index in (0, 2, 6)}
    weights |= {"scales": np.array([1, 1, 2, 2], np.float32), "w7": np.float32(0.2) * normal(64, 88, 1, 1)}
    pads: dict[str, Any] = {"pads": [1] * 4}
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c0"], "c0", strides=[2, 2], **pads),
        helper.make_node("Relu", ["c0"], ["r0"], "r0"),
        helper.make_node("Conv", ["r0", "w1"], ["c1"], "c1"),
        helper.make_node("HardSwish", ["c1"], ["r1"], "r1"),
        helper.make_node("Conv", ["r1", "w5"], ["c5"], "c5"),
        helper.make_node("Conv", ["c5", "w2", "b2"], ["c2"], "c2", group=48, **pads),
        helper.make_node("LeakyRelu", ["c2"], ["r2"], "r2", alpha=0.2),
        helper.make_node("Conv", ["r2", "w3"], ["c3"], "c3"),
        helper.make_node("Add", ["c3", "r1"], ["a3"], "a3"),
        helper.make_node("MaxPool", ["a3"], ["m3"], "m3", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Resize", ["m3", "", "scales"], ["u3"], "u3", nearest_mode="floor",
                         coordinate_transformation_mode="asymmetric"),
        helper.make_node("Concat", ["u3", "r2"], ["k"], "k", axis=1),
        helper.make_node("Conv", ["k", "w7"], ["c7"], "c7"),
        helper.make_node("Conv", ["c7", "w4"], ["c4"], "c4", group=2, **pads),
        helper.make_node("GlobalAveragePool", ["c4"], ["g"], "g"),
        helper.make_node("Sigmoid", ["g"], ["s"], "s"),
        helper.make_node("Mul", ["c4", "s"], ["e"], "e"),
        helper.make_node("AveragePool", ["e"], ["p"], "p", kernel_shape=[3, 3], **pads),
        helper.make_node("Conv", ["p", "w6", "b6"], ["y"], "c6"),
    ]  # fmt: skip
    return model_of(nodes, {"x": (1, 3, 32, 32)}, ["y"], weights)


def test_no_blocks_are_left_and_values_are_the_same(tmp_path: Path) -> None:
    path = optimised(network(), tmp_path)
    assert kinds_in_blocks(path) >= {"Conv", "ReorderOutput", "AveragePool", "GlobalAveragePool"}
    plain, before = load_model(path), load_model(network())
    assert {node.kind for node in plain.nodes if isinstance(node.op, OnnxOp)} == {"Identity", "Resize"}
    shapes = [sorted(graph.shape(name) for name in graph.constants) for graph in (plain, before)]
    of_products = [[shape for shape in found if len(shape) == 4] for found in shapes]
    assert of_products[0] == of_products[1], "no channel is padding"
    compiled = pimflow.compile(path, policy="pim", use_cache=False)
    assert compiled.verify(pim="values").passed
    feeds = {"x": normal(1, 3, 32, 32)}
    session = ort.InferenceSession(network().SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(compiled.run(feeds)["y"], session.run(None, feeds)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["zoo:toy", "mobilenet-v3", "detector", "unet"])
def test_times_before_and_after_agree(name: str, tmp_path: Path) -> None:
    given = pimflow_zoo.build("toy") if name == "zoo:toy" else onnx.load(EXPORTED / f"{name}.onnx")
    path = optimised(given, tmp_path)
    assert "Conv" in kinds_in_blocks(path)
    before, after = (pimflow.compile(model, policy="newton++").report for model in (given, path))
    assert after.baseline.time_us == pytest.approx(before.baseline.time_us, rel=0.02)
    assert after.result.time_us == pytest.approx(before.result.time_us, rel=0.02)


def test_a_batch_norm_stays_one(tmp_path: Path) -> None:
    given = onnx.load(EXPORTED / "densenet.onnx")
    kinds = [node.kind for node in load_model(optimised(given, tmp_path)).nodes]
    assert kinds.count("BatchNormalization") == [node.kind for node in load_model(given).nodes].count(
        "BatchNormalization"
    )


def test_channels_that_come_last_are_brought_before_the_others() -> None:
    channels = -(-20 // channel_block()) * channel_block()
    weights = normal(channels, channels, 1, 1)
    nodes = [
        helper.make_node("ReorderInput", ["x"], ["b"], "in", domain=BLOCKED, channels_last=1),
        helper.make_node("Conv", ["b", "w"], ["c"], "conv", domain=BLOCKED),
        helper.make_node("ReorderOutput", ["c"], ["y"], "out", domain=BLOCKED, channels=20, channels_last=1),
    ]
    model = model_of(nodes, {"x": (1, 5, 7, 20)}, ["y"], {"w": weights}, domains={BLOCKED: 1})
    kinds = [node.kind for node in load_model(model).nodes]
    assert kinds == ["Transpose", "Pad", "Conv", "Transpose"], "the rows of weights that nobody reads are removed"
    compiled = pimflow.compile(model, policy="pim", use_cache=False)
    assert [node.kind for node in compiled.graph.nodes if node.device == "pim"] == ["Conv"]
    assert compiled.verify(pim="values").passed


def test_unknown_readers_of_blocks_keep_them(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("ReorderInput", ["x"], ["b"], "in", domain=BLOCKED),
        helper.make_node("Softmax", ["b"], ["s"], "odd", axis=1),
        helper.make_node("ReorderOutput", ["s"], ["y"], "out", domain=BLOCKED, channels=32),
    ]
    model = model_of(nodes, {"x": (1, 32, 5, 7)}, ["y"], {}, domains={BLOCKED: 1})
    assert {node.kind for node in load_model(model).nodes} == {"ReorderInput", "Softmax", "ReorderOutput"}
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    assert pimflow.compile(model, use_cache=False).verify().passed
