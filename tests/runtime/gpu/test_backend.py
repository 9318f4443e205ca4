"""The GPU as a host: how it finds prices again."""

from __future__ import annotations

import weakref
from dataclasses import replace

import pytest

from pimflow.ir import Builder, Graph, Node
from pimflow.ir.analysis.content import Content, content_of
from pimflow.runtime.gpu import backend
from pimflow.runtime.gpu.backend import GpuHost
from pimflow.targets import load_target


def wide_sum() -> Graph:
    net = Builder("wide")
    x = net.input(64, 64)
    return net.graph(net.elementwise("Sum", *[net.relu(x) for _ in range(40)]))


def gpu() -> GpuHost:
    return GpuHost("gpu", load_target("pimflow").any_gpu)


def test_the_operands_of_a_wide_node_are_read_once_for_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search asks for the price of a node some ten times, in several placements."""
    read: list[str] = []

    def counted(graph: Graph, node: Node) -> Content:
        read.append(node.name)
        return content_of(graph, node)

    monkeypatch.setattr(backend, "content_of", counted)
    graph, host = wide_sum(), gpu()
    node = graph.nodes[-1]
    cost = host.cost(graph, node)
    assert [host.cost(graph, node.placed(region=region)) for region in range(3)] == [cost] * 3
    assert read == [node.name]
    narrow = replace(node, inputs=node.inputs[:35])
    assert host.cost(graph, narrow).time_us < cost.time_us, "another node of this name has its own price"
    assert host.cost(graph, node) == cost


def test_prices_do_not_keep_graphs_alive() -> None:
    graph, host = wide_sum(), gpu()
    host.cost(graph, graph.nodes[-1])
    is_alive = weakref.ref(graph)
    del graph
    assert is_alive() is None
