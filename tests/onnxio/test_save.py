"""Files: reproducible bytes, weights in a data file, paths that cannot be written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from pimflow.frontend import load_model
from pimflow.ir import Graph
from pimflow.ir.placement import Placement
from pimflow.onnxio import save_onnx, to_onnx
from pimflow.onnxio.export import SMALL_TENSOR_BYTES
from pimflow.onnxio.tensors import dtype_code
from pimflow.runtime.execute.ort import random_inputs, run_graph
from support.graphs import inverted_residuals
from support.onnx_models import single

WEIGHTS = np.random.default_rng(0).standard_normal((64, 3, 3, 3)).astype(np.float32)


def small_graph() -> Graph:
    return load_model(single("Conv", (1, 3, 8, 8), [WEIGHTS, WEIGHTS[:, 0, 0, 0].copy()]))


def test_saved_bytes_are_reproducible(tmp_path: Path) -> None:
    graph = small_graph()
    node = replace(graph.nodes[0], placement=Placement("pim"), tags=(("b", "2"), ("a", "1")))
    graph = graph.replace(nodes=[node])
    for name in ("one.onnx", "two.onnx"):
        save_onnx(graph, tmp_path / name)
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"one.onnx", "two.onnx"}


def test_large_weights_go_to_a_data_file(tmp_path: Path) -> None:
    graph = small_graph()
    path = tmp_path / "model.onnx"
    save_onnx(graph, path, single_file_limit_bytes=1000)
    assert {item.name for item in tmp_path.iterdir()} == {"model.onnx", "model.onnx.data"}
    assert path.stat().st_size < 2000
    onnx.checker.check_model(str(path), full_check=True)
    inputs = random_inputs(graph, 0)
    want = run_graph(graph, inputs)["y"]
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, inputs)[0], want)
    again = load_model(path)
    assert isinstance(again.constants["c0"], np.memmap)
    assert again.nodes == graph.nodes
    np.testing.assert_array_equal(run_graph(again, inputs)["y"], want)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bool", "int64", "uint8"])
def test_weights_are_written_as_protobuf_would(dtype: str, tmp_path: Path) -> None:
    large = np.arange(20_000).reshape(4, 5000).astype(dtype)
    constants = [large, large[:0], large[:1]]
    graph = load_model(single("Concat", (1, 5000), constants, dtype=dtype_code(dtype), axis=0))
    save_onnx(graph, tmp_path / "model.onnx")
    assert large.nbytes > SMALL_TENSOR_BYTES
    assert (tmp_path / "model.onnx").read_bytes() == to_onnx(graph).SerializeToString(deterministic=True)


def test_nodes_are_written_as_protobuf_would(tmp_path: Path) -> None:
    """They are kept as bytes while the model is written."""
    graph = inverted_residuals()
    named = [replace(node, name=node.name + "n" * (150 * index)) for index, node in enumerate(graph.nodes)]
    graph = graph.replace(nodes=named)
    save_onnx(graph, tmp_path / "model.onnx")
    model = to_onnx(graph)
    assert len(model.graph.node) > 5
    assert len(model.graph.value_info) > 5
    assert (tmp_path / "model.onnx").read_bytes() == model.SerializeToString(deterministic=True)


def test_outputs_of_unknown_shape_are_written_with_the_rank_that_onnx_infers(tmp_path: Path) -> None:
    graph = load_model(single("NonZero", (2, 4), dtype=dtype_code("int64")))
    assert graph.value("y").shape is None
    save_onnx(graph, tmp_path / "model.onnx")
    onnx.checker.check_model(str(tmp_path / "model.onnx"))
    assert (tmp_path / "model.onnx").read_bytes() == to_onnx(graph).SerializeToString(deterministic=True)
