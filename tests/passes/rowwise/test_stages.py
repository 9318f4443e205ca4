"""The rows of a run's nodes by stage, derived backwards from its last node."""

from __future__ import annotations

import pytest

from pimflow.ir import Builder, Graph, MatMul, Pipeline, Refusal
from pimflow.passes import CLEANUP, PassManager
from pimflow.passes.apply_plan import passes_of
from pimflow.passes.rowwise.base import RowwisePass
from pimflow.passes.rowwise.stages import StageRows
from support.graphs import inverted_residuals


def laid_rows(graph: Graph, run: list[str], stage_rows: tuple[int, ...], bottom_first: bool) -> dict[str, list[object]]:
    (cut,) = passes_of(Pipeline(tuple(run), ("gpu",) * len(run), stage_rows, "", bottom_first), "gpu")
    assert isinstance(cut, RowwisePass)
    layout = cut.layout(graph)
    assert not isinstance(layout, Refusal), layout
    rows: dict[str, list[object]] = {name: [] for name in run}
    for job in layout.jobs:
        rows[job.node.name].append((job.start, job.stop))
    return rows


@pytest.mark.parametrize("bottom_first", [False, True])
def test_longer_runs_have_the_rows_of_shorter_ones(bottom_first: bool) -> None:
    graph = PassManager(CLEANUP).run(inverted_residuals(1)).graph
    names = [node.name for node in graph.nodes][:7]
    last = graph.node(names[-1])
    total = graph.shape(last.output)[-2]
    stage_rows = (3, total - 5, 2)
    found = StageRows(graph, last, stage_rows, bottom_first)
    seen = []
    for first in range(len(names) - 2, -1, -1):
        assert found.extend(graph.node(names[first])) is None
        spans = {name: [span for span in found.fresh(name) if span[0] < span[1]] for name in names[first:]}
        assert spans == laid_rows(graph, names[first:], stage_rows, bottom_first)
        seen.append(spans)
    assert len(seen) == 6
    assert all(longer[name] == seen[0][name] for longer in seen for name in seen[0])


def test_nodes_that_the_run_does_not_read_are_not_part_of_it() -> None:
    graph = PassManager(CLEANUP).run(inverted_residuals(1)).graph
    found = StageRows(graph, graph.nodes[3], (1, graph.shape(graph.nodes[3].output)[-2] - 1), bottom_first=False)
    refusal = found.extend(graph.nodes[-1])
    assert isinstance(refusal, Refusal)
    assert "not read within the run" in refusal.reason


def test_values_that_are_read_whole_have_no_rows_by_stage() -> None:
    build = Builder("whole")
    x = build.relu(build.input(1, 4, 8, 8))
    graph = build.graph(build.op(MatMul(), build.input(1, 4, 6, 8, name="left"), x))
    relu, product = graph.nodes
    refusal = StageRows(graph, product, (2, 4), bottom_first=False).extend(relu)
    assert isinstance(refusal, Refusal)
    assert f"reads {relu.name} whole" in refusal.reason
