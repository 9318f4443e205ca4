"""Plans of real models with the real cost models."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from pimflow.ir import Pipeline, Plan, SplitRows
from pimflow.ir.plan import leaves_host
from pimflow.options import Options
from pimflow.runtime.costs import CostModel
from pimflow.runtime.timeline import build_timeline
from pimflow.search import policies
from pimflow.search.solver import prove, solve
from pimflow.targets import load_target
from support.passes import rewritten
from support.zoo import clean_model

TARGET = load_target("pimflow")
COSTS = CostModel(TARGET)
CASES = [(model, policy) for model in ("toy", "mobilenet-v2") for policy in policies()]


def options_for(policy: str, **options: Any) -> Options:
    return Options.of(target=TARGET, policy=policy, use_cache=False, **options)


@cache
def plan_of(model: str, policy: str) -> Plan:
    if (model, policy) == ("mobilenet-v2", "auto"):  # a smaller model, to limit the time of the tests
        return solve(clean_model(model), options_for(policy, grid=10, stages=(2,)), costs=COSTS)
    return solve(clean_model(model), options_for(policy), costs=COSTS)


@pytest.mark.parametrize(("model", "policy"), CASES)
def test_plan_cost_is_the_timeline_of_the_whole_model(model: str, policy: str) -> None:
    plan = plan_of(model, policy)
    graph = rewritten(clean_model(model), plan, COSTS)
    fresh = CostModel(TARGET)
    used = fresh if any(leaves_host(decision, plan.host) for decision in plan.decisions) else fresh.host_only()
    assert plan.predicted_us == pytest.approx(build_timeline(graph, TARGET, used).makespan_us, rel=1e-9)
    baseline = build_timeline(clean_model(model), TARGET, fresh.host_only())
    assert plan.baseline_us == pytest.approx(baseline.makespan_us, rel=1e-9)


@pytest.mark.parametrize("model", ["toy", "mobilenet-v2"])
def test_policies_nest_on_real_models(model: str) -> None:
    cost = {policy: plan_of(model, policy).predicted_us for policy in policies()}
    tolerance = 1 + 1e-12
    assert cost["auto"] <= cost["pimflow"] * tolerance
    assert cost["pimflow"] <= min(cost["md-dp"], cost["pipeline"]) * tolerance
    assert max(cost["md-dp"], cost["pipeline"]) <= cost["newton++"] * tolerance
    assert cost["newton++"] <= cost["gpu"] * tolerance


def test_mobilenet_gains_from_each_of_the_papers_techniques() -> None:
    cost = {policy: plan_of("mobilenet-v2", policy).predicted_us for policy in policies()}
    assert cost["gpu"] > cost["newton++"] > cost["pipeline"] > cost["pimflow"] > cost["auto"]
    assert cost["newton++"] > cost["md-dp"] > cost["pimflow"]
    kinds = {type(decision) for decision in plan_of("mobilenet-v2", "pimflow").decisions}
    assert {SplitRows, Pipeline} <= kinds


@pytest.mark.parametrize(("model", "policy"), [("toy", "auto"), ("mobilenet-v2", "pimflow")])
def test_integer_program_agrees_on_real_models(model: str, policy: str) -> None:
    by_chain, by_program = prove(clean_model(model), options_for(policy), costs=COSTS)
    assert by_program == pytest.approx(by_chain, rel=1e-7)
