"""The parts of a run's time and energy: shares by hand, and parts that add up to the schedule's own totals."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.codegen.answers import Transfer
from pimflow.ir import Graph, Node
from pimflow.runtime.spending import BOARD, STATIC, event_costs, schedule, shares_us, spending, total
from pimflow.runtime.timeline import Event, build_timeline
from pimflow.targets import Target, load_target
from support.costs import PoweredCosts, Price
from support.jobs import Job, graph_of

TARGET = load_target("pimflow")


@dataclass(frozen=True)
class PartPrice(Price):
    @property
    def energy_parts_mj(self) -> dict[str, float]:
        return {"first": 0.25 * self.energy_mj, "second": 0.75 * self.energy_mj}


@dataclass(frozen=True)
class PartCosts(PoweredCosts):
    """Prices by node name in two parts; PIM's operands cross a link."""

    moved: Mapping[str, Transfer]

    @property
    def target(self) -> Target:
        return TARGET

    def node_cost(self, graph: Graph, node: Node) -> PartPrice:
        return PartPrice(**vars(super().node_cost(graph, node)))

    def time_parts_us(self, graph: Graph, node: Node) -> dict[str, float]:
        time_us = self.times[node.name]
        return {"first": 0.5 * time_us, "second": 0.5 * time_us}

    def transfer(self, graph: Graph, node: Node) -> Transfer | None:
        return self.moved.get(node.name)


def costs_of(jobs: list[Job], moved: Mapping[str, Transfer] | None = None) -> PartCosts:
    return PartCosts({job.name: job.time_us for job in jobs}, moved or {})


def test_an_instant_counts_once_however_many_run() -> None:
    events = [Event("a", "gpu", 0, 10, 0), Event("b", "pim", 2, 8, 0), Event("c", "link", 6, 8, 0), None]
    a = 2 + 4 / 2 + 2 / 3 + 2
    b = 4 / 2 + 2 / 3
    assert shares_us(events) == pytest.approx([a, b, 2 / 3, 0.0])
    assert shares_us([Event("a", "gpu", 0, 0, 0), Event("b", "gpu", 0, 5, 0)]) == [0.0, 5.0]


def test_a_node_by_hand() -> None:
    jobs = [Job("a", "gpu", 6), Job("b", "pim", 2), Job("c", "gpu", 4, ("a", "b"))]
    moved = {"b": Transfer(1.0, 0.0, 0.5, 0.0)}
    costs, graph = costs_of(jobs, moved), graph_of(jobs)
    timeline = build_timeline(graph, TARGET, costs)
    events = event_costs(graph, timeline, costs)
    spent = spending("abc", ((event.event.node, event) for event in events), 100.0, timeline.makespan_us)
    assert timeline.makespan_us == 10
    assert spent["a"].share_parts_us == {"gpu": {"first": 2.25, "second": 2.25}}  # 3 of 6 us next to copy and PIM
    assert spent["b"].share_parts_us == {"transfer": {"load": 0.5}, "pim": {"first": 0.5, "second": 0.5}}
    assert spent["b"].busy_parts_us == {"transfer": {"load": 1.0}, "pim": {"first": 1.0, "second": 1.0}}
    assert spent["b"].energy_parts_mj == {
        STATIC: {BOARD: 15.0}, "transfer": {"load": 0.5}, "pim": {"first": 0.5, "second": 1.5}
    }  # fmt: skip
    assert list(spent["b"].ordered(("gpu", "pim")).energy_parts_mj) == [STATIC, "pim", "transfer"]
    assert total(spent["c"].share_parts_us) == 4


@st.composite
def job_lists(draw: st.DrawFn) -> list[Job]:
    jobs: list[Job] = []
    for index in range(draw(st.integers(1, 9))):
        earlier = [job.name for job in jobs]
        after = draw(st.lists(st.sampled_from(earlier), max_size=3, unique=True)) if earlier else []
        jobs.append(Job(f"j{index}", draw(st.sampled_from(["gpu", "pim"])), draw(st.integers(0, 9)) / 3, tuple(after)))
    return jobs


@given(job_lists(), st.lists(st.integers(0, 4), min_size=4, max_size=4))
@settings(max_examples=100)
def test_parts_add_up_to_the_totals_of_the_schedule(jobs: list[Job], copy: list[int]) -> None:
    load_us, store_us, load_mj, store_mj = (amount / 7 for amount in copy)
    moved = {job.name: Transfer(load_us, store_us, load_mj, store_mj) for job in jobs if job.device == "pim"}
    costs, graph = costs_of(jobs, moved), graph_of(jobs)
    timeline = build_timeline(graph, TARGET, costs)
    events = event_costs(graph, timeline, costs)
    for event in events:
        length_us = event.event.end_us - event.event.start_us
        assert sum(event.time_parts_us.values()) == pytest.approx(length_us, abs=1e-12)
        assert -1e-12 <= event.share_us <= length_us + 1e-12
    names = [job.name for job in jobs]
    named = [(event.event.node, event) for event in events]
    static_mj = timeline.energy_mj[STATIC]
    spent = spending(names, named, static_mj, timeline.makespan_us)
    assert list(spent) == names
    assert sum(total(one.share_parts_us) for one in spent.values()) == pytest.approx(timeline.makespan_us)
    assert sum(total(one.energy_parts_mj) for one in spent.values()) == pytest.approx(timeline.total_energy_mj)
    (whole,) = spending(("",), (("", event) for event in events), static_mj, timeline.makespan_us).values()
    for place, parts in whole.busy_parts_us.items():
        assert sum(parts.values()) == pytest.approx(timeline.busy_us.get(place, 0.0))
    for place, parts in whole.energy_parts_mj.items():
        assert sum(parts.values()) == pytest.approx(timeline.energy_mj[place])


def test_a_schedule_is_cached_with_its_graph() -> None:
    jobs = [Job("a", "gpu", 6), Job("b", "pim", 2, ("a",))]
    costs, others, graph = costs_of(jobs), costs_of([Job("a", "gpu", 1), Job("b", "pim", 1)]), graph_of(jobs)
    made = schedule(graph, costs)
    timeline = build_timeline(graph, TARGET, costs)
    assert made == (timeline, event_costs(graph, timeline, costs))
    assert schedule(graph, costs) is made
    assert schedule(graph, others).timeline.makespan_us == 2
    assert schedule(graph, costs) == made
    forgotten = weakref.ref(graph)
    del graph
    gc.collect()
    assert forgotten() is None
