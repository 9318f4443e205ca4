"""Graphs of named jobs with fixed prices, for the tests of the timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pimflow.ir import Builder, Graph
from support.costs import FixedCosts


@dataclass(frozen=True)
class Job:
    """A node, and the jobs that it waits for (none: it reads the graph's input)."""

    name: str
    device: str
    time_us: float
    after: tuple[str, ...] = ()
    region: int | None = 0
    stage: int | None = None


def graph_of(jobs: Sequence[Job]) -> Graph:
    """The jobs as nodes with their names, in the given order; the last one makes the output."""
    build = Builder("jobs")
    x = build.input(1)
    made: dict[str, str] = {}
    for job in jobs:
        value = build.elementwise("Sum", *([made[name] for name in job.after] or [x]), name=job.name)
        made[job.name] = build.place(value, device=job.device, region=job.region, stage=job.stage)
    return build.graph(made[jobs[-1].name])


def costs_of(jobs: Sequence[Job]) -> FixedCosts:
    """The costs that the jobs state."""
    return FixedCosts({job.name: job.time_us for job in jobs})
