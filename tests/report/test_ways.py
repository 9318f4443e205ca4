"""Rows of reports have a node's time in every order of elements, where its device has a choice."""

from __future__ import annotations

from dataclasses import replace

import pytest

import pimflow
from pimflow.codegen.answers import Way
from pimflow.ir import Builder, Graph, Node
from pimflow.onnxio import to_onnx
from pimflow.report.layer import report_layer
from pimflow.report.ways import DeviceWay, device_ways, ways_text
from pimflow.runtime.newton.layer import NewtonLayer
from pimflow.targets import load_target
from support.costs import FakeCosts

TARGET = load_target("pimflow")
FREE = TARGET.with_units(pim=replace(TARGET.pim, any_slot_any_column=True))
TAKES = {
    "a": (Way("library", 4.0, False), Way("im2win", 3.0, True)),
    "b": (Way("library", 5.0, True), Way("im2win", 6.0, False), Way("im2col", 5.5, False)),
    "c": (),
}


class Choosing(FakeCosts):
    """A cost model with alternative ways by node name."""

    def ways(self, graph: Graph, node: Node) -> tuple[Way, ...]:
        return TAKES[node.name]


def convolutions(*names: str, channels: int = 64, size: int = 28) -> Graph:
    build = Builder("convolutions")
    x = build.input(1, channels, size, size)
    for name in names:
        x = build.conv(x, 64, 3, pad=1, name=name)
    return build.graph(x)


@pytest.mark.parametrize(("channels", "size", "way"), [(64, 28, "window order"), (16, 14, "column order")])
def test_a_row_shows_both_orders_as_the_layer_does(channels: int, size: int, way: str) -> None:
    model = to_onnx(convolutions("conv", channels=channels, size=size)).SerializeToString()
    compiled = pimflow.compile(model, target=FREE, policy="pim", use_cache=False, check=False)
    (row,) = compiled.report.nodes
    (node,) = compiled.graph.nodes
    work = compiled.machine.costs.work(compiled.graph, node, "pim")
    layer = report_layer(work, FREE).detail  # type: ignore[arg-type]
    assert isinstance(layer, NewtonLayer)
    assert layer.other_order is not None
    taken, other = row.ways
    assert (taken.way, taken.time_us, taken.taken) == (way, layer.cost.time_us, True)
    assert (other.time_us, other.taken) == (layer.other_order.time_us, False)
    assert {taken.way, other.way} == {"window order", "column order"}
    assert row.why.endswith(f"; on PIM {ways_text(row.ways)}")


@pytest.mark.parametrize(("target", "policy"), [(TARGET, "pim"), (FREE, "newton++"), (FREE, "gpu")])
def test_nothing_is_shown_without_a_choice(target: pimflow.Target, policy: str) -> None:
    model = to_onnx(convolutions("conv")).SerializeToString()
    (row,) = pimflow.compile(model, target=target, policy=policy, use_cache=False, check=False).report.nodes
    assert row.ways == ()
    assert " order" not in row.why


def test_a_ways_time_is_the_sum_over_all_parts() -> None:
    """A part without it counts with its actual way; a node without a choice does not count."""
    graph = convolutions("a", "b", "c")
    found = tuple(device_ways(graph, graph.nodes, "gpu", Choosing()))
    assert found == (
        DeviceWay("gpu", "library", 4.0 + 5.0, True),
        DeviceWay("gpu", "im2win", 3.0 + 6.0, True),
        DeviceWay("gpu", "im2col", 3.0 + 5.5, False),
    )
    assert ways_text(found) == "by library and im2win (library 9.00 us, im2win 9.00 us, im2col 8.50 us)"
    assert tuple(device_ways(graph, graph.nodes[2:], "gpu", Choosing())) == ()
