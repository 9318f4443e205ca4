"""The nine real topologies in the onnx wheel, with random weights in place of their constant ones.

In those files every weight is a `ConstantOfShape` of 0.02, so outputs do not depend on the input. Here weights are
drawn at He scale, statistics near their neutral values, and the last product is scaled so that the logits
(the input of the Softmax, or the output) have a standard deviation of 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
LIGHT_MODELS = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)
SMALL_LIGHT_MODELS = ("densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet")
"""The models with less than 130 MB of weights."""


def light_path(name: str) -> Path:
    """The file of one of `LIGHT_MODELS`."""
    return FOLDER / f"light_{name}.onnx"


def randomised_light_model(name: str, seed: int) -> onnx.ModelProto:
    """One of `LIGHT_MODELS` with seeded random weights; logits have a standard deviation near 1."""
    model = onnx.load(light_path(name))
    rng = np.random.default_rng(seed)
    weights = _draw(model.graph, rng)
    _calibrate(model, weights, rng)
    return _with_weights(model, weights)


def input_of(model: onnx.ModelProto) -> tuple[str, tuple[int, ...]]:
    """Name and shape of the model's one real input."""
    given = {tensor.name for tensor in model.graph.initializer}
    (info,) = [info for info in model.graph.input if info.name not in given]
    return info.name, tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)


def _draw(graph: onnx.GraphProto, rng: np.random.Generator) -> dict[str, np.ndarray]:
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    filled = {node.output[0]: shapes[node.input[0]] for node in graph.node if node.op_type == "ConstantOfShape"}
    filled |= {tensor.name: tensor.dims for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT}
    readers = defaultdict(list)
    for node in graph.node:
        for position, read in enumerate(node.input):
            readers[read].append((node, position))
    return {name: _weight(next(_uses(readers, name), ("", 0)), tuple(shape), rng) for name, shape in filled.items()}


def _uses(readers: Mapping[str, Sequence[tuple[onnx.NodeProto, int]]], name: str) -> Iterator[tuple[str, int]]:
    """(op_type, position) of each consumer of a value, looking through Unsqueeze and Reshape."""
    for node, position in readers.get(name, ()):
        if node.op_type in ("Unsqueeze", "Reshape"):
            yield from _uses(readers, node.output[0])
        else:
            yield node.op_type, position


def _weight(use: tuple[str, int], shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    noise = rng.standard_normal(shape, dtype=np.float32)
    op_type, position = use
    if len(shape) in (2, 4):
        noise *= np.float32(np.sqrt(2 / np.prod(shape[1:])))
        return noise
    if (op_type, position) == ("BatchNormalization", 4):
        return (1 + 0.2 * np.abs(noise)).astype(np.float32)
    centre = 1.0 if op_type == "Mul" or (op_type, position) == ("BatchNormalization", 1) else 0.0
    return (centre + 0.1 * noise).astype(np.float32)


def _with_weights(model: onnx.ModelProto, weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    """The model with the weights as initialisers (in IR 3 also inputs), without the nodes that made the old ones."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    kept = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    del graph.node[:]
    graph.node.extend(kept)
    read = {name for node in kept for name in node.input}
    for field in (graph.initializer, graph.input):
        items = [item for item in field if item.name in read and item.name not in weights]
        del field[:]
        field.extend(items)
    for name, array in weights.items():
        graph.initializer.append(numpy_helper.from_array(array, name))
        graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, array.shape))
    return made


def _calibrate(model: onnx.ModelProto, weights: dict[str, np.ndarray], rng: np.random.Generator) -> None:
    """Run the model on one random input, node by node, and adjust the weights in place so that the signal neither
    vanishes nor grows.

    Each batch norm gets roughly the statistics of its own input, and the last product is scaled for logits of standard
    deviation 1. Otherwise deep models give (nearly) the same output for every input.
    """
    graph = model.graph
    name, shape = input_of(model)
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer} | weights
    values[name] = rng.standard_normal(shape, dtype=np.float32)
    nodes = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    logits = next((node.input[0] for node in nodes if node.op_type == "Softmax"), graph.output[0].name)
    for node in nodes:
        if node.op_type == "BatchNormalization":
            x = values[node.input[0]]
            mean, deviation = x.mean((0, 2, 3)), x.std((0, 2, 3)) + np.float32(0.1)
            values[node.input[3]][:] = mean + 0.1 * deviation * values[node.input[3]]
            values[node.input[4]][:] *= deviation**2
        _run(model, node, values)
    last = [node for node in nodes if node.op_type in ("Conv", "Gemm")][-1]
    sources = {node.output[0]: node.input[0] for node in nodes if node.op_type in ("Reshape", "Unsqueeze")}
    for name in last.input[1:]:
        weights[sources.get(name, name)] /= np.float32(values[logits].std())


def _run(model: onnx.ModelProto, node: onnx.NodeProto, values: dict[str, np.ndarray]) -> None:
    """Evaluate one node with ONNX Runtime."""
    inputs = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(values[name].dtype), None)
        for name in dict.fromkeys(node.input)
    ]
    outputs = [onnx.helper.make_tensor_value_info(node.output[0], onnx.TensorProto.FLOAT, None)]
    alone = onnx.helper.make_model(
        onnx.helper.make_graph([node], "node", inputs, outputs), opset_imports=model.opset_import, ir_version=8
    )
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 4
    session = ort.InferenceSession(alone.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (values[node.output[0]],) = session.run(None, {name: values[name] for name in node.input})
