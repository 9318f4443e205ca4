"""The clean-ups of every compilation, together."""

from __future__ import annotations

from pimflow.ir import Builder
from pimflow.passes import CLEANUP
from support.passes import kinds, run_pass
from support.values import assert_same_values


def test_all_clean_ups_together() -> None:
    assert [step.name for step in CLEANUP] == [
        "remove-identity", "remove-dropout", "fold-constants", "fold-batch-norm", "remove-dead-code",
        "fuse-epilogues", "movement-elimination",
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
