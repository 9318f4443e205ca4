"""The front of time against energy: the plans that no other plan beats in both."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

import pimflow
from pimflow.errors import OptionError
from pimflow.ir import Graph
from pimflow.options import Options
from pimflow.report.fitted_cost import FittedCost
from pimflow.report.front import front_points
from pimflow.search.policy import policy_of
from support.costs import FakeCosts
from support.covers import covers, whole_run
from support.graphs import ConvNet, heavy_chain


def two_layers() -> Graph:
    net = ConvNet("two")
    return net.graph(net.layer(net.layer(net.input(1, 64, 14, 14), 96, 3), 32))


def tiny_layers() -> Graph:
    net = ConvNet("tiny")
    return net.graph(net.layer(net.layer(net.input(1, 64, 5, 5), 96, 3), 32))


def three_layers() -> Graph:
    net = ConvNet("three")
    return net.graph(net.layer(net.layer(net.layer(net.input(1, 32, 7, 7), 48, 3), 64), 96, 3))


GRAPHS = {"two": two_layers, "heavy": lambda: heavy_chain(14), "three": three_layers, "tiny": tiny_layers}
COSTS = FakeCosts()
CASES = [("two", "md-dp", 10), ("heavy", "md-dp", 50), ("three", "md-dp", 50), ("two", "pimflow", 25)]


def best_of(points: set[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other point is below in both coordinates."""
    found: list[tuple[float, float]] = []
    for x, y in sorted(points):
        if not found or y < found[-1][1]:
            found.append((x, y))
    return found


def is_corner(points: list[tuple[float, float]], place: int) -> bool:
    """Whether a point lies below the line between any two others."""
    (x, y), before, behind = points[place], points[:place], points[place + 1 :]
    return all((c - a) * (y - b) - (d - b) * (x - a) < -1e-9 for a, b in before for c, d in behind)


@cache
def measured(name: str, policy: str, grid: int) -> tuple[Graph, Options, list[tuple[float, float]]]:
    """A graph, its options, and the front of all its plans."""
    graph = GRAPHS[name]()
    options = Options(target=COSTS.target, policy=policy, grid=grid, use_cache=False)
    runs = [whole_run(graph, decisions, COSTS) for decisions in covers(graph, policy_of(options), COSTS)]
    return graph, options, best_of({(round(run.makespan_us, 9), round(run.total_energy_mj, 9)) for run in runs})


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_points_are_the_undominated_plans(case: tuple[str, str, int]) -> None:
    graph, options, expected = measured(*case)
    found = front_points(graph, options, costs=COSTS, within_percent=0)
    assert [(point.time_us, point.energy_mj) for point in found] == [pytest.approx(pair, rel=1e-9) for pair in expected]
    for point in found:
        run = whole_run(graph, point.plan.decisions, COSTS)
        assert (run.makespan_us, run.total_energy_mj) == pytest.approx((point.time_us, point.energy_mj), rel=1e-9)
        assert point.plan.predicted_us == pytest.approx(point.time_us, rel=1e-9)


def test_some_points_are_not_on_the_convex_hull() -> None:
    fronts = [measured(*case)[2] for case in CASES]
    assert sum(not is_corner(front, place) for front in fronts for place in range(len(front))) > 10


@pytest.mark.parametrize("percent", [0.5, 3.0])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_omitted_plans_have_a_point_nearby(case: tuple[str, str, int], percent: float) -> None:
    graph, options, expected = measured(*case)
    found = front_points(graph, options, costs=COSTS, within_percent=percent)
    for time_us, energy_mj in expected:
        assert any(
            point.time_us <= time_us * (1 + 1e-9) and point.energy_mj <= energy_mj * (1 + percent / 100 + 1e-9)
            for point in found
        )


def test_no_plan_of_a_larger_space_is_below() -> None:
    graph, options, expected = measured("tiny", "auto", 10)
    found = front_points(graph, options, costs=COSTS, within_percent=0)
    for time_us, energy_mj in expected:
        limits = time_us * (1 + 1e-9), energy_mj * (1 + 1e-9)
        assert any(point.time_us <= limits[0] and point.energy_mj <= limits[1] for point in found)


def test_few_points_suffice() -> None:
    graph, options, expected = measured(*CASES[0])
    assert len(front_points(graph, options, costs=COSTS, within_percent=3.0)) < len(expected)


def test_front_of_a_model() -> None:
    front = pimflow.front("zoo:mobilenet-v2", policy="pimflow", check=False)
    rows = front.records()
    assert len(rows) > 2
    assert [row["time_us"] for row in rows] == sorted(row["time_us"] for row in rows)
    assert [row["energy_mj"] for row in rows] == sorted((row["energy_mj"] for row in rows), reverse=True)
    ends = [
        pimflow.compile("zoo:mobilenet-v2", policy="pimflow", objective=o, check=False) for o in ("latency", "energy")
    ]
    assert rows[0]["time_us"] == pytest.approx(ends[0].report.result.time_us)
    assert rows[-1]["energy_mj"] == pytest.approx(ends[1].report.result.energy_mj)
    assert all(row["speedup"] == pytest.approx(front.baseline_us / row["time_us"]) for row in rows)
    assert front.title in repr(front)


def test_a_long_table_has_points_from_all_over_the_front() -> None:
    front = pimflow.front("zoo:toy", policy="md-dp", check=False)
    energies = [10.0, 9.98, 9.97, 8.5, *(8.0 - 0.03 * step for step in range(200)), 1.9995]
    points = tuple(
        replace(front.points[0], fitted=FittedCost(50.0 + place, energy_mj, True), energy_mj=energy_mj)
        for place, energy_mj in enumerate(energies)
    )
    short, long = (replace(front, points=points).text(verbose=verbose) for verbose in (False, True))
    shown = [float(line.split()[1]) for line in short.splitlines() if line.count(" %") == 1 and "left" not in line]
    assert len(shown) <= 31
    assert (shown[0], shown[-1]) == (10.0, 2.0)
    for energy_mj in energies:
        assert any(energy_mj - 8 / 30 <= other for other in shown if other <= energy_mj + 8 / 30)
    assert f"points not shown, between these: {len(energies) - len(shown)} (-v shows them)" in short
    assert long.count("\n") - short.count("\n") == len(energies) - len(shown) - 1
    assert "not shown" not in long


def test_points_that_look_alike_have_one_row() -> None:
    front = pimflow.front("zoo:toy", policy="md-dp", check=False)
    points = tuple(
        replace(front.points[0], fitted=FittedCost(50.0, energy_mj, True), energy_mj=energy_mj)
        for energy_mj in (8.0, 7.9999, 5.0)
    )
    short, long = (replace(front, points=points).text(verbose=verbose) for verbose in (False, True))
    assert (short.count(" 8.000 "), short.count(" 5.000 ")) == (1, 1)
    assert "points not shown, between these: 1 (-v shows them)" in short
    assert long.count(" 8.000 ") == 2


def test_a_front_has_no_other_objective() -> None:
    with pytest.raises(OptionError, match="'objective' is an option of `compile`"):
        pimflow.front("zoo:toy", objective="energy")
