"""Values that depend on constants alone are computed once."""

from __future__ import annotations

import numpy as np

from pimflow.ir import Builder, Elementwise, OnnxOp, Pad, Reshape, Slice, Transpose
from pimflow.passes import FoldConstants
from support.passes import kinds, run_pass
from support.relational import attention, random_edges
from support.values import assert_same_values


def test_constants_fold_through_typed_ops() -> None:
    build = Builder()
    weights = build.weights(4, 3, 2)
    folded = build.op(Transpose((2, 0, 1)), weights)
    folded = build.op(Reshape((8, 3)), folded)
    folded = build.op(Slice(0, 1, 6, 2), folded)
    folded = build.op(Pad((1, 0), (0, 1), 0.5), folded)
    folded = build.concat(0, folded, build.weights(1, 4))
    for kind in ("Add", "Sub", "Mul", "Div"):
        folded = build.op(Elementwise(kind), folded, build.weights(4))
    for kind in ("Abs", "Sqrt", "Neg"):
        folded = build.op(Elementwise(kind), folded)
    graph = build.graph(build.add(build.input(5, 4), folded))
    result = run_pass(FoldConstants(), graph)
    assert kinds(result.graph) == ["Add"]
    assert len(result.graph.constants) == 1
    assert_same_values(graph, result.graph, rtol=0)


def test_shapes_of_any_value_fold() -> None:
    build = Builder()
    x = build.input(2, 3, 4)
    for index, attributes in enumerate([(), (("start", 1),), (("end", -1), ("start", -2))]):
        build.node(OnnxOp("Shape", "", attributes), (x,), [((3 - index,), "int64")], f"s{index}")
    first = build.onnx("Expand", build.input(4, name="row"), "s0_out", shape=(2, 3, 4))
    graph = build.graph(build.add(x, first))
    result = run_pass(FoldConstants(), graph)
    assert list(result.graph.constants["s0_out"]) == [2, 3, 4]
    assert kinds(result.graph) == ["Expand", "Add"]


def test_what_is_not_folded() -> None:
    build = Builder()
    out = build.relu(build.weights(3), name="graph_output")
    noise = build.onnx("RandomNormalLike", build.weights(3))
    foreign = build.onnx("Relu", build.weights(3), domain="elsewhere")
    big = build.op(Pad((0,), (100,)), build.weights(3), name="big")
    graph = build.graph(out, build.relu(noise), build.relu(foreign), build.concat(0, big, build.input(3)))
    result = FoldConstants(max_bytes=100).run(graph)
    assert not result.changed
    foreign_note, big_note = result.notes
    assert foreign_note.startswith(f"{build.producer(foreign).name}: ONNX Runtime refuses")
    assert big_note == "big: the result of Pad would take 412 bytes, the limit is 100"


def test_layers_over_learnt_features_are_not_folded() -> None:
    """In a layer whose only input is its graph, the rows are looked up once; all else is computed in each run."""
    layer = attention(random_edges(9, 2, 30))
    (features,) = layer.inputs
    rows = np.ones(layer.shape(features), np.float32)
    learnt = layer.replace(inputs=(), constants={**layer.constants, features: rows})
    result = FoldConstants().run(learnt)
    sums = [[n.kind for n in g.nodes if n.op.is_sparse and n.kind != "GatherRows"] for g in (learnt, result.graph)]
    assert sums[0] == sums[1] != []
    assert any("is computed when the model runs" in note for note in result.notes)
