"""The schedule: closed forms of the published patterns, soundness, optimality on small regions, additivity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.codegen.answers import Transfer
from pimflow.errors import GraphError
from pimflow.runtime.timeline import Timeline, build_timeline, regions
from pimflow.targets import load_target
from support.costs import PoweredCosts
from support.jobs import Job, costs_of, graph_of

TARGET = load_target("pimflow")
times = st.integers(1, 50).map(float)


def timeline_of(jobs: Sequence[Job]) -> Timeline:
    return build_timeline(graph_of(jobs), TARGET, costs_of(jobs))


@given(times, times)
@settings(max_examples=30)
def test_a_split_takes_as_long_as_its_slower_half(gpu: float, pim: float) -> None:
    jobs = [Job("top", "gpu", gpu), Job("bottom", "pim", pim), Job("join", "gpu", 0, ("top", "bottom"))]
    timeline = timeline_of(jobs)
    assert timeline.makespan_us == max(gpu, pim)
    assert timeline.busy_us == {"gpu": gpu, "pim": pim}


@given(times, times, times, times)
@settings(max_examples=50)
def test_the_two_stage_pipeline_has_the_published_closed_form(pb: float, pt: float, gb: float, gt: float) -> None:
    """1x1 on PIM, depthwise on the GPU, bottom half first, since the top half needs the bottom's halo."""
    jobs = [
        Job("pim_b", "pim", pb, stage=0),
        Job("gpu_b", "gpu", gb, ("pim_b",), stage=0),
        Job("pim_t", "pim", pt, stage=1),
        Job("gpu_t", "gpu", gt, ("pim_t", "pim_b"), stage=1),
        Job("join", "gpu", 0, ("gpu_b", "gpu_t")),
    ]
    assert timeline_of(jobs).makespan_us == pb + max(gb, pt) + gt
    mirrored = [Job(j.name, "gpu" if j.device == "pim" else "pim", j.time_us, j.after, 0, j.stage) for j in jobs]
    assert timeline_of(mirrored).makespan_us == pb + max(gb, pt) + gt


def three_node_pipeline(stages: int, first: float, second: float, third: float) -> list[Job]:
    jobs = []
    for k in range(stages):
        halo = (f"a{k - 1}",) if k else ()
        jobs.append(Job(f"a{k}", "pim", first, stage=k))
        jobs.append(Job(f"b{k}", "gpu", second, (f"a{k}", *halo), stage=k))
        jobs.append(Job(f"c{k}", "pim", third, (f"b{k}",), stage=k))
    return jobs


@pytest.mark.parametrize("stages", [2, 3, 4, 8])
def test_stages_of_a_long_pipeline_overlap(stages: int) -> None:
    """PIM has two of the three nodes: it is idle only while the first and last stage are on the GPU."""
    assert timeline_of(three_node_pipeline(stages, 5, 4, 6)).makespan_us <= 11 * stages + 4 + 4
    serial = 15 * stages
    assert timeline_of(three_node_pipeline(stages, 5, 4, 6)).makespan_us < serial


def test_regions_synchronise_at_their_ends() -> None:
    jobs = [Job("a", "gpu", 5), Job("b", "pim", 3), Job("c", "pim", 2, region=1), Job("d", "gpu", 1, region=2)]
    timeline = timeline_of(jobs)
    assert timeline.region_us == (5, 2, 1)
    assert timeline.makespan_us == 8
    assert [(e.node, e.start_us, e.end_us, e.region) for e in timeline.events] == [
        ("b", 0, 3, 0), ("a", 0, 5, 0), ("c", 5, 7, 1), ("d", 7, 8, 2)
    ]  # fmt: skip


def test_regions_are_ordered_by_number_and_nodes_without_one_follow_their_inputs() -> None:
    jobs = [
        Job("a", "gpu", 1, region=10),
        Job("b", "gpu", 1, region=9),
        Job("free", "gpu", 1, ("b",), region=None),
        Job("late", "gpu", 1, ("free", "a"), region=10),
        Job("last", "gpu", 1, ("late",), region=None),
    ]
    order = [[node.name for node in nodes] for nodes in regions(graph_of(jobs))]
    assert order == [["b"], ["free"], ["a", "late"], ["last"]]


def test_a_region_that_reads_from_a_later_one_is_a_bug() -> None:
    jobs = [Job("a", "gpu", 1, region=1), Job("b", "gpu", 1, ("a",), region=0)]
    with pytest.raises(GraphError, match="'b' of region 0 reads from the later region 1"):
        timeline_of(jobs)


def test_free_nodes_delay_nothing() -> None:
    """A free Slice does not wait behind a kernel in the GPU's queue."""
    jobs = [Job("long", "gpu", 50), Job("slice", "gpu", 0), Job("conv", "pim", 20, ("slice",))]
    timeline = timeline_of(jobs)
    events = {event.node: event for event in timeline.events}
    assert (events["slice"].resource, events["slice"].start_us, events["slice"].end_us) == ("none", 0, 0)
    assert events["conv"].end_us == 20


def test_energy_is_by_resource_with_the_static_share_of_the_machine() -> None:
    jobs = [Job("a", "gpu", 5), Job("b", "pim", 3), Job("c", "gpu", 2, ("a", "b"))]
    assert timeline_of(jobs).energy_mj == {"gpu": 14, "pim": 3}
    powered = build_timeline(graph_of(jobs), TARGET, PoweredCosts(costs_of(jobs).times))
    assert powered.energy_mj == {"gpu": 14, "pim": 3, "static": pytest.approx(0.07)}
    assert powered.total_energy_mj == pytest.approx(17.07)


def test_transfers_precede_and_follow_pim_nodes() -> None:
    jobs = [Job("a", "pim", 5), Job("b", "gpu", 9), Job("c", "gpu", 1, ("a",))]
    moved = Transfer(2, 3, 0.2, 0.3)
    timeline = build_timeline(graph_of(jobs), TARGET, costs_of(jobs), transfers=lambda graph, node: moved)
    steps = [(e.node, e.resource, e.start_us, e.end_us) for e in timeline.events if e.node != "b"]
    assert steps == [("a", "transfer", 0, 2), ("a", "pim", 2, 7), ("a", "transfer", 7, 10), ("c", "gpu", 10, 11)]
    assert timeline.busy_us == {"gpu": 10, "pim": 5, "transfer": 5}
    assert timeline.energy_mj["transfer"] == 0.5


@st.composite
def job_lists(draw: st.DrawFn, most: int = 12, regions_most: int = 3) -> list[Job]:
    """Random data flow, in topological order of regions."""
    jobs: list[Job] = []
    region = 0
    for index in range(draw(st.integers(1, most))):
        region += draw(st.sampled_from([0, 0, 0, 1])) if region < regions_most - 1 else 0
        earlier = [job.name for job in jobs]
        after = draw(st.lists(st.sampled_from(earlier), max_size=3, unique=True)) if earlier else []
        duration = float(draw(st.integers(0, 9)))
        stage = draw(st.sampled_from([None, 0, 1]))
        jobs.append(Job(f"j{index}", draw(st.sampled_from(["gpu", "pim"])), duration, tuple(after), region, stage))
    return jobs


@given(job_lists())
@settings(max_examples=150)
def test_schedules_are_sound_and_never_idle_without_need(jobs: list[Job]) -> None:
    timeline = timeline_of(jobs)
    events = {event.node: event for event in timeline.events}
    assert len(timeline.events) == len(jobs) == len(events)
    starts_of_regions = [sum(timeline.region_us[:index]) for index in range(len(timeline.region_us))]
    for job in jobs:
        event = events[job.name]
        assert event.end_us - event.start_us == job.time_us
        assert event.resource == (job.device if job.time_us else "none")
        releases = [starts_of_regions[event.region], *(events[name].end_us for name in job.after)]
        held = [e.end_us for e in timeline.events if e.resource == event.resource != "none" and e.node != job.name]
        assert event.start_us >= max(releases)
        assert event.start_us == max(releases) or event.start_us in held
    for resource in ("gpu", "pim"):
        uses = sorted((e.start_us, e.end_us) for e in timeline.events if e.resource == resource)
        assert all(one[1] <= other[0] for one, other in pairwise(uses))
        assert timeline.busy_us[resource] == sum(end - start for start, end in uses)
    assert timeline.makespan_us == max(event.end_us for event in timeline.events) == sum(timeline.region_us)


@given(job_lists())
@settings(max_examples=80)
def test_regions_alone_take_as_long_as_in_the_whole_graph(jobs: list[Job]) -> None:
    whole = timeline_of(jobs)
    total = 0.0
    for index, number in enumerate(sorted({job.region or 0 for job in jobs})):
        inside = {job.name for job in jobs if job.region == number}
        cut = [
            Job(j.name, j.device, j.time_us, tuple(name for name in j.after if name in inside), 0, j.stage)
            for j in jobs
            if j.name in inside
        ]
        alone = timeline_of(cut).makespan_us
        assert alone == whole.region_us[index]
        total += alone
    assert total == whole.makespan_us


def fixed_orders(jobs: Sequence[Job]) -> Iterator[float]:
    """Makespans of all issue orders of both queues (longest path by relaxation), inf for deadlocks."""
    by_device = [[job.name for job in jobs if job.device == device] for device in ("gpu", "pim")]
    for gpu in permutations(by_device[0]):
        for pim in permutations(by_device[1]):
            queue_before = {b: a for order in (gpu, pim) for a, b in pairwise(order)}
            yield relaxed(jobs, queue_before)


def relaxed(jobs: Sequence[Job], queue_before: dict[str, str]) -> float:
    end = {job.name: job.time_us for job in jobs}
    for _ in range(len(jobs) + 1):
        before = dict(end)
        for job in jobs:
            waits = [*job.after, *([queue_before[job.name]] if job.name in queue_before else [])]
            end[job.name] = job.time_us + max((end[name] for name in waits), default=0.0)
        if end == before:
            return max(end.values())
    return float("inf")


@given(job_lists(most=6, regions_most=1).filter(lambda jobs: all(job.time_us for job in jobs)))
@settings(max_examples=80)
def test_small_regions_are_within_a_list_schedules_reach_of_the_optimum(jobs: list[Job]) -> None:
    best = min(fixed_orders(jobs))
    assert best <= timeline_of(jobs).makespan_us <= 2 * best


@pytest.mark.parametrize("prices", [(5, 4, 6), (2, 9, 2), (7, 1, 3), (3, 3, 3)])
def test_pipelines_of_three_nodes_in_two_stages_are_optimal(prices: tuple[float, float, float]) -> None:
    jobs = three_node_pipeline(2, *prices)
    assert timeline_of(jobs).makespan_us == min(fixed_orders(jobs))


def zigzag_pipeline(stages: int, prices: tuple[float, float, float, float]) -> list[Job]:
    """Four nodes on PIM, GPU, PIM, GPU; the second has a halo."""
    jobs = []
    for k in range(stages):
        halo = (f"a{k - 1}",) if k else ()
        jobs.append(Job(f"a{k}", "pim", prices[0], stage=k))
        jobs.append(Job(f"b{k}", "gpu", prices[1], (f"a{k}", *halo), stage=k))
        jobs.append(Job(f"c{k}", "pim", prices[2], (f"b{k}",), stage=k))
        jobs.append(Job(f"d{k}", "gpu", prices[3], (f"c{k}",), stage=k))
    return jobs


@pytest.mark.parametrize(
    ("stages", "prices", "makespan"),
    [
        (3, (5, 2, 5, 2), 32),  # a0 a1 a2 c0 c1 c2 on PIM without a gap, then d2: in order of arrival
        (4, (4, 1, 1, 2), 23),  # c0 before a2, so that the GPU has d0 early: early stages first
    ],
)
def test_the_better_issue_order_is_chosen(
    stages: int, prices: tuple[float, float, float, float], makespan: float
) -> None:
    assert timeline_of(zigzag_pipeline(stages, prices)).makespan_us == makespan


def test_operands_of_the_longest_chain_come_first() -> None:
    jobs = [Job("short", "gpu", 3), Job("first", "gpu", 1), Job("last", "pim", 5, ("first",))]
    assert timeline_of(jobs).makespan_us == 6, "in order, or as work arrives, it would be 9"
    later = [*jobs, Job("end", "gpu", 2, ("short",))]
    assert timeline_of(later).makespan_us == 6
    held = [Job("a", "gpu", 4), Job("b", "pim", 1), Job("c", "gpu", 1, ("b",)), Job("d", "pim", 3, ("c",))]
    assert timeline_of(held).makespan_us == 6, "the GPU waits for c: no schedule that never leaves it idle is below 8"


def test_a_long_chain_takes_the_sum_of_its_nodes() -> None:
    length = 5000
    jobs = [Job("j0", "gpu", 1, region=0)]
    jobs += [Job(f"j{i}", "pim" if i % 3 else "gpu", 1 + i % 2, (f"j{i - 1}",), i // 2) for i in range(1, length)]
    assert timeline_of(jobs).makespan_us == sum(job.time_us for job in jobs)
