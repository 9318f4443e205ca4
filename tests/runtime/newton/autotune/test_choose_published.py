"""Cycles of the mappings against the published code generator's, layer by layer (`tests/data/published_layers.csv`)."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from pimflow.codegen import ConvProblem
from pimflow.runtime.newton.cost import PimCost
from pimflow.targets import load_target
from support.golden import Golden, text_table
from support.newton.problems import chosen

TABLE = Path(__file__).parents[3] / "data" / "published_layers.csv"
TARGET = load_target("pimflow")


@cache
def layers() -> tuple[tuple[ConvProblem, int, bool], ...]:
    """(layer, published cycles, whether the published stream is complete) for four buffers, GWRITE hidden.

    The table counts the commands of one channel, so a stream counts as complete if 16 like it have enough COMPs.
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


@cache
def cost(problem: ConvProblem, policy: str, timing: str = "artifact") -> PimCost:
    found = chosen(problem, TARGET, policy, timing)
    assert found.commands.comp >= least_comps(problem)
    assert found.cycles >= found.bound_cycles
    return found


def geometric_mean(ratios: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))


def test_the_table_is_read() -> None:
    assert len(layers()) > 50
    assert sum(complete for _, _, complete in layers()) > 45


@pytest.mark.parametrize("timing", ["artifact", "strict"])
def test_auto_is_never_slower_than_newton(timing: str) -> None:
    for problem, _, _ in layers():
        newton = cost(problem, "newton++", timing)
        assert cost(problem, "auto", timing).cycles <= newton.cycles
        assert newton.cycles <= cost(problem, "newton+", timing).cycles


@pytest.mark.parametrize("profile", ["artifact", "strict"])
def test_autos_comps_never_run_on_closed_rows(profile: str) -> None:
    published = 0
    for problem, _, _ in layers():
        newton, auto = cost(problem, "newton++", profile), cost(problem, "auto", profile)
        assert auto.comps_on_closed_rows == 0
        assert newton.comps_on_closed_rows <= 0.06 * newton.commands.comp
        published += newton.comps_on_closed_rows
    assert bool(published) == (profile == "artifact")


def test_newton_is_not_slower_than_published() -> None:
    for problem, published, complete in layers():
        if complete:
            assert cost(problem, "newton++").cycles <= published, problem


@pytest.mark.parametrize(
    ("layer", "published"),
    [
        (ConvProblem(1, 160, 576, 7, 7, (3, 3), (2, 2), (1, 1, 1, 1)), 16_138),
        (ConvProblem(1, 96, 384, 19, 19, (3, 3), (1, 1), (1, 1, 1, 1)), 157_674),
        (ConvProblem(1, 96, 1152, 19, 19, (3, 3), (2, 2), (1, 1, 1, 1)), 128_877),
    ],
)
def test_a_remainder_of_one_pixel_a_fill_is_shared_by_all_groups(layer: ConvProblem, published: int) -> None:
    """More than half a buffer is left over, and must not take the place of a whole chunk."""
    assert cost(layer, "newton++").cycles < published


def test_cycles_of_every_layer(golden: Golden) -> None:
    """The speedup of `auto` over the published streams, and how many layers it maps differently per profile."""
    header = ("channels", "map", "kernel", "stride", "published", "newton+", "newton++", "auto", "strict newton++",
              "strict auto")  # fmt: skip
    rows = [
        (
            f"{problem.in_channels}->{problem.out_channels}",
            f"{problem.in_h}x{problem.in_w}",
            f"{problem.kernel[0]}x{problem.kernel[1]}",
            problem.strides[0],
            f"{published}" if complete else f"{published} (not all of its commands)",
            *(cost(problem, policy).cycles for policy in ("newton+", "newton++", "auto")),
            *(cost(problem, policy, "strict").cycles for policy in ("newton++", "auto")),
        )
        for problem, published, complete in layers()
    ]
    ratios = [(cost(problem, "auto").cycles / published, complete) for problem, published, complete in layers()]
    every = geometric_mean([ratio for ratio, _ in ratios])
    whole = geometric_mean([ratio for ratio, complete in ratios if complete])
    assert max(every, whole) < 1
    own = sum(cost(problem, "auto").mapping != cost(problem, "auto", "strict").mapping for problem, _, _ in layers())
    assert own > 0
    golden.check(
        "published_layers.txt",
        text_table(header, rows)
        + f"auto / published, geometric mean: {every:.4f}, of complete streams {whole:.4f}\n"
        + f"layers with a mapping of its own for each profile: {own}\n",
    )
