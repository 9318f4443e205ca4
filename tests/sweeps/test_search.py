"""Searches by Optuna: reproducible by seed, and near the whole grid's front."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest

import pimflow
from pimflow.errors import OptionError
from pimflow.sweeps.result import SweepResult

GRID: dict[str, Any] = {
    "models": ["zoo:toy"],
    "policies": ["md-dp"],
    "grid": {
        "pim.channels": list(range(2, 22, 2)),
        "gpu.clock_mhz": [900, 1300, 1700],
        "gpu.launch_cycles": [1000, 4000],
    },
}


def plotted(rows: Iterable[dict[str, Any]]) -> list[tuple[float, float]]:
    return [(row["time_us"], row["energy_mj"]) for row in rows if row["status"] == "ok"]


def volume(points: list[tuple[float, float]], corner: tuple[float, float]) -> float:
    """The area that points dominate, up to a corner: step by step, for two objectives."""
    area, last = 0.0, corner[1]
    for x, y in sorted(points):
        if y < last:
            area += (corner[0] - x) * (last - y)
            last = y
    return area


@cache
def whole_grid() -> SweepResult:
    return pimflow.sweep(GRID, jobs=1)


@pytest.mark.parametrize("sampler", ["nsga2", "tpe", "random"])
def test_a_search_finds_most_of_the_front_in_a_part_of_the_grid(sampler: str) -> None:
    pytest.importorskip("optuna")
    whole = whole_grid()
    search = {"trials": 25, "sampler": sampler, "seed": 3}
    part = pimflow.sweep({**GRID, "search": search}, jobs=1)
    assert len(part) == 25 < len(whole) == 60
    by_values = {(row["pim.channels"], row["gpu.clock_mhz"], row["gpu.launch_cycles"]): row["time_us"] for row in whole}
    assert all(
        row["time_us"] == by_values[row["pim.channels"], row["gpu.clock_mhz"], row["gpu.launch_cycles"]] for row in part
    )
    all_points, points = plotted(whole), plotted(part)
    corner = (max(time for time, _ in all_points), max(energy for _, energy in all_points))
    found, best = volume(points, corner), volume(all_points, corner)
    assert 0.75 * best < found <= best
    assert pimflow.sweep({**GRID, "search": search}, jobs=2).as_json() == part.as_json()
    other = pimflow.sweep({**GRID, "search": {**search, "seed": 4}}, jobs=1)
    assert [row["pim.channels"] for row in other] != [row["pim.channels"] for row in part]


@pytest.mark.parametrize("sampler", ["nsga2", "tpe"])
def test_an_unlimited_search_visits_every_point(sampler: str) -> None:
    """If a sampler proposes a known point, the next trial is at another one."""
    pytest.importorskip("optuna")
    grid = {"pim.channels": [8, 12, 16], "gpu.clock_mhz": [900, 1300]}
    result = pimflow.sweep({**GRID, "grid": grid, "search": {"trials": 40, "sampler": sampler, "parallel": 2}}, jobs=1)
    assert len({(row["pim.channels"], row["gpu.clock_mhz"]) for row in result}) == len(result) == 6


def test_a_search_counts_invalid_points_and_continues() -> None:
    pytest.importorskip("optuna")
    data = {**GRID, "grid": {"pim.channels": [8, 40, 41, 42]}, "search": {"trials": 4}}
    result = pimflow.sweep(data, jobs=1)
    assert result.count("invalid") == 3
    assert result.count("ok") == 1


def test_without_optuna_there_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(OptionError, match=r"pimflow\[optuna\]"):
        pimflow.sweep({**GRID, "search": {"trials": 4}}, jobs=1)
