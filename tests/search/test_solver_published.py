"""The shipped target gives the published MobileNetV2 figures under the published timing, through the whole search."""

from __future__ import annotations

import pytest

from pimflow.options import Options
from pimflow.report.policies import PolicyResult, compare_graph
from pimflow.runtime.costs import CostModel
from pimflow.targets import load_target, override
from support.golden import Golden, text_table
from support.zoo import clean_model

PUBLISHED = {"newton++": 1.365, "pipeline": 1.413, "md-dp": 1.436, "pimflow": 1.481}
"""Speedup of MobileNetV2's convolutions by policy."""


@pytest.fixture(scope="module")
def results() -> dict[str, PolicyResult]:
    target = override(load_target("pimflow"), timing="artifact")
    costs = CostModel(target)
    options = Options(target=target, use_cache=False)
    found = compare_graph(clean_model("mobilenet-v2"), options, list(PUBLISHED), costs=costs)
    return {result.policy: result for result in found}


@pytest.mark.parametrize("policy", PUBLISHED)
def test_convolution_speedups_within_two_percent(results: dict[str, PolicyResult], policy: str) -> None:
    assert results[policy].conv_speedup == pytest.approx(PUBLISHED[policy], rel=0.02)


def test_baselines_and_whole_model(results: dict[str, PolicyResult]) -> None:
    clock_mhz = load_target("pimflow").gpu.clock_mhz
    result = results["pimflow"]
    assert result.baseline_conv_us * clock_mhz == pytest.approx(1.454e6, rel=0.02)
    assert result.baseline_us * clock_mhz == pytest.approx(1.44562e6, rel=0.02)
    assert result.speedup == pytest.approx(1.44562 / 1.047831, rel=0.025)
    assert result.energy_change < -0.26  # the published mean; this model gains most


def test_todays_figures(results: dict[str, PolicyResult], golden: Golden) -> None:
    """A better model may change these; the bounds around the published figures hold all the same."""
    header = ("policy", "CONV speedup", "published", "speedup", "energy change", "time us")
    rows = [
        (policy, found.conv_speedup, PUBLISHED[policy], found.speedup, found.energy_change, found.time_us)
        for policy, found in results.items()
    ]
    golden.check("mobilenet_v2.txt", text_table(header, rows))


def test_policies_that_may_do_more_are_never_slower(results: dict[str, PolicyResult]) -> None:
    assert results["pimflow"].time_us <= min(results["pipeline"].time_us, results["md-dp"].time_us)
    assert max(results["pipeline"].time_us, results["md-dp"].time_us) <= results["newton++"].time_us
