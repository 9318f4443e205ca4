"""Nodes that no output depends on are removed, with their constants."""

from __future__ import annotations

from pimflow.ir import Builder
from pimflow.passes import RemoveDeadCode
from support.passes import run_pass


def test_dead_code_is_removed_with_its_constants() -> None:
    build = Builder()
    x = build.input(1, 4, 6, 5)
    build.input(3, name="unread")
    out = build.conv(x, 4, name="live")
    build.relu(build.conv(x, 4, name="dead"), name="dead too")
    graph = build.graph(out)
    result = run_pass(RemoveDeadCode(), graph)
    assert [node.name for node in result.graph.nodes] == ["live"]
    assert set(result.graph.constants) == set(graph.node("live").inputs[1:])
    assert set(result.graph.values) == {"x", "unread", "live_out", *result.graph.constants}
    assert not run_pass(RemoveDeadCode(), result.graph).changed
