"""The front of time against energy: the corners of the convex hull of all plans."""

from __future__ import annotations

import pytest

import pimflow
from pimflow.errors import OptionError
from pimflow.ir import Graph
from pimflow.options import Options
from pimflow.report.front import front_points
from pimflow.search.policy import policy_of
from support.costs import FakeCosts
from support.covers import covers, whole_run
from support.graphs import ConvNet, heavy_chain


def two_layers() -> Graph:
    net = ConvNet("two")
    return net.graph(net.layer(net.layer(net.input(1, 64, 14, 14), 96, 3), 32))


def corners(points: set[tuple[float, float]]) -> list[tuple[float, float]]:
    """The lower left corners of the hull of points, by cross products (Andrew's monotone chain)."""
    hull: list[tuple[float, float]] = []
    for x, y in sorted(points):
        if hull and y >= hull[-1][1]:
            continue
        while len(hull) > 1:
            (a, b), (c, d) = hull[-2:]
            if (c - a) * (y - b) - (d - b) * (x - a) > 1e-9:
                break
            hull.pop()
        hull.append((x, y))
    return hull


@pytest.mark.parametrize("name", ["two", "heavy"])
def test_the_points_are_the_corners_of_all_plans(name: str) -> None:
    graph = {"two": two_layers(), "heavy": heavy_chain(14)}[name]
    costs = FakeCosts()
    options = Options(target=costs.target, policy="md-dp", grid=25 if name == "two" else 50, use_cache=False)
    runs = [whole_run(graph, decisions, costs) for decisions in covers(graph, policy_of(options), costs)]
    expected = corners({(round(run.makespan_us, 9), round(run.total_energy_mj, 9)) for run in runs})
    found = front_points(graph, options, costs=costs)
    assert len(expected) > (2 if name == "two" else 1)
    assert [(point.time_us, point.energy_mj) for point in found] == [pytest.approx(pair, rel=1e-9) for pair in expected]
    for point in found:
        run = whole_run(graph, point.plan.decisions, costs)
        assert (run.makespan_us, run.total_energy_mj) == pytest.approx((point.time_us, point.energy_mj), rel=1e-9)


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


def test_a_front_has_no_other_objective() -> None:
    with pytest.raises(OptionError, match="'objective' is an option of `compile`"):
        pimflow.front("zoo:toy", objective="energy")
