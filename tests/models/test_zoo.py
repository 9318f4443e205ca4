"""The zoo against torchvision's published figures, and against what a test model must do: depend on its input."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import shape_inference

import pimflow_zoo

SMALL = ("toy", "mobilenet-v2", "efficientnet-b0", "mnasnet-1.0", "resnet-50", "vgg-16")

# torchvision's model pages (number of parameters; batch norms' running statistics are no parameters).
PARAMETERS = {
    "mobilenet-v2": 3_504_872,
    "efficientnet-b0": 5_288_548,
    "efficientnet-b6": 43_040_704,
    "mnasnet-1.0": 4_383_312,
    "resnet-50": 25_557_032,
    "vgg-16": 138_357_544,
}
# torchvision's model pages ("GFLOPS" there are multiply-accumulates, of convolutions and linear layers).
GIGA_MACS = {
    "mobilenet-v2": 0.30,
    "efficientnet-b0": 0.39,
    "efficientnet-b6": 19.07,
    "mnasnet-1.0": 0.31,
    "resnet-50": 4.09,
    "vgg-16": 15.47,
}
CONVOLUTIONS = {"toy": 3, "mobilenet-v2": 52, "resnet-50": 53, "vgg-16": 13, "mnasnet-1.0": 52}


@pytest.fixture(scope="module", params=pimflow_zoo.names())
def model(request: pytest.FixtureRequest) -> onnx.ModelProto:
    built: onnx.ModelProto = pimflow_zoo.build(request.param)
    return built


def parameters(model: onnx.ModelProto) -> int:
    clip_bounds = {name for node in model.graph.node if node.op_type == "Clip" for name in node.input[1:]}
    running = {name for node in model.graph.node if node.op_type == "BatchNormalization" for name in node.input[3:]}
    trained = [tensor for tensor in model.graph.initializer if tensor.name not in clip_bounds | running]
    return sum(math.prod(tensor.dims) for tensor in trained)


def macs(model: onnx.ModelProto, op_type: str) -> int:
    """Weight elements (but for the bias) times the output positions that each is used at."""
    weights = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    slim = onnx.ModelProto()
    slim.CopyFrom(model)
    for tensor in slim.graph.initializer:
        if len(tensor.dims) > 1:  # shapes are all that inference needs of large tensors
            slim.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    kept = [tensor for tensor in slim.graph.initializer if len(tensor.dims) <= 1]
    del slim.graph.initializer[:]
    slim.graph.initializer.extend(kept)
    inferred = shape_inference.infer_shapes(slim, strict_mode=True, data_prop=True)
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in [*inferred.graph.value_info, *inferred.graph.output]
    }
    total = 0
    for node in model.graph.node:
        if node.op_type == op_type:
            total += math.prod(weights[node.input[1]]) * math.prod(shapes[node.output[0]][2:])
    return total


def logits(model: onnx.ModelProto, images: list[np.ndarray]) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return np.stack([session.run(None, {"input": image})[0][0] for image in images])


def test_every_model_is_valid_onnx(model: onnx.ModelProto) -> None:
    onnx.checker.check_model(model)
    assert model.ir_version <= 10
    assert model.opset_import[0].version <= 20


def test_figures_are_those_of_the_graph(model: onnx.ModelProto) -> None:
    entry = pimflow_zoo.entry(model.graph.name)
    assert entry.parameters == parameters(model)
    assert entry.convolutions == sum(node.op_type == "Conv" for node in model.graph.node)
    assert entry.conv_macs == macs(model, "Conv")
    assert [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim] == [1, 3, entry.size, entry.size]


def test_parameters_and_macs_are_torchvisions(model: onnx.ModelProto) -> None:
    name = model.graph.name
    if name in PARAMETERS:
        assert parameters(model) == PARAMETERS[name]
        assert (macs(model, "Conv") + macs(model, "Gemm")) / 1e9 == pytest.approx(GIGA_MACS[name], abs=0.0101)
    if name in CONVOLUTIONS:
        assert pimflow_zoo.entry(name).convolutions == CONVOLUTIONS[name]


def test_node_and_value_names_are_unique(model: onnx.ModelProto) -> None:
    nodes = [node.name for node in model.graph.node]
    made = [output for node in model.graph.node for output in node.output]
    stored = [tensor.name for tensor in model.graph.initializer]
    assert all(nodes)
    assert len(set(nodes)) == len(nodes)
    assert len({*made, *stored, "input"}) == len(made) + len(stored) + 1
    assert {name for node in model.graph.node for name in node.input} >= set(stored)


def test_mobilenet_v2_has_the_published_shape() -> None:
    model = pimflow_zoo.build("mobilenet-v2")
    assert macs(model, "Conv") / 1e6 == pytest.approx(299.5, abs=0.05)
    weights = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    convolutions = [node for node in model.graph.node if node.op_type == "Conv"]
    assert [weights[node.input[1]] for node in convolutions[:4]] == [
        (32, 3, 3, 3),
        (32, 1, 3, 3),
        (16, 32, 1, 1),
        (96, 16, 1, 1),
    ]
    assert weights[convolutions[-1].input[1]] == (1280, 320, 1, 1)
    assert sum(node.op_type == "Add" for node in model.graph.node) == 10


def test_resnet_50_strides_in_its_3x3_convolutions() -> None:
    model = pimflow_zoo.build("resnet-50")
    strided = [node for node in model.graph.node if node.op_type == "Conv" and _attribute(node, "strides") == [2, 2]]
    by_kernel = [_attribute(node, "kernel_shape") for node in strided]
    assert by_kernel.count([3, 3]) == 3
    assert by_kernel.count([1, 1]) == 3  # the shortcuts
    assert by_kernel.count([7, 7]) == 1


def _attribute(node: onnx.NodeProto, name: str) -> list[int]:
    return list(onnx.helper.get_node_attr_value(node, name))


@pytest.mark.parametrize("name", SMALL)
def test_logits_depend_on_the_input(name: str) -> None:
    size = pimflow_zoo.entry(name).size
    rng = np.random.default_rng(0)
    images = [rng.standard_normal((1, 3, size, size), dtype=np.float32) for _ in range(2)]
    images += [rng.random((1, 3, size, size), dtype=np.float32) for _ in range(2)]
    out = logits(pimflow_zoo.build(name), images)
    assert np.all(out[:2].std(axis=1) > 0.5)
    assert np.all(out[:2].std(axis=1) < 2.0)
    assert np.corrcoef(out[0], out[1])[0, 1] < 0.85
    for first, second in ((0, 1), (2, 3)):
        assert np.abs(out[first] - out[second]).max() > 0.05 * np.abs(out[second]).max()


def test_batch_norm_statistics_matter() -> None:
    model = pimflow_zoo.build("mobilenet-v2")
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            scale, shift, mean, variance = (arrays[name] for name in node.input[1:])
            assert np.all(variance > 0)
            assert variance.std() > 0
            assert scale.std() > 0
            assert shift.std() > 0
            if "stem" not in node.name:
                assert np.abs(mean / np.sqrt(variance)).mean() > 0.01


def test_building_twice_gives_the_same_bytes() -> None:
    first, second = (pimflow_zoo.build("mobilenet-v2").SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


def test_export_writes_what_build_makes(tmp_path: object) -> None:
    path = f"{tmp_path}/toy.onnx"
    pimflow_zoo.export("toy", path)
    assert onnx.load(path) == pimflow_zoo.build("toy")


@pytest.mark.parametrize("alias", ["mobilenetv2", "mobilenet_v2", "MobileNet-V2", "MOBILENET V2"])
def test_case_and_separators_do_not_matter(alias: str) -> None:
    assert pimflow_zoo.entry(alias).name == "mobilenet-v2"


def test_an_unknown_name_says_what_there_is() -> None:
    with pytest.raises(pimflow_zoo.UnknownModel, match="did you mean resnet-50"):
        pimflow_zoo.build("resnet-18")
    with pytest.raises(LookupError, match="it has toy, mobilenet-v2"):
        pimflow_zoo.describe("zzz")


def test_describe_is_one_line_with_the_figures() -> None:
    assert pimflow_zoo.describe("mobilenet-v2") == ("224x224, 52 convolutions, 299.5 M MACs in them, 3.5 M parameters")
    assert all("\n" not in pimflow_zoo.describe(name) for name in pimflow_zoo.names())


def test_names_are_the_documented_ones() -> None:
    assert pimflow_zoo.names() == (
        "toy",
        "mobilenet-v2",
        "efficientnet-b0",
        "efficientnet-b6",
        "mnasnet-1.0",
        "resnet-50",
        "vgg-16",
    )
