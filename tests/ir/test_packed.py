"""Low-precision constants of a model: through passes, files and cuts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import pimflow
from pimflow.frontend import load_model
from pimflow.ir import Array, Graph, OnnxOp, Packed
from pimflow.ir.packed import dequantised
from pimflow.onnxio.export import to_onnx
from pimflow.passes.column_split import ColumnSplit
from pimflow.runtime.execute.original import run_original
from support.int8 import needs_exact_bytes
from support.onnx_models import model_of, run_plain
from support.quantised_models import STEP, normed_qdq_model, qdq_model
from support.values import assert_same_values

WEIGHTS = {"one_w", "two_w", "three_w", "fc_w"}


@pytest.fixture(scope="module")
def folded() -> Graph:
    return pimflow.opt(qdq_model(), "cleanup").graph


def test_weights_are_constants_and_stay_int8(folded: Graph) -> None:
    assert set(folded.constants) >= WEIGHTS
    assert {name for name in folded.packed if folded.packed_form(name)} >= WEIGHTS
    sizes = {
        tensor.name: onnx.TensorProto.DataType.Name(tensor.data_type) for tensor in to_onnx(folded).graph.initializer
    }
    assert {sizes[f"{name}_elements"] for name in WEIGHTS} == {"INT8"}
    assert not WEIGHTS & set(sizes)
    assert_same_values(load_model(qdq_model()), folded)


def test_other_element_types_are_written_unchanged(folded: Graph) -> None:
    changed = folded.constants["one_w"] * np.float32(2)
    graph = folded.replace(constants={**folded.constants, "one_w": changed})
    assert graph.packed_form("one_w") is None
    assert graph.packed_form("two_w") is not None
    assert "one_w" in {tensor.name for tensor in to_onnx(graph).graph.initializer}


@pytest.mark.parametrize("node", ["one", "fc"])
def test_a_part_of_the_columns_stays_int8(folded: Graph, node: str) -> None:
    cut = pimflow.opt(folded, [ColumnSplit(node, 16, "newton++", (f"relu_{node}",) if node == "one" else ())]).graph
    assert_same_values(folded, cut)
    parts = [name for name in cut.packed if name.startswith(f"{node}_w") and cut.packed_form(name)]
    assert len(parts) == 2
    assert f"{node}_w" not in {tensor.name.removesuffix("_elements") for tensor in to_onnx(cut).graph.initializer}


def optimised_kinds(path: str, folder: Path) -> list[str]:
    """The operators that ONNX Runtime executes."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    options.log_severity_level = 4
    ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return sorted(node.op_type for node in onnx.load(folder / "optimised.onnx").graph.node)


@needs_exact_bytes
def test_an_output_folder_runs_in_8_bits_like_the_original(tmp_path: Path) -> None:
    compiled = pimflow.compile(qdq_model(), policy="pim", use_cache=False)
    compiled.save(tmp_path / "out")
    for model in ("model.onnx", "original/model.onnx"):
        assert optimised_kinds(str(tmp_path / "out" / model), tmp_path).count("QLinearConv") == 3
    loaded = pimflow.load(tmp_path / "out")
    assert {node.name for node in loaded.graph.nodes} == {node.name for node in compiled.graph.nodes}
    assert loaded.memory.weight_bytes == compiled.memory.weight_bytes < 20_000
    assert loaded.verify(pim="values").passed


@needs_exact_bytes
@pytest.mark.parametrize("opset", [11, 13, 17])
def test_biases_of_32_bits_stay_as_they_are(opset: int, tmp_path: Path) -> None:
    """ONNX Runtime would quantise floats again, below opset 13 along an axis that DequantizeLinear does not have."""
    compiled = pimflow.compile(qdq_model(opset, "com.microsoft"), policy="pim", use_cache=False)
    biases = {name: compiled.graph.packed_form(name) for name in ("one_b", "two_b", "three_b")}
    assert all(packed and packed.operands[0] is not None for packed in biases.values())
    compiled.save(tmp_path / "out")
    assert optimised_kinds(str(tmp_path / "out" / "model.onnx"), tmp_path).count("QLinearConv") == 3
    assert pimflow.load(tmp_path / "out").verify(pim="values").passed


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize(("axis", "scales", "zero"), [(0, 6, None), (1, 5, None), (1, 1, None), (0, 6, 3), (1, 1, 3)])
def test_scaled(dtype: str, axis: int, scales: int, zero: int | None) -> None:
    """ONNX Runtime computes the same array from the operands: the old one times the factors."""
    random = np.random.default_rng(0)
    elements = random.integers(10, 100, (6, 5)).astype(dtype)
    steps = random.uniform(0.5, 2, scales if scales > 1 else ()).astype(np.float32)
    zeros = None if zero is None else np.full(steps.shape, zero, dtype)
    factors = np.linspace(-0.5 if dtype != "uint8" else 0.5, 1, (6, 5)[axis])
    factors[2] = 0
    operands = (elements, steps, zeros)
    packed = Packed(dequantised(elements, steps, zeros, axis), dequantise(axis), operands)
    scaled = packed.scaled(axis, factors)
    assert scaled is not None
    assert scaled.operands[0] is not None
    assert scaled.operands[0].dtype == dtype
    given = [array for array in scaled.operands if array is not None]
    made = dequantised_by_onnx_runtime(given, dict(scaled.op.attributes))
    assert np.array_equal(made, scaled.array)
    wanted = packed.array * np.expand_dims(factors, 1 - axis)
    assert np.abs(made - wanted).max() < 1e-6 * np.abs(wanted).max()


def dequantise(axis: int, **attributes: int) -> OnnxOp:
    return OnnxOp("DequantizeLinear", "", tuple(sorted({"axis": axis, **attributes}.items())))


def dequantised_by_onnx_runtime(operands: list[Array], attributes: dict[str, Any]) -> Array:
    names = [f"operand{index}" for index in range(len(operands))]
    nodes = [
        onnx.helper.make_node("DequantizeLinear", names, ["d"], **attributes),
        onnx.helper.make_node("Add", ["d", "x"], ["y"]),
    ]
    model = model_of(nodes, {"x": ()}, ["y"], dict(zip(names, operands, strict=True)), opset=21)
    return run_plain(model, {"x": np.zeros((), np.float32)})["y"]


@pytest.mark.parametrize(
    ("elements", "scale", "axis", "factors"),
    [
        ([[-128, 1]], [1.0, 1.0], 1, [-1.0, 1.0]),  # 128 does not fit into 8 bits
        ([[5, 1]], [1.0, 1.0], 1, [1e-40, 1e-10]),  # one of the scales would be 0
        ([[5, 1]], [1.0, 1.0], 0, [2.0]),  # scales are along the other axis
    ],
)
def test_unscalable_weights(elements: Any, scale: list[float], axis: int, factors: list[float]) -> None:
    whole, steps = np.array(elements, np.int8), np.array(scale, np.float16)
    packed = Packed(dequantised(whole, steps, None, 1), dequantise(1), (whole, steps))
    assert packed.scaled(axis, factors) is None


def test_blocks_are_neither_scaled_nor_cut() -> None:
    whole, steps = np.ones((2, 4), np.int8), np.ones((2, 2), np.float32)
    packed = Packed(whole.astype(np.float32), dequantise(1, block_size=2), (whole, steps))
    assert packed.scaled(0, [1.0, 2.0]) is None
    assert packed.cut(packed.array[:1], 0, 0, 1) is None


@needs_exact_bytes
def test_a_batch_norm_is_folded_into_scales(tmp_path: Path) -> None:
    """ONNX Runtime would quantise floats again with other scales: a ninth of the results would be off by a step."""
    model = normed_qdq_model()
    compiled = pimflow.compile(model, policy="pim", use_cache=False)
    assert "BatchNormalization" not in {node.kind for node in compiled.graph.nodes}
    assert compiled.verify(pim="values").passed
    compiled.save(tmp_path / "out")
    assert optimised_kinds(str(tmp_path / "out" / "model.onnx"), tmp_path).count("QLinearConv") == 2
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 16, 12, 12)).astype(np.float32)}
    expected, actual = (run_original(each, feeds)["y"] for each in (model, str(tmp_path / "out" / "model.onnx")))
    steps = np.rint(np.abs(actual - expected) / STEP)
    assert steps.max() <= 1
    assert steps.mean() < 0.01
