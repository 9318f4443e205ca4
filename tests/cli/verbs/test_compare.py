"""`pimflow compare`: policies side by side."""

from __future__ import annotations

import pytest

from support.cli import Capture, document, run


def test_compare_lists_policies_side_by_side(capsys: Capture) -> None:
    results = document(capsys, "compare", "zoo:toy", "--policies", "gpu,newton++,md-dp,auto")["policies"]
    assert [item["policy"] for item in results] == ["gpu", "newton++", "md-dp", "auto"]
    times = [item["time_us"] for item in results]
    assert times == sorted(times, reverse=True)
    assert times[-1] < times[0]
    for item in results:
        for front, time in (("", "time_us"), ("baseline_", "baseline_us")):
            energy_mj, parts = item[f"{front}energy_mj"], item[f"{front}energy_parts_mj"]
            assert sum(sum(amounts.values()) for amounts in parts.values()) == pytest.approx(energy_mj, rel=1e-12)
            parts = item[f"{front}time_parts_us"]
            assert sum(sum(amounts.values()) for amounts in parts.values()) == pytest.approx(item[time], rel=1e-12)
    assert run("compare", "zoo:toy", "--policies", "gpu,auto") == 0
    assert "speedup" in capsys.readouterr().out


@pytest.mark.parametrize(("verb", "plans"), [("compare", "policies"), ("front", "points")])
def test_searches_ended_by_their_time_budget_are_reported(capsys: Capture, verb: str, plans: str) -> None:
    asked = (verb, "zoo:toy", "--no-cache")
    for budget, complete in (("none", True), ("0", False)):
        found = document(capsys, *asked, "--time-budget", budget)[plans]
        assert any(plan["complete"] is complete for plan in found)
        assert complete or not all(plan["complete"] for plan in found)
        assert run(*asked, "--time-budget", budget) == 0
        assert ("ended by the time budget" in capsys.readouterr().out) is not complete
