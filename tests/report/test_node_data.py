"""Node data: every kernel with its time and the colour of its device."""

from __future__ import annotations

import pytest

import pimflow
from pimflow.report.node_data import COLOURS


def test_times_and_colours_are_the_timelines() -> None:
    compiled = pimflow.compile("zoo:toy", policy="md-dp", use_cache=False)
    results = compiled.node_data()["results"]
    assert sum(result["value"] for result in results.values()) == pytest.approx(
        sum(compiled.timeline.busy_us.values()), abs=1e-3 * len(results)
    )
    devices = {name: compiled.graph.node(name).device for name in results}
    assert {devices[name]: result["bgColor"] for name, result in results.items()} == {
        "gpu": COLOURS[0],
        "pim": COLOURS[1],
    }
