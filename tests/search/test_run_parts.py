"""The parts of pipelines predicted from the ends of their runs, against the layouts of applied pipelines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pimflow.ir import Pipeline, Refusal
from pimflow.passes import CLEANUP, PassManager
from pimflow.passes.apply_plan import passes_of
from pimflow.passes.rowwise.base import RowwisePass
from pimflow.search.candidates import Candidates
from pimflow.search.layout_parts import layout_parts
from pimflow.search.policy import find_policy
from pimflow.search.price_cache import PriceCache
from pimflow.search.pricing import Pricer
from pimflow.search.run_parts import RunParts, Shares
from support.costs import FakeCosts
from support.graphs import dense_block, fire_modules, inverted_residuals, random_net

GRAPHS = {
    "inverted": inverted_residuals(1),
    "fire": fire_modules(14),
    "dense": dense_block(2),
    **{f"random {seed}": random_net(seed) for seed in range(3)},
}


@pytest.mark.parametrize("name", GRAPHS)
def test_parts_match_the_layout(name: str) -> None:
    graph = PassManager(CLEANUP).run(GRAPHS[name]).graph
    candidates = Candidates(graph, find_policy("auto"), Pricer(graph, FakeCosts(), PriceCache(None, "")))
    decisions = dict.fromkeys(candidate.decisions[0] for candidate in candidates)
    pipelines = [one for one in decisions if isinstance(one, Pipeline) and len(one.stage_rows) > 1]
    runs, compared = RunParts(graph), 0
    for pipeline in pipelines:
        (cut,) = passes_of(pipeline, "gpu")
        assert isinstance(cut, RowwisePass)
        layout = cut.layout(graph)
        end = runs.end(pipeline.run, pipeline.stage_rows, pipeline.bottom_first)
        if isinstance(layout, Refusal) or end is None:
            assert isinstance(layout, Refusal), "every layout can be predicted"
            continue
        expected, grid = layout_parts(graph, layout.jobs), end.grid(len(pipeline.run))
        number = {at: index for index, (at, _, _) in enumerate(grid.written)}
        found = [
            (
                node.name,
                stage,
                end.layers[end.place[node.name]].rows[stage],
                {number[source] for source in grid.reads[at]},
            )
            for at, node, stage in grid.written
        ]
        assert found == [
            (part.node.name, part.stage, (part.start, part.stop), set(part.reads)) for part in expected.parts
        ]
        assert grid.complete == expected.complete
        compared += 1
    assert compared >= 10


@pytest.mark.parametrize("name", ["inverted", "dense"])
def test_rows_split_within_stages_match_the_layout(name: str) -> None:
    graph = PassManager(CLEANUP).run(GRAPHS[name]).graph
    candidates = Candidates(graph, find_policy("auto"), Pricer(graph, FakeCosts(), PriceCache(None, "")))
    pipelines = [one for candidate in candidates for one in candidate.decisions if isinstance(one, Pipeline)]
    runs, compared = RunParts(graph), 0
    for pipeline in pipelines:
        counts = tuple((1,) * len(pipeline.stage_rows) if device == "pim" else () for device in pipeline.devices)
        divided = replace(pipeline, host_rows=counts)
        (cut,) = passes_of(divided, "gpu")
        assert isinstance(cut, RowwisePass)
        layout, end = cut.layout(graph), runs.end(pipeline.run, pipeline.stage_rows, pipeline.bottom_first)
        places = end.places(divided, "gpu") if end is not None else None
        if isinstance(layout, Refusal) or places is None:
            continue
        parts = layout_parts(graph, layout.jobs).parts
        for node, where in zip(pipeline.run, places, strict=True):
            if isinstance(where, Shares):
                expected = [(part.device, (part.start, part.stop)) for part in parts if part.node.name == node]
                assert sorted(zip(where.devices, where.rows, strict=True)) == sorted(expected)
                compared += 1
    assert compared >= 10


def test_longer_and_shorter_runs_have_an_end_in_common() -> None:
    graph = PassManager(CLEANUP).run(inverted_residuals(1)).graph
    names = tuple(node.name for node in graph.nodes[:5])
    rows = graph.shape(graph.node(names[-1]).output)[-2]
    runs = RunParts(graph)
    short, long = (runs.end(names[start:], (2, rows - 2), False) for start in (2, 0))
    assert long is not None
    assert short is long
    assert [len(long.grid(size).reads) for size in (3, 5)] == [2 * 3, 2 * 5], "each has only its own parts"
    assert [min(map(min, filter(None, long.grid(size).reads))) for size in (3, 5)] == [0, 0]
    assert runs.end((*names[1:4], names[0], names[4]), (2, rows - 2), False) is None, "not in order"
    assert runs.end(names, (2, rows), False) is None, "these stages have too many rows"
