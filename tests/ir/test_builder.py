"""`Builder`: its results are named, shaped, seeded and verified."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pimflow.errors import GraphError
from pimflow.ir import Builder, Conv2d, Gemm, OnnxOp, Pool2d, Value, graphs_equal
from pimflow.runtime.execute.ort import run_graph


def test_nodes_are_named_by_kind_and_position_and_values_after_their_nodes() -> None:
    build = Builder("named", opset=20)
    x = build.input(1, 3, 8, 8)
    y = build.relu(build.conv(x, 4, kernel=3, pad=1))
    graph = build.graph(build.add(y, y, name="twice"))
    assert (graph.name, graph.inputs, graph.outputs, graph.opset) == ("named", ("x",), ("twice_out",), {"": 20})
    assert [(node.name, node.inputs, node.output) for node in graph.nodes] == [
        ("conv0", ("x", "weights", "bias"), "conv0_out"),
        ("relu1", ("conv0_out",), "relu1_out"),
        ("twice", ("relu1_out", "relu1_out"), "twice_out"),
    ]


def test_a_name_that_is_taken_gets_a_number() -> None:
    build = Builder()
    inputs = [build.input(2, name="a"), build.input(2, name="a"), build.input(2, name="a_1")]
    made = [build.relu(name, name="same") for name in inputs]
    assert inputs == ["a", "a_1", "a_1_1"]
    assert made == ["same_out", "same_1_out", "same_2_out"]
    assert [build.producer(name).name for name in made] == ["same", "same_1", "same_2"]


LAYERS: dict[str, tuple[Callable[[Builder, str], str], tuple[int, ...]]] = {
    "conv": (lambda build, x: build.conv(x, 6, (3, 2), (2, 1), (1, 0, 2, 1), (2, 1), groups=2), (2, 6, 4, 6)),
    "depthwise": (lambda build, x: build.depthwise(x, stride=2), (2, 4, 4, 3)),
    "matmul": (lambda build, x: build.matmul(x, 9), (2, 4, 8, 9)),
    "batch norm": (lambda build, x: build.batch_norm(x), (2, 4, 8, 6)),
    "clip": (lambda build, x: build.clip(x, -1.0, 1.0), (2, 4, 8, 6)),
    "sigmoid": (lambda build, x: build.sigmoid(x), (2, 4, 8, 6)),
    "tanh": (lambda build, x: build.tanh(x), (2, 4, 8, 6)),
    "mul": (lambda build, x: build.mul(x, build.weights(8, 1)), (2, 4, 8, 6)),
    "any elementwise": (lambda build, x: build.elementwise("LeakyRelu", x, alpha=0.5), (2, 4, 8, 6)),
    "max pool": (lambda build, x: build.max_pool(x, 3, 2, pad=1), (2, 4, 4, 3)),
    "average pool": (lambda build, x: build.average_pool(x, (2, 3)), (2, 4, 7, 4)),
    "global average": (lambda build, x: build.global_average(x), (2, 4, 1, 1)),
    "slice": (lambda build, x: build.slice(x, 2, 1, 8, 3), (2, 4, 3, 6)),
    "split": (lambda build, x: build.split(x, 1, 1, 3)[1], (2, 3, 8, 6)),
    "concat": (lambda build, x: build.concat(1, x, build.weights(2, 1, 8, 6)), (2, 5, 8, 6)),
    "pad": (lambda build, x: build.pad(x, (0, 0, 1, 0), (0, 0, 2, 3), 1.5), (2, 4, 11, 9)),
    "reshape": (lambda build, x: build.reshape(x, 8, 48), (8, 48)),
    "transpose": (lambda build, x: build.transpose(x, 3, 0, 2, 1), (6, 2, 8, 4)),
    "gemm": (lambda build, x: build.gemm(build.reshape(x, 8, 48), 5, bias=(8, 1)), (8, 5)),
    "typed op": (lambda build, x: build.op(Pool2d("max", (2, 2), ceil_mode=True), x), (2, 4, 7, 5)),
    "opaque op": (lambda build, x: build.onnx("Softmax", x, axis=-1), (2, 4, 8, 6)),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_has_the_shape_that_onnx_runtime_gives_it(layer: str) -> None:
    make, shape = LAYERS[layer]
    build = Builder()
    made = make(build, build.input(2, 4, 8, 6))
    assert build.shape(made) == shape
    inputs = {"x": np.random.default_rng(1).standard_normal((2, 4, 8, 6)).astype(np.float32)}
    result = run_graph(build.graph(made), inputs)[made]
    assert (result.shape, result.dtype.name) == (shape, build.value(made).dtype)
    assert 0.01 < float(result.std()) < 3, "weights keep values near 1"


def test_the_seed_alone_decides_the_weights() -> None:
    def layer(seed: int) -> Builder:
        build = Builder(seed=seed)
        build.gemm(build.input(2, 3), 4, bias=(4,))
        return build

    one, same, other = (layer(seed).graph("gemm0_out") for seed in (7, 7, 8))
    assert graphs_equal(one, same)
    assert not graphs_equal(one, other)


def test_constants_hold_the_array_itself() -> None:
    build = Builder()
    array = np.arange(3, dtype=np.int64)
    name = build.constant(array, "indices")
    assert build.value(name) == Value("indices", (3,), "int64")
    graph = build.graph(build.op(Gemm(), build.weights(2, 3), build.weights(3, 2)))
    assert graph.constants[name] is array


def test_nodes_with_several_outputs_and_without_static_shapes() -> None:
    build = Builder()
    x = build.input(6)
    picked, unnamed = build.node(OnnxOp("Twofold"), (x, "", x), [(None, "int64"), ((), "float32")])
    assert (build.value(picked).shape, build.value(unnamed).shape) == (None, ())
    assert build.producer(picked).outputs == ("twofold0_out0", "twofold0_out1")
    count = build.onnx("Shape", picked, shape=(1,), dtype="int64", domain="")
    assert build.value(count) == Value("shape1_out", (1,), "int64")


def test_devices_and_tags_are_put_on_the_node_that_makes_a_value() -> None:
    build = Builder()
    value = build.place(build.relu(build.input(2)), device="pim", choice="auto")
    (node,) = build.graph(value).nodes
    assert (node.device, node.placement.choice) == ("pim", "auto")


def test_one_builder_makes_several_graphs() -> None:
    build = Builder()
    a = build.relu(build.input(2))
    first = build.graph(a)
    second = build.graph(build.tanh(a), a)
    assert [len(graph.nodes) for graph in (first, second)] == [1, 2]
    assert len(build.nodes) == 2


def test_mistakes_are_reported_at_the_faulty_call() -> None:
    build = Builder()
    x = build.input(1, 3, 4, 4)
    with pytest.raises(GraphError, match="no value 'y'"):
        build.relu("y")
    with pytest.raises(GraphError, match="no value 'y'"):
        build.onnx("Softmax", x, "y")
    with pytest.raises(GraphError, match="no node of graph 'graph' makes 'x'"):
        build.producer(x)
    with pytest.raises(GraphError, match="do not have the kernel"):
        build.op(Conv2d((3, 3)), x, build.weights(2, 3, 1, 1))
    with pytest.raises(GraphError, match="opaque"):
        build.op(OnnxOp("Softmax"), x)
    (unknown,) = build.node(OnnxOp("NonZero"), (x,), [(None, "int64")])
    with pytest.raises(GraphError, match="no static shape"):
        build.shape(unknown)
    with pytest.raises(GraphError, match="needs an output"):
        build.graph()
    with pytest.raises(GraphError, match="output 'y' is not made"):
        build.graph("y")
