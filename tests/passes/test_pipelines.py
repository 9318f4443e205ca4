"""The clean-ups of every compilation, together."""

from __future__ import annotations

from pimflow.ir import Builder, OnnxOp
from pimflow.passes import CLEANUP, PassManager
from support.passes import kinds, run_pass
from support.values import assert_same_values


def test_all_clean_ups_together() -> None:
    assert [step.name for step in CLEANUP] == [
        "remove-dead-code", "fold-no-edges", "fold-constants", "remove-identity", "unfuse-attention",
        "fold-batch-norm", "remove-dead-code", "fuse-epilogues", "movement-elimination",
    ]  # fmt: skip
    build = Builder()
    x = build.onnx("Dropout", build.input(1, 4, 9, 5))
    conv = build.conv(x, 8, 3, 2, name="conv")
    out = build.relu(build.batch_norm(build.onnx("Identity", conv)))
    build.relu(out)
    graph = build.graph(build.conv(out, 3, name="last"))
    clean = graph
    for step in CLEANUP:
        clean = run_pass(step, clean).graph
    assert kinds(clean) == ["Conv", "Relu", "Conv"]
    assert clean.nodes[1].placement.fused_into == "conv"
    assert_same_values(graph, clean)


def test_values_used_only_for_their_shape_are_removed() -> None:
    build = Builder()
    x = build.input(2, 3)
    shape = build.node(OnnxOp("Shape"), (build.relu(x),), [((2,), "int64")])[0]
    graph = build.graph(build.onnx("Expand", build.input(3, name="row"), shape, shape=(2, 3)))
    clean = PassManager(CLEANUP).run(graph).graph
    assert kinds(clean) == ["Expand"]
    assert_same_values(graph, clean)
