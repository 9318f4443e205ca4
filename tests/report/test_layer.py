"""One layer without a model."""

from __future__ import annotations

import json

import pytest

from pimflow.codegen import ConvProblem, MatmulProblem
from pimflow.errors import OptionError
from pimflow.report.layer import report_layer
from pimflow.targets import load_target, override
from support.newton.problems import chosen

TARGET = load_target("pimflow")


def test_the_report_is_the_cost() -> None:
    problem = ConvProblem(1, 16, 96, 28, 28, (1, 1))
    report = report_layer(problem, override(TARGET, timing="artifact"), "newton++").as_json()
    cost = chosen(problem, TARGET, "newton++", "artifact")
    assert report["pim_cycles"] == cost.cycles == max(channel["cycles"] for channel in report["channels"])
    for name in ("GWRITE", "G_ACT", "COMP", "READRES"):
        assert report["commands"][name] == sum(channel["commands"][name] for channel in report["channels"])
    assert report["commands"]["COMP"] >= 28 * 28 * 6
    assert report["utilisation"] == pytest.approx(28 * 28 * 6 / 16 * 2 / cost.cycles)
    assert report["energy_mj"] == sum(report["energy_parts_mj"].values()) > 0
    assert report["time_us"] == pytest.approx(sum(report["time_parts_us"].values()), rel=1e-12)
    assert json.loads(json.dumps(report)) == report
    assert "newton++" in report_layer(problem, TARGET, "newton++").text()


def test_policies_are_case_insensitive_and_named() -> None:
    problem = MatmulProblem(4, 64, 64)
    assert report_layer(problem, TARGET, "AUTO") == report_layer(problem, TARGET, "auto")
    with pytest.raises(OptionError, match="unknown mapping policy 'fast'"):
        report_layer(problem, TARGET, "fast")
    with pytest.raises(OptionError, match="depthwise"):
        report_layer(ConvProblem(1, 8, 8, 8, 8, (3, 3), groups=8), TARGET)
