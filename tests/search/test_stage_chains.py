"""The shortest schedules of two stages, against the prices of pipelines whose parts are all priced exactly."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pimflow.ir import Graph, Pipeline
from pimflow.passes import CLEANUP, PassManager
from pimflow.runtime.costs import CostModel
from pimflow.search.bounds import Bounds
from pimflow.search.candidates import Candidates
from pimflow.search.policy import find_policy
from pimflow.search.price_cache import PriceCache
from pimflow.search.pricing import Pricer
from pimflow.search.stage_times import StageTimes
from pimflow.targets import load_target, override
from support.graphs import ConvNet, dense_block, fire_modules, inverted_residuals, random_net

MACHINE = CostModel(load_target("pimflow"))
QUEUED = CostModel(override("pimflow", {"gpu.launches": "queued", "gpu.persistent_stages": True}))
GRAPHS = [inverted_residuals(2, 28), dense_block(3, 28), fire_modules(28), *map(random_net, range(3))]


def pipelines(graph: Graph) -> Iterator[Pipeline]:
    """Those of two stages that a search lists, in equal stages and in others, from either end."""
    pricer = Pricer(graph, MACHINE, PriceCache(None, ""))
    for candidate in Candidates(graph, find_policy("auto"), pricer):
        only = candidate.decisions[0]
        if isinstance(only, Pipeline) and len(only.stage_rows) == 2:
            yield only
            yield replace(only, bottom_first=True)
            first, second = only.stage_rows
            if first > 2:
                yield replace(only, stage_rows=(first - 2, second + 2))


def divided(pipeline: Pipeline, bounds: Bounds, rng: random.Random) -> Pipeline | None:
    """A pipeline with some rows of one or two of its nodes on the GPU, in one or both stages; None if there is none."""
    end = bounds.runs.end(pipeline.run, pipeline.stage_rows, pipeline.bottom_first)
    able = [place for place, device in enumerate(pipeline.devices) if device != "gpu"]
    if end is None or not able or pipeline.host_rows:
        return None
    host_rows: list[tuple[int, ...]] = [()] * len(pipeline.run)
    for place in rng.sample(able, min(len(able), rng.choice((1, 1, 2)))):
        rows = [stop - start for start, stop in end.layers[end.place[pipeline.run[place]]].rows]
        counts = [rng.randint(0, count) for count in rows]
        if rng.random() < 0.5:
            counts[rng.randrange(len(rows))] = 0
        host_rows[place] = tuple(counts) if any(counts) and counts != rows else ()
    return replace(pipeline, host_rows=tuple(host_rows)) if any(host_rows) else None


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: str(graph.name))
def test_no_price_is_below_the_shortest_schedule_and_most_are_equal(graph: Graph) -> None:
    graph = PassManager(CLEANUP).run(graph).graph
    bounds, rng = Bounds(graph, MACHINE), random.Random(graph.name)
    stages = StageTimes(bounds, "gpu")
    tight, known = {False: 0, True: 0}, {False: 0, True: 0}
    for whole in pipelines(graph):
        for pipeline in (whole, divided(whole, bounds, rng), divided(whole, bounds, rng)):
            if pipeline is None:
                continue
            least_us = stages.shortest_us(pipeline)
            price_us = bounds.time_from_parts_us((pipeline,))
            if price_us is None:
                continue
            exact_us = stages.shortest_us(pipeline)
            assert max(least_us, exact_us) <= price_us * (1 + 1e-9)
            if exact_us:
                known[bool(pipeline.host_rows)] += 1
                tight[bool(pipeline.host_rows)] += exact_us > price_us * (1 - 1e-9)
    if graph.name == "inverted":
        assert tight[False] > 0.95 * known[False] > 100, "schedules of whole nodes are the shortest"
        assert tight[True] > 0.6 * known[True] > 50, "the shorter share of a node rarely matters"


@pytest.mark.parametrize("machine", [MACHINE, QUEUED], ids=["exposed", "queued"])
@pytest.mark.parametrize("graph", [inverted_residuals(2, 28), *map(random_net, range(3))], ids=lambda graph: graph.name)
def test_no_price_is_below_the_bound_by_stages(graph: Graph, machine: CostModel) -> None:
    """Before any part is priced, and after all of them are; whether or not launches can be avoided."""
    graph = PassManager(CLEANUP).run(graph).graph
    bounds, rng = Bounds(graph, machine), random.Random(graph.name)
    stages = StageTimes(bounds, "gpu")
    tight = {2: 0, 3: 0}
    for two in pipelines(graph):
        first, second = two.stage_rows
        is_cut = first > 1 and not two.host_rows
        three = replace(two, stage_rows=(first - first // 2, first // 2, second)) if is_cut else two
        for pipeline in (two, three, divided(two, bounds, rng), divided(three, bounds, rng)):
            before_us = 0.0 if pipeline is None else stages.lower_bound_us(pipeline)
            price_us = None if pipeline is None else bounds.time_from_parts_us((pipeline,))
            if pipeline is None or price_us is None:
                continue
            after_us = stages.lower_bound_us(pipeline)
            assert max(before_us, after_us) <= price_us * (1 + 1e-9)
            tight[len(pipeline.stage_rows)] += after_us > 0.95 * price_us
    few = 100 if machine is MACHINE else 4  # launches that need not be waited for still take the device's time
    assert graph.name != "inverted" or min(tight.values()) > few, tight


def net_of_windows() -> Graph:
    net = ConvNet("windows")
    x = net.input(1, 16, 28, 28)
    for kernel in (1, 3, 1):
        x = net.layer(x, 64, kernel)
    return PassManager(CLEANUP).run(net.graph(x)).graph


def test_the_second_stage_waits_for_rows_of_the_first() -> None:
    """The middle convolution reads over the border between the stages; the last one does not."""
    graph = net_of_windows()
    bounds = Bounds(graph, MACHINE)
    run = tuple(node.name for node in graph.nodes)
    end = bounds.runs.end(run, (14, 14), bottom_first=False)
    assert end is not None
    assert end.is_chain(3)
    assert [end.holds_next(place) for place in range(3)] == [False, False, True]


def test_shares_are_read_from_one_node_to_the_next() -> None:
    """Of the first convolution, the last rows of the first stage are read by the second stage as well."""
    graph = net_of_windows()
    bounds = Bounds(graph, MACHINE)
    end = bounds.runs.end(tuple(node.name for node in graph.nodes), (14, 14), bottom_first=False)
    assert end is not None
    assert end.layers[2].rows == [(0, 15), (15, 28)]
    assert end.reaches_next(2, 0, (0, 5))
    assert not end.reaches_next(2, 1, (0, 5))
    assert end.reaches_next(2, 1, (13, 15))
    assert end.reads(2, (14, 16), (0, 14))
    assert not end.reads(2, (20, 28), (0, 14))


def test_another_part_may_run_between_the_kernels_of_one() -> None:
    """The first convolution's second stage needs a Pad on the GPU, which runs before rows of the first stage do."""
    graph = PassManager(CLEANUP).run(random_net(51)).graph
    run, devices = tuple(node.name for node in graph.nodes[:3]), ("pim", "gpu", "gpu")
    end = tuple(node.name for node in graph.nodes if node.name.startswith("conv5"))
    pipeline = Pipeline((*run, *end), (*devices, "pim"), (4, 4), "auto", host_rows=((0, 5), (), (), ()))
    bounds = Bounds(graph, CostModel(load_target("turing-pim")))
    price_us = bounds.time_from_parts_us((pipeline,))
    assert price_us is not None
    assert 0.99 * price_us < StageTimes(bounds, "gpu").shortest_us(pipeline) <= price_us * (1 + 1e-9)


def test_two_divided_nodes_in_a_row_have_no_chain() -> None:
    graph = net_of_windows()
    bounds = Bounds(graph, MACHINE)
    stages = StageTimes(bounds, "gpu")
    run, devices = tuple(node.name for node in graph.nodes), ("gpu", "pim", "pim")
    one = Pipeline(run, devices, (14, 14), "", host_rows=((), (7, 0), ()))
    two = replace(one, host_rows=((), (7, 0), (7, 0)))
    assert stages.shortest_us(one) > 0
    assert stages.shortest_us(two) == 0
    assert stages.shortest_us(replace(one, stage_rows=(8, 10, 10), host_rows=())) == 0, "three stages"
    assert stages.lower_bound_us(two) > 0
