"""The elementwise nodes that are fused into the kernel of the node before them."""

from __future__ import annotations

from pimflow.ir import Builder, Graph
from pimflow.passes import FuseEpilogues


def fused(graph: Graph, residual: bool = False) -> dict[str, str]:
    tagged = FuseEpilogues(residual).run(graph).graph
    return {node.name: into for node in tagged.nodes if (into := node.placement.fused_into)}


def test_epilogues_that_libraries_fuse() -> None:
    build = Builder()
    x = build.input(1, 4, 6, 5)
    conv = build.conv(x, 4, name="conv")
    swish = build.mul(conv, build.sigmoid(conv, name="sigmoid"), name="swish")
    added = build.relu(build.add(swish, x, name="residual"), name="relu")
    pooled = build.relu(build.global_average(added), name="alone")
    graph = build.graph(pooled)
    assert fused(graph) == {"sigmoid": "conv", "swish": "conv", "relu": "residual"}
    assert fused(graph, residual=True) == dict.fromkeys(["sigmoid", "swish", "residual", "relu"], "conv")


def test_nothing_is_fused_past_a_second_reader() -> None:
    build = Builder()
    conv = build.conv(build.input(1, 4, 6, 5), 4, name="conv")
    relu = build.relu(conv, name="relu")
    assert fused(build.graph(relu)) == {"relu": "conv"}
    assert fused(build.graph(relu, conv)) == {}
    assert fused(build.graph(relu, build.global_average(conv))) == {}


def test_a_value_with_more_readers_than_an_epilogue_has_nodes_is_written() -> None:
    build = Builder()
    conv = build.relu(build.conv(build.input(1, 4, 6, 5), 4, name="conv"), name="relu")
    readers = [build.relu(conv, name=f"reader{index}") for index in range(70)]
    total = readers[0]
    for index, reader in enumerate(readers[1:]):
        total = build.add(total, reader, name=f"sum{index}")
    kernels = fused(build.graph(total))
    assert kernels["relu"] == "conv"
    assert "relu" not in kernels.values()  # a value that 70 kernels read is written by its own kernel


def test_a_broadcast_to_a_larger_shape_is_no_epilogue() -> None:
    build = Builder()
    squeeze = build.conv(build.global_average(build.input(1, 4, 6, 5)), 4, name="squeeze")
    gate = build.sigmoid(squeeze, name="gate")
    graph = build.graph(build.add(gate, build.weights(6, 5), name="spread"))
    assert fused(graph) == {"gate": "squeeze"}


def test_fusion_tags_are_renewed() -> None:
    build = Builder()
    conv = build.conv(build.input(1, 4, 6, 5), 4, name="conv")
    graph = build.graph(build.global_average(conv))
    stale = graph.replace(nodes=[node.placed(fused_into="gone") for node in graph.nodes])
    assert fused(stale) == {}
    assert not FuseEpilogues().run(graph).changed
