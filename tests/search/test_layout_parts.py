"""Properties of layouts' parts, and the parts that account for all of the time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pimflow.ir import Builder, Graph, Pipeline, Refusal
from pimflow.passes import CLEANUP, PassManager
from pimflow.passes.apply_plan import passes_of
from pimflow.passes.rowwise.base import RowwisePass
from pimflow.search.layout_parts import LayoutParts, layout_parts
from support.graphs import ConvNet, dense_block


def parts_of(graph: Graph, names: list[str], stage_rows: tuple[int, ...]) -> LayoutParts:
    (cut,) = passes_of(Pipeline(tuple(names), ("gpu",) * len(names), stage_rows, ""), "gpu")
    assert isinstance(cut, RowwisePass)
    layout = cut.layout(graph)
    assert not isinstance(layout, Refusal), layout
    return layout_parts(graph, layout.jobs)


def two_layers(size: int = 6) -> Graph:
    net = ConvNet("two")
    return net.graph(net.layer(net.layer(net.input(1, 2, size, size), 4), 4, 3))


def test_a_part_reads_the_parts_that_hold_its_rows() -> None:
    graph = two_layers()
    found = parts_of(graph, [node.name for node in graph.nodes], (2, 2, 2))
    assert [(part.start, part.stop, part.stage) for part in found.parts] == [
        (0, 3, 0),
        (0, 2, 0),
        (3, 5, 1),
        (2, 4, 1),
        (5, 6, 2),
        (4, 6, 2),
    ]
    assert [list(part.reads) for part in found.parts] == [[], [0], [], [0, 2], [], [2, 4]]
    assert found.complete


def test_a_fused_part_belongs_to_the_part_of_its_own_rows() -> None:
    net = ConvNet("fused")
    graph = net.graph(net.layer(net.fused_relu(net.layer(net.input(1, 2, 6, 6), 4)), 4, 3))
    found = parts_of(graph, [node.name for node in graph.nodes], (3, 3))
    assert [part.root for part in found.parts] == [None, 0, None, None, 3, None]
    assert found.complete


@pytest.mark.parametrize("decided", [True, False])
def test_concatenation_along_channels_keeps_decided_places(decided: bool) -> None:
    graph = PassManager(CLEANUP).run(dense_block(2)).graph
    if not decided:
        nodes = (replace(node, placement=replace(node.placement, movement=None)) for node in graph.nodes)
        graph = graph.replace(nodes=nodes)
    names = [node.name for node in graph.nodes][1:6]
    assert any(graph.node(name).kind == "Concat" for name in names)
    assert parts_of(graph, names, (5, 9)).complete == decided


def test_other_movements_are_not_complete() -> None:
    build = Builder("slice")
    x = build.conv(build.input(1, 4, 8, 8), 8)
    graph = PassManager(CLEANUP).run(build.graph(build.relu(build.slice(x, 1, 0, 4)))).graph
    assert not parts_of(graph, [node.name for node in graph.nodes], (4, 4)).complete
