"""Kernels wait for the operands of their epilogues, wherever these are in the graph, and for nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.errors import GraphError
from pimflow.ir import Graph
from pimflow.runtime.epilogues import by_kernel, epilogue_reads
from pimflow.runtime.timeline import Timeline, build_timeline
from pimflow.targets import load_target
from support.costs import FixedCosts
from support.jobs import Job, costs_of, graph_of

TARGET = load_target("pimflow")
RESIDUAL = (
    Job("conv", "gpu", 10.0),
    Job("other", "pim", 25.0),
    Job("add", "gpu", 0.0, ("conv", "other")),
    Job("relu", "gpu", 0.0, ("add",)),
)


def fused(jobs: tuple[Job, ...], **into: str) -> Graph:
    graph = graph_of(jobs)
    return graph.replace(nodes=[node.placed(fused_into=into.get(node.name)) for node in graph.nodes])


def starts_of(timeline: Timeline) -> dict[str, float]:
    return {event.node: event.start_us for event in timeline.events}


def test_a_kernel_waits_for_the_operands_of_its_epilogue() -> None:
    graph = fused(RESIDUAL, add="conv", relu="conv")
    timeline = build_timeline(graph, TARGET, costs_of(RESIDUAL))
    assert timeline.makespan_us == 35.0
    assert starts_of(timeline) == {"other": 0.0, "conv": 25.0, "add": 35.0, "relu": 35.0}
    apart = build_timeline(fused(RESIDUAL), TARGET, costs_of(RESIDUAL))
    assert apart.makespan_us == 25.0, "with a separate Add, both run at once"


def test_results_of_other_regions_are_available() -> None:
    jobs = tuple(replace(job, region=int(job.name != "other")) for job in RESIDUAL)
    timeline = build_timeline(fused(jobs, add="conv"), TARGET, costs_of(jobs))
    assert timeline.region_us == (25.0, 10.0)


def test_a_kernel_that_waits_for_itself_is_a_bug() -> None:
    jobs = (
        Job("conv", "gpu", 10.0),
        Job("leaves", "pim", 5.0, ("conv",)),
        Job("add", "gpu", 0.0, ("conv", "leaves")),
    )
    with pytest.raises(GraphError, match="'conv' waits for a node that is fused into it"):
        build_timeline(fused(jobs, add="conv"), TARGET, costs_of(jobs))


@st.composite
def chains(draw: st.DrawFn) -> Graph:
    """Kernels of up to three nodes on two devices; each node may add results of other kernels."""
    jobs: list[Job] = []
    into: dict[str, str] = {}
    made: list[str] = []
    for number in range(draw(st.integers(2, 6))):
        read = draw(st.lists(st.sampled_from(made), unique=True, max_size=2)) if made else []
        root = f"k{number}"
        jobs.append(Job(root, draw(st.sampled_from(["gpu", "pim"])), float(draw(st.integers(1, 9))), tuple(read)))
        last = root
        for step in range(draw(st.integers(0, 2))):
            more = draw(st.lists(st.sampled_from(made), unique=True, max_size=2)) if made else []
            name = f"{root}_{step}"
            jobs.append(Job(name, "gpu", 0.0, (last, *more)))
            into[name] = root
            last = name
        made.append(last)
    jobs.append(Job("end", "gpu", 0.0, tuple(made)))
    graph = fused(tuple(jobs), **into)
    free = list(graph.nodes)
    order = []
    while free:  # some other topological order
        waiting = {output for node in free for output in node.outputs}
        ready = [node for node in free if waiting.isdisjoint(node.inputs)]
        order.append(draw(st.sampled_from(ready)))
        free.remove(order[-1])
    return graph.replace(nodes=order)


def lengths(graph: Graph) -> FixedCosts:
    return FixedCosts({node.name: 0.0 if "_" in node.name or node.name == "end" else 3.0 for node in graph.nodes})


@settings(max_examples=60)
@given(chains())
def test_no_kernel_starts_before_its_operands(graph: Graph) -> None:
    timeline = build_timeline(graph, TARGET, lengths(graph))
    starts = starts_of(timeline)
    ends = {event.node: event.end_us for event in timeline.events}
    for node in graph.nodes:
        root = node.placement.fused_into or node.name
        for name in node.inputs:
            producer = graph.producer(name)
            if producer is not None and root not in (producer.name, producer.placement.fused_into):
                assert ends[producer.name] <= starts[root], (node.name, producer.name)


@settings(max_examples=60)
@given(chains())
def test_nodes_are_moved_no_further_than_needed(graph: Graph) -> None:
    reads = epilogue_reads(graph.nodes)
    order = by_kernel(graph.nodes, reads)
    place = {name: index for index, node in enumerate(order) for name in node.outputs}
    assert sorted(node.name for node in order) == sorted(node.name for node in graph.nodes)
    for index, node in enumerate(order):
        assert all(place[name] < index for name in (*node.inputs, *reads.get(node.name, ())) if name in place)
    assert by_kernel(order, reads) is order, "a valid order is not changed"
