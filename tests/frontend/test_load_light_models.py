"""Real topologies from the onnx wheel, through the frontend and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from pimflow.frontend import load_model
from pimflow.ir import Conv2d, OnnxOp
from pimflow.ir.verify import verify_graph
from pimflow.onnxio import to_onnx
from pimflow.runtime.execute.ort import random_inputs, run_graph
from support.light_models import LIGHT_MODELS, SMALL_LIGHT_MODELS, light_path, randomised_light_model
from support.onnx_models import run_plain
from support.passes import folded
from support.values import assert_close, relative_error

CONVOLUTIONS = {
    "bvlc_alexnet": 5,
    "densenet121": 121,
    "inception_v1": 57,
    "inception_v2": 69,
    "resnet50": 53,
    "shufflenet": 49,
    "squeezenet": 26,
    "vgg19": 16,
    "zfnet512": 5,
}


@pytest.mark.parametrize("name", LIGHT_MODELS)
def test_topology_is_fully_understood(name: str) -> None:
    graph = folded(load_model(light_path(name)))
    verify_graph(graph)
    assert all(value.shape is not None for value in graph.values.values())
    assert sum(isinstance(node.op, Conv2d) for node in graph.nodes) == CONVOLUTIONS[name]
    opaque = {node.kind for node in graph.nodes if isinstance(node.op, OnnxOp)}
    assert opaque <= {"LRN", "Softmax", "Dropout"}
    assert len(graph.inputs) == 1, "initialisers that old models list as inputs are constants"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if name in ("densenet121", "resnet50") else ())
        for name in SMALL_LIGHT_MODELS
    ],
)
def test_values_and_round_trip(name: str) -> None:
    model = randomised_light_model(name, seed=7)
    graph = load_model(model)
    outputs = []
    for seed in (1, 2):
        inputs = random_inputs(graph, seed)
        (want,) = run_plain(model, inputs).values()
        (got,) = run_graph(graph, inputs).values()
        assert_close(got, want, 1e-6)
        outputs.append(want)
    assert np.abs(outputs[0] - outputs[1]).max() > 1e-2 * np.abs(outputs[0]).max(), "outputs must depend on inputs"

    written = to_onnx(graph)
    onnx.checker.check_model(written)
    again = load_model(written)
    assert again.nodes == graph.nodes
    assert again.values == graph.values
    assert all(np.array_equal(again.constants[key], array) for key, array in graph.constants.items())


CONVERTED = [
    folder
    for folder in sorted((Path(onnx.__file__).parent / "backend" / "test" / "data" / "pytorch-converted").iterdir())
    if "PReLU" not in folder.name or "single" in folder.name  # opset 6 broadcasts that no later opset can express
]


@pytest.mark.parametrize("folder", CONVERTED, ids=lambda path: path.name)
def test_torch_exports(folder: Path) -> None:
    """Small single-layer models, with the inputs that come with them."""
    model = onnx.load(folder / "model.onnx")
    tensor = onnx.TensorProto.FromString((folder / "test_data_set_0" / "input_0.pb").read_bytes())
    if model.opset_import[0].version < 7:
        model = onnx.version_converter.convert_version(model, 13)
    graph = load_model(model)
    inputs = {graph.inputs[0]: numpy_helper.to_array(tensor)}
    want, got = run_plain(model, inputs), run_graph(graph, inputs)
    for name, array in want.items():
        assert relative_error(got[name], array) <= 1e-5
        assert graph.shape(name) == array.shape
