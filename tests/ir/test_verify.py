"""The verifier: a valid graph passes, and each violated rule is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pimflow.errors import GraphError
from pimflow.ir import Concat, Conv2d, Elementwise, Graph, Node, OnnxOp, Value
from pimflow.ir.shapes import infer
from pimflow.ir.verify import verify_graph


def sound() -> Graph:
    values = (
        Value("x", (1, 2, 5, 5)),
        Value("w", (4, 2, 3, 3)),
        Value("a", (1, 4, 3, 3)),
        Value("b", (1, 4, 3, 3)),
        Value("y", (1, 4, 3, 3)),
    )
    return Graph(
        name="g",
        inputs=("x",),
        outputs=("y",),
        nodes=(
            Node(Conv2d((3, 3)), ("x", "w"), ("a",), "conv"),
            Node(Elementwise("Relu"), ("a",), ("b",), "relu"),
            Node(OnnxOp("Softmax"), ("b",), ("y",), "soft"),
        ),
        values={value.name: value for value in values},
        constants={"w": np.zeros((4, 2, 3, 3), np.float32)},
    )


def changed_node(index: int, **fields: Any) -> Graph:
    graph = sound()
    nodes = list(graph.nodes)
    nodes[index] = replace(nodes[index], **fields)
    return graph.replace(nodes=nodes)


def changed_value(key: str, **fields: Any) -> Graph:
    graph = sound()
    return graph.replace(values={**graph.values, key: replace(graph.value(key), **fields)})


def without_value(name: str) -> Graph:
    graph = sound()
    return graph.replace(values={key: value for key, value in graph.values.items() if key != name})


def two_outputs() -> Graph:
    graph = changed_node(1, outputs=("b", "b2"))
    return graph.replace(values={**graph.values, "b2": Value("b2", (1, 4, 3, 3))})


def test_a_valid_graph_passes() -> None:
    verify_graph(sound())


def test_a_value_may_be_an_output_twice() -> None:
    verify_graph(sound().replace(outputs=("y", "y")))  # exporters write `return y, y` like this


BROKEN: dict[str, tuple[Callable[[], Graph], str]] = {
    "undefined input": (lambda: changed_node(1, inputs=("q",)), "'q', which no node makes"),
    "read before made": (lambda: sound().replace(nodes=sound().nodes[::-1]), "before it is made"),
    "duplicate node name": (lambda: changed_node(1, name="conv"), "node name 'conv'"),
    "duplicate producer": (lambda: changed_node(1, outputs=("a",)), "value produced 'a'"),
    "writes an input": (lambda: changed_node(1, outputs=("x",)), "graph input or constant"),
    "writes a constant": (lambda: changed_node(1, outputs=("w",)), "graph input or constant"),
    "output not made": (lambda: sound().replace(outputs=("z",)), "graph output 'z'"),
    "no name": (lambda: changed_node(1, name=""), "no name"),
    "no output": (lambda: changed_node(2, outputs=("",)), "no output"),
    "value missing": (lambda: without_value("b"), "'b', which has no value"),
    "input value missing": (lambda: without_value("x"), "'x' has no value"),
    "constant value missing": (lambda: without_value("w"), "constant 'w' has no value"),
    "value misfiled": (lambda: changed_value("b", name="c"), "filed under 'b'"),
    "constant of another shape": (lambda: changed_value("w", shape=(4, 2, 9)), "constant 'w'"),
    "constant of another type": (lambda: changed_value("w", dtype="float16"), "constant 'w'"),
    "constant that is an input": (lambda: sound().replace(inputs=("x", "w")), "both"),
    "wrong shape": (lambda: changed_value("a", shape=(1, 4, 5, 5)), "'conv'"),
    "wrong type": (lambda: changed_value("b", dtype="int32"), "'relu'"),
    "unknown shape at a typed op": (lambda: changed_value("b", shape=None), "'relu'"),
    "op that does not fit": (lambda: changed_node(0, op=Conv2d((3, 3), groups=2)), "'conv'"),
    "too many outputs": (two_outputs, "one output"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_rule_is_named(what: str) -> None:
    make, words = BROKEN[what]
    graph = make()
    with pytest.raises(GraphError) as caught:
        verify_graph(graph)
    assert words in str(caught.value), str(caught.value)


def test_concat_of_parts_that_differ() -> None:
    graph = sound()
    nodes = [*graph.nodes[:1], Node(Concat(1), ("a", "x"), ("b",), "cat"), graph.nodes[2]]
    with pytest.raises(GraphError, match="'cat'"):
        verify_graph(graph.replace(nodes=nodes))


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        (
            "another op",
            lambda graph: graph.replace(nodes=[replace(graph.nodes[0], op=Conv2d((5, 5))), *graph.nodes[1:]]),
        ),
        ("another shape", lambda graph: graph.replace(values={**graph.values, "b": Value("b", (1, 4, 3, 2))})),
        ("another order", lambda graph: graph.replace(nodes=graph.nodes[::-1])),
        ("another constant", lambda graph: graph.replace(constants={**graph.constants, "w": np.zeros((4, 2, 9))})),
        (
            "another type of a constant",
            lambda graph: graph.replace(values={**graph.values, "w": replace(graph.values["w"], dtype="float16")}),
        ),
        ("a constant as input", lambda graph: graph.replace(inputs=(*graph.inputs, "w"))),
    ],
)
def test_only_new_parts_of_a_verified_graph_are_checked(name: str, changed: Callable[[Graph], Graph]) -> None:
    graph = sound()
    broken = changed(graph)
    verify_graph(graph)
    with pytest.raises(GraphError):
        verify_graph(broken, graph)


def test_a_graph_made_from_a_broken_one_is_checked_completely() -> None:
    broken = changed_node(0, op=Conv2d((5, 5)))
    with pytest.raises(GraphError):
        verify_graph(broken)
    with pytest.raises(GraphError):
        verify_graph(broken.replace(name="again"), broken)


def test_verified_nodes_are_not_typed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = sound()
    verify_graph(graph)
    typed = []

    def seen(op: Any, values: Any) -> Any:
        typed.append(op)
        return infer(op, values)

    monkeypatch.setattr("pimflow.ir.verify.infer", seen)
    nodes = [replace(graph.nodes[0].placed(device="pim")), replace(graph.nodes[1], name="new"), graph.nodes[2]]
    verify_graph(graph.replace(nodes=nodes), graph)
    assert typed == [graph.nodes[1].op]
