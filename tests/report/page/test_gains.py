"""The waterfall's parts: the host alone, and the change by every decision, add up to the plan's time."""

from __future__ import annotations

import math

import pytest

import pimflow
from pimflow.api.reports import content_of


@pytest.mark.parametrize(
    ("model", "policy"),
    [("zoo:toy", policy) for policy in ("gpu", "pim", "md-dp", "auto")] + [("zoo:squeezenet-1.1", "pipeline")],
)
def test_the_changes_add_up(model: str, policy: str) -> None:
    compiled = pimflow.compile(model, policy=policy)
    (run,) = content_of(compiled, what_if=0).runs
    gains = run.gains
    assert [gain.nodes for gain in gains] == [decision.nodes for decision in compiled.plan.decisions]
    before, after = compiled.report.baseline.time_us, compiled.report.result.time_us
    assert math.isclose(before + sum(gain.change_us for gain in gains), after, rel_tol=1e-9)
    assert math.isclose(sum(gain.before_us for gain in gains), before, rel_tol=1e-9)
    assert all(gain.after_us >= 0 for gain in gains)
    if policy == "gpu":
        assert {gain.kind for gain in gains} == {"stays on GPU"}
        assert not any(gain.change_us for gain in gains)
    if policy == "pim":
        assert "moved to PIM" in {gain.kind for gain in gains}
