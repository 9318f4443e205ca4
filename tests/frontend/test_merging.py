"""Nodes that compute the same are merged; those that must stay separate are not."""

from __future__ import annotations

import numpy as np

from pimflow.frontend.merging import SMALL_ELEMENTS, merge_equal_nodes
from pimflow.ir import Array, Builder, Graph
from pimflow.runtime.execute.ort import run_graph


def kinds(graph: Graph) -> list[str]:
    return [node.kind for node in graph.nodes]


def test_chains_over_equal_constants_are_merged_to_their_ends() -> None:
    build = Builder("twice")
    x = build.input(3, 4, name="x")
    ends = []
    for layer in range(2):
        power = build.onnx("Pow", x, build.constant(np.array([2], np.float32), f"two_{layer}"))
        ends.append(build.onnx("Neg", power))
    graph = build.graph(build.onnx("Add", *ends))
    merged = merge_equal_nodes(graph)
    assert kinds(merged) == ["Pow", "Neg", "Add"]
    assert len(set(merged.nodes[-1].inputs)) == 1
    fed = {"x": np.arange(12, dtype=np.float32).reshape(3, 4)}
    name = graph.outputs[0]
    np.testing.assert_array_equal(run_graph(merged, fed)[name], run_graph(graph, fed)[name])


def test_constants_are_the_same_by_type_shape_and_elements() -> None:
    pairs: list[tuple[Array, Array]] = [
        (np.array([2], np.float32), np.array([3], np.float32)),
        (np.array([2], np.float32), np.array([[2]], np.float32)),
        (np.array([2], np.int32), np.array([2], np.int64)),
        (np.ones(SMALL_ELEMENTS + 1, np.float32), np.ones(SMALL_ELEMENTS + 1, np.float32)),
    ]
    for pair in pairs:
        build = Builder("apart")
        results = [build.onnx("Neg", build.constant(array, f"c{index}")) for index, array in enumerate(pair)]
        assert kinds(merge_equal_nodes(build.graph(*(build.onnx("Abs", item) for item in results)))) == [
            "Neg",
            "Neg",
            "Abs",
            "Abs",
        ]


def test_outputs_and_random_ops_are_not_merged() -> None:
    build = Builder("kept")
    x = build.input(2, 2, name="x")
    drawn = [build.onnx("RandomNormalLike", x) for _ in range(2)]
    total = build.onnx("Sub", *drawn)
    graph = build.graph(total, *(build.onnx("Neg", x) for _ in range(2)))
    assert kinds(merge_equal_nodes(graph)) == kinds(graph)


def test_an_attribute_or_the_order_of_operands_tells_nodes_apart() -> None:
    build = Builder("apart")
    x, y = build.input(2, 2, name="x"), build.input(2, 2, name="y")
    made = [build.onnx("Sub", *pair) for pair in ((x, y), (y, x))]
    made += [build.onnx("Softmax", x, axis=axis) for axis in (0, 1)]
    graph = build.graph(*(build.onnx("Neg", item) for item in made))
    assert kinds(merge_equal_nodes(graph)) == kinds(graph)
