"""The costs of every model of the zoo under every policy: any change of search, prices or rewrites shows as a diff."""

from __future__ import annotations

from collections import Counter

import pytest

import pimflow
import pimflow_zoo
from pimflow.ir import OnDevice
from pimflow.report.policies import PolicyResult
from support.golden import Golden, text_table

NAMES = pimflow_zoo.names()
# Models that every run of the tests checks, in seconds; the others with `-m long`.
QUICK = {"toy", "shufflenet-v2", "squeezenet-1.1"}
EVERY = [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in NAMES]


@pytest.mark.parametrize("name", EVERY)
def test_costs_match_the_golden_files(name: str, golden: Golden) -> None:
    results = pimflow.compare(f"zoo:{name}").policies
    rows = [
        (result.policy, f"{result.time_us:.6g}", f"{result.energy_mj:.6g}", plan_text(result)) for result in results
    ]
    golden.check(f"costs_{name}.txt", text_table(("policy", "time_us", "energy_mj", "plan"), rows))


def plan_text(result: PolicyResult) -> str:
    """The number of decisions of each kind: "gpu 12, pim 3, SplitRows 2"."""
    counts = Counter(
        decision.device if isinstance(decision, OnDevice) else type(decision).__name__
        for decision in result.plan.decisions
    )
    return ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))


@pytest.mark.parametrize("name", EVERY)
def test_the_compiled_model_computes_the_same(name: str) -> None:
    compiled = pimflow.compile(f"zoo:{name}")
    assert compiled.report.result.time_us <= compiled.report.baseline.time_us
    verdict = compiled.verify()
    assert verdict.passed, verdict
