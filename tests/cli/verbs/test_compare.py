"""`pimflow compare`: policies side by side."""

from __future__ import annotations

from support.cli import Capture, document, run


def test_compare_lists_policies_side_by_side(capsys: Capture) -> None:
    results = document(capsys, "compare", "zoo:toy", "--policies", "gpu,newton++,md-dp,auto")["policies"]
    assert [item["policy"] for item in results] == ["gpu", "newton++", "md-dp", "auto"]
    times = [item["time_us"] for item in results]
    assert times == sorted(times, reverse=True)
    assert times[-1] < times[0]
    assert run("compare", "zoo:toy", "--policies", "gpu,auto") == 0
    assert "speedup" in capsys.readouterr().out
