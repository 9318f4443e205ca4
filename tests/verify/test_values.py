"""Values compared one by one: errors explained by 16-bit rounding pass, one percent more does not; limited memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import pimflow
from pimflow.frontend import load_model
from pimflow.ir import Array, Builder, Graph
from pimflow.runtime.execute.ort import random_inputs, run_graph
from pimflow.verify import values
from pimflow.verify.outputs import DEFAULT_RTOL
from pimflow.verify.values import compare_values
from support.onnx_models import model_of
from support.values import relative_error


def halves(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).uniform(0.5, 1.5, shape).astype(np.float16)


def normed(groups: int) -> onnx.ModelProto:
    """A convolution and a batch norm: folding rounds the weights once more."""
    constants = {"w": halves(8, 8 // groups, 3, 3) - np.float16(1), **{name: halves(8) for name in "sbmv"}}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], group=groups),
        helper.make_node("BatchNormalization", ["c", *"sbmv"], ["y"]),
    ]
    return model_of(nodes, {"x": (1, 8, 9, 9)}, ["y"], constants, dtype=TensorProto.FLOAT16)


def queried() -> onnx.ModelProto:
    """A value made of constants alone is rounded at every step, in the original too."""
    nodes = [
        helper.make_node("Exp", ["q"], ["e"]),
        helper.make_node("Mul", ["e", "e"], ["c"]),
        helper.make_node("Add", ["x", "c"], ["y"]),
    ]
    return model_of(nodes, {"x": (4, 48)}, ["y"], {"q": halves(4, 48)}, dtype=TensorProto.FLOAT16)


def weight_normed() -> onnx.ModelProto:
    """Weights made of constants that get another shape as well, because on PIM the convolution is a 2-D one."""
    nodes = [
        helper.make_node("Exp", ["q"], ["e"]),
        helper.make_node("Mul", ["e", "s"], ["w"]),
        helper.make_node("Conv", ["x", "w"], ["y"]),
    ]
    constants = {"q": halves(8, 4, 3), "s": halves(8, 1, 1)}
    return model_of(nodes, {"x": (1, 4, 50)}, ["y"], constants, dtype=TensorProto.FLOAT16)


@pytest.mark.parametrize(
    ("model", "policy", "nodes"),
    [(normed(1), "gpu", 1), (normed(8), "gpu", 1), (queried(), "gpu", 1), (weight_normed(), "pim", 3)],
    ids=["conv", "depthwise", "constants", "weights"],
)
def test_constants_rounded_step_by_step(model: onnx.ModelProto, policy: str, nodes: int) -> None:
    compiled = pimflow.compile(model, policy=policy, use_cache=False)
    assert len(compiled.graph.nodes) == nodes
    result = compiled.verify()
    assert result.passed, result.text()
    ((name, array),) = ((name, array) for name, array in compiled.graph.constants.items() if array.ndim > 1)
    wrong = {**compiled.graph.constants, name: array * np.float16(1.01)}
    off = replace(compiled, graph=compiled.graph.replace(constants=wrong)).verify().values
    assert off is not None
    assert off.wrong


def test_rows_of_a_product_with_weights_rounded_once_more() -> None:
    """The rows have no counterpart in the original: the effect is allowed in the first value that has one."""
    nodes = [*normed(8).graph.node, helper.make_node("Relu", ["y"], ["r"]), helper.make_node("Add", ["r", "x"], ["z"])]
    nodes[0].attribute.append(helper.make_attribute("pads", [1, 1, 1, 1]))
    constants = {item.name: numpy_helper.to_array(item) for item in normed(8).graph.initializer}
    model = model_of(nodes, {"x": (1, 8, 9, 9)}, ["z"], constants, dtype=TensorProto.FLOAT16)
    before = load_model(model)
    (conv, *others) = pimflow.opt(model, "fold-batch-norm").graph.nodes
    followers = ", ".join(node.name for node in others)
    split = f"md-dp-split{{node={conv.name} gpu_rows=4 followers=[{followers}]}}"
    after = pimflow.opt(model, f"fold-batch-norm,{split}").graph
    feeds = random_inputs(before, 0)
    _, checked = compare_values(before, after, feeds)
    assert checked.largest_error > DEFAULT_RTOL
    assert not checked.wrong
    wrong = {name: array * array.dtype.type(1.01) for name, array in after.constants.items() if array.ndim > 1}
    _, checked = compare_values(before, after.replace(constants={**after.constants, **wrong}), feeds)
    assert checked.wrong


COUNT, SIZE = 9, 64


def chain() -> Graph:
    build = Builder()
    x = build.input(SIZE, name="x")
    for _ in range(COUNT):
        x = build.sigmoid(x)
    return build.graph(x)


def test_long_models_are_compared_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is only needed for values that one of the runs has not reached yet, not for all values of the model."""
    graph = chain()
    feeds = random_inputs(graph, 0)
    monkeypatch.setattr(values, "MAX_HELD_BYTES", 4 * SIZE)
    outputs, checked = compare_values(graph, graph, feeds)
    assert (checked.checked, checked.largest_error) == (COUNT, 0.0)
    for name, expected in run_graph(graph, feeds).items():
        assert relative_error(outputs[name], expected) < 1e-6


def test_values_in_another_order_need_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The original runs in the order of the rewritten graph."""
    build = Builder()
    x = build.input(SIZE, name="x")
    ends = [build.sigmoid(build.tanh(x)) for _ in range(3)]
    graph = build.graph(*ends)
    turned = graph.replace(nodes=[node for i in (2, 1, 0) for node in graph.nodes[2 * i : 2 * i + 2]])
    monkeypatch.setattr(values, "MAX_HELD_BYTES", 0)
    assert compare_values(graph, turned, random_inputs(graph, 0))[1].checked == 6


def test_recomputed_outputs_are_compared_if_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rewritten graph computes its first value twice, once for a reader and, after the last node, as an output."""
    build = Builder()
    first = build.tanh(build.input(SIZE, name="x"))
    graph = build.graph(build.sigmoid(first), first)
    again, last = graph.nodes
    copied = replace(again, outputs=("copy",), name="copied")
    last = replace(last, inputs=("copy",))
    later = graph.replace(
        nodes=[copied, last, again], values={**graph.values, "copy": replace(graph.value(first), name="copy")}
    )
    for room, count in ((4 * SIZE, 2), (0, 1)):
        monkeypatch.setattr(values, "MAX_HELD_BYTES", room)
        assert compare_values(graph, later, random_inputs(graph, 0))[1].checked == count


def tied(scale: float) -> onnx.ModelProto:
    """A quantised convolution whose sums are requantised by a half: every other one is an exact tie."""
    rng = np.random.default_rng(3)
    constants: dict[str, Array] = {
        "xs": np.array(scale, np.float32),
        "xz": np.array(5, np.uint8),
        "w": rng.integers(-2, 3, (16, 8, 3, 3)).astype(np.int8),
        "ws": np.array(0.1, np.float32),
        "wz": np.array(0, np.int8),
        "ys": np.array(scale * 0.2, np.float32),
        "yz": np.array(128, np.uint8),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["q"]),
        helper.make_node("QLinearConv", ["q", "xs", "xz", "w", "ws", "wz", "ys", "yz"], ["r"], "conv"),
        helper.make_node("DequantizeLinear", ["r", "ys", "yz"], ["y"]),
    ]
    return model_of(nodes, {"x": (1, 8, 9, 9)}, ["y"], constants)


@pytest.mark.parametrize("scale", [0.01, 1 / 3, 0.75])
def test_exact_ties_are_rounded_either_way(scale: float) -> None:
    assert pimflow.compile(tied(scale), policy="pim", use_cache=False).verify().passed


def test_steps_away_from_ties_are_wrong() -> None:
    """A hundred elements, ten of them rounded the other way: as many as one percent may lie anywhere."""
    expected, unrounded = np.arange(100, dtype=np.uint8), np.arange(100) * 0.5
    actual = expected.copy()
    actual[:10] += 1
    at_ties, elsewhere = unrounded + 0.25, unrounded + 0.2
    assert values.are_steps(expected, actual, (at_ties, 0.5))
    assert not values.are_steps(expected, actual, (elsewhere, 0.5))
    assert not values.are_steps(expected, actual, None)
    elsewhere[:9] += 0.05
    assert values.are_steps(expected, actual, (elsewhere, 0.5))
    actual[20] += 2
    assert not values.are_steps(expected, actual, (at_ties, 0.5))
