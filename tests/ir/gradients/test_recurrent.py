"""Gradients of LSTM, GRU and RNN: float64 against differences, float32 against the operator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pimflow.errors import ModelError
from pimflow.ir import Builder, Graph, OnnxOp
from pimflow.passes.differentiate import Differentiate, training_step
from support.gradients import check_gradients, check_training_form, evaluator, random_floats
from support.values import run_in_ort

STEPS, BATCH, FEATURES, HIDDEN = 4, 2, 3, 5
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrence(
    kind: str,
    dtype: str,
    direction: str = "forward",
    *,
    states: bool = True,
    bias: bool = True,
    lengths: bool = False,
    peepholes: bool = False,
    **given: Any,
) -> Graph:
    """All operands are inputs; all results are outputs."""
    build, directions = Builder(opset=17), 2 if direction == "bidirectional" else 1
    rows, state = GATES[kind] * HIDDEN, (directions, BATCH, HIDDEN)

    def operand(name: str, *shape: int) -> str:
        return build.input(*shape, name=name, dtype=dtype)

    inputs = [operand("x", STEPS, BATCH, FEATURES), operand("w", directions, rows, FEATURES)]
    inputs += [operand("r", directions, rows, HIDDEN), operand("b", directions, 2 * rows) if bias else ""]
    inputs += [build.input(BATCH, name="lengths", dtype="int32") if lengths else ""]
    count = 2 if kind == "LSTM" else 1
    inputs += [operand(f"state{place}", *state) if states else "" for place in range(count)]
    inputs += [operand("p", directions, 3 * HIDDEN)] if peepholes else []
    attributes = tuple(sorted({"hidden_size": HIDDEN, "direction": direction, **given}.items()))
    outputs = [((STEPS, directions, BATCH, HIDDEN), dtype), *[(state, dtype)] * count]
    return build.graph(*build.node(OnnxOp(kind, "", attributes), inputs, outputs))


CASES: list[tuple[str, dict[str, Any]]] = [
    ("LSTM", {}),
    ("LSTM", {"direction": "bidirectional"}),
    ("LSTM", {"direction": "reverse", "states": False, "bias": False}),
    ("GRU", {}),
    ("GRU", {"linear_before_reset": 1, "direction": "bidirectional"}),
    ("GRU", {"linear_before_reset": 1, "states": False, "bias": False}),
    ("GRU", {"linear_before_reset": 1, "states": False}),
    ("RNN", {"direction": "bidirectional", "activations": ("Tanh", "Sigmoid")}),
    ("RNN", {"direction": "reverse", "states": False}),
    ("LSTM", {"peepholes": True, "direction": "bidirectional"}),
    ("LSTM", {"peepholes": True, "states": False, "bias": False, "direction": "reverse"}),
    ("LSTM", {"clip": 0.5, "direction": "bidirectional"}),
    ("LSTM", {"input_forget": 1}),
    ("LSTM", {"peepholes": True, "input_forget": 1, "clip": 0.4}),
    ("GRU", {"clip": 0.3}),
    ("GRU", {"clip": 0.3, "linear_before_reset": 1, "direction": "bidirectional"}),
    ("RNN", {"clip": 0.3, "activations": ("Relu",)}),
]


@pytest.mark.parametrize(("kind", "given"), CASES)
def test_recurrences(kind: str, given: dict[str, Any]) -> None:
    check_gradients(recurrence(kind, "float64", **given))
    check_training_form(recurrence(kind, "float32", **given))


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("read", [0, 1])
def test_a_single_output(kind: str, read: int) -> None:
    """All states, or only the last one."""
    for dtype, check in (("float64", check_gradients), ("float32", check_training_form)):
        graph = recurrence(kind, dtype, "bidirectional")
        (node,) = graph.nodes
        outputs = tuple(name if place == read else "" for place, name in enumerate(node.outputs))
        alone = graph.replace(nodes=[replace(node, outputs=outputs)], outputs=[node.outputs[read]])
        check(alone)


def test_one_step() -> None:
    build = Builder()
    x, w, r = (build.input(*shape, name=name, dtype="float64") for name, shape in STEP.items())
    check_gradients(build.graph(build.onnx("GRU", x, w, r, shape=(1, 1, 2, 5), hidden_size=5)))


STEP = {"x": (1, 2, 3), "w": (1, 15, 3), "r": (1, 15, 5)}


@pytest.mark.parametrize(
    ("kind", "given", "reason"),
    [
        ("GRU", {"layout": 1}, "the batch axis first"),
        ("LSTM", {"activations": ("Tanh", "Sigmoid", "Tanh")}, "with activations Tanh, Sigmoid, Tanh"),
        ("RNN", {"activations": ("Softsign",)}, "with activations Softsign"),
    ],
)
def test_untrainable_layers_have_a_reason(kind: str, given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        training_step(recurrence(kind, "float32", **given), Differentiate(inputs=True))


LENGTHS: list[list[int]] = [[STEPS, 1], [2, 0], [3, 3], [STEPS, STEPS]]


@pytest.mark.parametrize(("kind", "given"), CASES)
def test_sequences_of_several_lengths(kind: str, given: dict[str, Any]) -> None:
    """Results after the end of a sequence, and the last state of an empty one, depend on nothing."""
    exact, graph = (recurrence(kind, dtype, lengths=True, **given) for dtype in ("float64", "float32"))
    for lengths in LENGTHS:
        asked = {"lengths": np.array(lengths, np.int32)}
        check_gradients(exact, asked)
        if kind == "RNN" and 0 in lengths:
            continue  # ONNX Runtime 1.23 leaves the last state of an empty sequence uninitialised
        check_training_form(graph, asked)
        inputs = random_floats(exact, 3)
        expected = run_in_ort(graph, asked | {name: array.astype(np.float32) for name, array in inputs.items()})
        for name, array in evaluator(exact)(asked | inputs).items():
            assert np.abs(array - expected[name]).max() <= 1e-6


def test_known_lengths() -> None:
    """Known lengths of complete sequences cost nothing."""
    graph, nodes = recurrence("GRU", "float64", lengths=True, states=False), []
    inputs = [name for name in graph.inputs if name != "lengths"]
    for lengths in ([STEPS, STEPS], [STEPS, 2]):
        known = graph.replace(inputs=inputs, constants={"lengths": np.array(lengths, np.int32)})
        nodes.append(len(check_gradients(known).graph.nodes))
    plain = training_step(recurrence("GRU", "float64", states=False), Differentiate(inputs=True))
    assert nodes[0] == len(plain.graph.nodes) < nodes[1]


def test_very_long_sequences() -> None:
    build = Builder()
    x, weights, state = build.input(1200, 1, 2), build.weights(1, 4, 2), build.weights(1, 4, 4)
    graph = build.graph(build.onnx("RNN", x, weights, state, shape=(1200, 1, 1, 4), hidden_size=4))
    with pytest.raises(ModelError, match="RNN of 1200 steps: gradients go back through 1024 at most"):
        training_step(graph, Differentiate())
