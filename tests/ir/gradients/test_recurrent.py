"""Gradients of LSTM, GRU and RNN: float64 against differences, float32 against the operator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pimflow.errors import ModelError
from pimflow.ir import Builder, Graph, OnnxOp
from pimflow.passes.differentiate import Differentiate, training_step
from support.gradients import check_gradients, check_training_form

STEPS, BATCH, FEATURES, HIDDEN = 4, 2, 3, 5
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrence(
    kind: str, dtype: str, direction: str = "forward", *, states: bool = True, bias: bool = True, **given: Any
) -> Graph:
    """All operands are inputs; all results are outputs."""
    build, directions = Builder(opset=17), 2 if direction == "bidirectional" else 1
    rows, state = GATES[kind] * HIDDEN, (directions, BATCH, HIDDEN)

    def operand(name: str, *shape: int) -> str:
        return build.input(*shape, name=name, dtype=dtype)

    inputs = [operand("x", STEPS, BATCH, FEATURES), operand("w", directions, rows, FEATURES)]
    inputs += [operand("r", directions, rows, HIDDEN), operand("b", directions, 2 * rows) if bias else "", ""]
    count = 2 if kind == "LSTM" else 1
    inputs += [operand(f"state{place}", *state) for place in range(count) if states]
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
]


@pytest.mark.parametrize(("kind", "given"), CASES)
def test_recurrences(kind: str, given: dict[str, Any]) -> None:
    check_gradients(recurrence(kind, "float64", **given))
    check_training_form(recurrence(kind, "float32", **given))


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("read", [0, 1])
def test_one_result_alone(kind: str, read: int) -> None:
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
        ("LSTM", {"clip": 1.0}, "peepholes, a clip or coupled gates"),
        ("GRU", {"layout": 1}, "batches in front"),
        ("LSTM", {"input_forget": 1}, "peepholes, a clip or coupled gates"),
        ("LSTM", {"activations": ("Tanh", "Sigmoid", "Tanh")}, "with activations Tanh, Sigmoid, Tanh"),
        ("RNN", {"activations": ("Softsign",)}, "with activations Softsign"),
    ],
)
def test_what_is_not_trained_says_why(kind: str, given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        training_step(recurrence(kind, "float32", **given), Differentiate(inputs=True))


def test_sequences_of_several_lengths() -> None:
    graph = recurrence("RNN", "float32", states=False)
    for lengths, fits in (([STEPS] * BATCH, True), ([STEPS, 1], False)):
        (node,) = graph.nodes
        given = graph.replace(
            nodes=[type(node)(node.op, (*node.inputs[:4], "lengths"), node.outputs, node.name)],
            values={**graph.values, "lengths": type(graph.value("x"))("lengths", (BATCH,), "int32")},
            constants={"lengths": np.array(lengths, np.int32)},
        )
        if fits:
            check_training_form(given)
            continue
        with pytest.raises(ModelError, match="several lengths"):
            training_step(given, Differentiate(inputs=True))


def test_very_long_sequences() -> None:
    build = Builder()
    x, weights, state = build.input(1200, 1, 2), build.weights(1, 4, 2), build.weights(1, 4, 4)
    graph = build.graph(build.onnx("RNN", x, weights, state, shape=(1200, 1, 1, 4), hidden_size=4))
    with pytest.raises(ModelError, match="RNN of 1200 steps: 1024 at most are gone back"):
        training_step(graph, Differentiate())
