"""Constants that a model keeps in few bits: through passes, files and cuts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import pimflow
from pimflow.frontend import load_model
from pimflow.ir import Graph
from pimflow.onnxio.export import to_onnx
from pimflow.passes.column_split import ColumnSplit
from support.quantised_models import qdq_model
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


def test_other_elements_are_written_as_they_are(folded: Graph) -> None:
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
    """Operators that ONNX Runtime runs."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    options.log_severity_level = 4
    ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return sorted(node.op_type for node in onnx.load(folder / "optimised.onnx").graph.node)


def test_an_output_folder_runs_in_8_bits_as_the_original_does(tmp_path: Path) -> None:
    compiled = pimflow.compile(qdq_model(), policy="pim", use_cache=False)
    compiled.save(tmp_path / "out")
    for model in ("model.onnx", "original/model.onnx"):
        assert optimised_kinds(str(tmp_path / "out" / model), tmp_path).count("QLinearConv") == 3
    loaded = pimflow.load(tmp_path / "out")
    assert {node.name for node in loaded.graph.nodes} == {node.name for node in compiled.graph.nodes}
    assert loaded.memory.weight_bytes == compiled.memory.weight_bytes < 20_000
    assert loaded.verify(pim="values").passed
