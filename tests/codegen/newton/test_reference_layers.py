"""Cycles of the mappings against the published code generator's, layer by layer (`data/reference_layers.csv`)."""

from __future__ import annotations

import csv
import math
from functools import cache
from pathlib import Path

import pytest

from pimflow.codegen import ConvProblem
from pimflow.runtime.newton.autotune.choose import choose_mapping
from pimflow.runtime.newton.cost import PimCost
from pimflow.targets import load_target

TABLE = Path(__file__).parent / "data" / "reference_layers.csv"
TARGET = load_target("pimflow")


@cache
def layers() -> tuple[tuple[ConvProblem, int, bool], ...]:
    """(layer, published cycles, whether the published stream is complete) for four buffers, GWRITE hidden.

    The table counts the commands of one channel, so a stream is taken for complete if 16 like it have enough COMPs.
    """
    found = []
    with TABLE.open() as file:
        for row in csv.DictReader(file):
            if (row["global_buffers"], row["gwrite_latency"]) != ("4", "hidden"):
                continue
            value = {key: int(text) for key, text in row.items() if text.isdigit()}
            problem = ConvProblem(
                1, value["in_channels"], value["out_channels"], value["height"], value["width"],
                (value["kernel_h"], value["kernel_w"]), (value["stride"],) * 2, (value["pad_h"], value["pad_w"]) * 2,
            )  # fmt: skip
            found.append((problem, value["cycles"], 16 * value["comp"] >= least_comps(problem)))
    return tuple(found)


def least_comps(problem: ConvProblem) -> int:
    return -(-problem.depth // 16) * -(-problem.out_channels // 16) * problem.pixels


def cost(problem: ConvProblem, policy: str, profile: str = "artifact") -> PimCost:
    chosen = choose_mapping(problem, TARGET, policy, profile)
    assert isinstance(chosen, PimCost)
    assert chosen.commands.comp >= least_comps(problem)
    assert chosen.cycles >= chosen.bound_cycles
    return chosen


def test_the_table_is_read() -> None:
    assert len(layers()) > 50
    assert sum(complete for _, _, complete in layers()) > 45


@pytest.mark.parametrize("profile", ["artifact", "strict"])
def test_auto_is_never_slower_than_newton(profile: str) -> None:
    for problem, _, _ in layers():
        newton = cost(problem, "newton++", profile)
        assert cost(problem, "auto", profile).cycles <= newton.cycles
        assert newton.cycles <= cost(problem, "newton+", profile).cycles


def test_newton_is_not_slower_than_published() -> None:
    for problem, published, complete in layers():
        if complete:
            assert cost(problem, "newton++").cycles <= published, problem


def test_auto_is_much_faster_than_published() -> None:
    ratios = [cost(problem, "auto").cycles / cycles for problem, cycles, complete in layers() if complete]
    assert math.exp(sum(map(math.log, ratios)) / len(ratios)) <= 0.70
    every = [cost(problem, "auto").cycles / cycles for problem, cycles, _ in layers()]
    assert math.exp(sum(map(math.log, every)) / len(every)) <= 0.70


def test_profiles_have_mappings_of_their_own() -> None:
    different = sum(
        cost(problem, "auto", "artifact").mapping != cost(problem, "auto", "strict").mapping
        for problem, _, _ in layers()
    )
    assert different > 5
