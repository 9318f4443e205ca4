"""A single layer without a model."""

from __future__ import annotations

import json
import re

import pytest

import pimflow
from pimflow.codegen import ConvProblem, MatmulProblem
from pimflow.codegen.work import matrix_problem
from pimflow.errors import OptionError
from pimflow.ir import Refusal
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


@pytest.mark.parametrize("name", ["conv1", "conv2", "linear"])
def test_the_host_takes_the_same_time_as_in_a_model(name: str) -> None:
    found = pimflow.inspect("zoo:toy")
    (node,) = (node for node in found.nodes if node.name == name)
    work = matrix_problem(found.graph, found.graph.node(name))
    assert not isinstance(work, Refusal)
    report = report_layer(work, TARGET)
    assert report.baseline_us == pytest.approx(node.times_us["gpu"], rel=0.02)  # the model's layers have a bias
    assert re.search(rf"GPU alone +{report.baseline_us:,.2f} us; PIM is [0-9.]+x as fast", report.text())


@pytest.mark.parametrize("constant", [True, False])
def test_a_product_with_a_batch_of_right_hand_sides_has_a_host_time_too(constant: bool) -> None:
    one, many = (
        report_layer(MatmulProblem(16, 64, 64, count, batched_rhs=True, constant_rhs=constant), TARGET)
        for count in (1, 64)
    )
    assert 0 < one.baseline_us < many.baseline_us


def test_energy_has_a_unit_that_suits_it() -> None:
    assert re.search(r"energy +[0-9.]+ uJ", report_layer(MatmulProblem(4, 64, 64), TARGET).text())
