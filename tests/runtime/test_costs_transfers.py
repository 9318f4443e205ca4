"""A machine whose PIM nodes only find their operands where these were copied to."""

from __future__ import annotations

from dataclasses import replace

import pytest

import pimflow


def compiled(gb_per_s: float | None, policy: str = "auto") -> pimflow.CompiledModel:
    target = pimflow.load_target("pimflow")
    target = target.with_units(pim=replace(target.pim, transfer_gb_per_s=gb_per_s))
    return pimflow.compile("zoo:mobilenet-v2", target=target, policy=policy, use_cache=False)


def test_copies_are_on_the_timeline_and_cost_their_bytes() -> None:
    result = compiled(64.0, "pim")
    events = [event for event in result.timeline.events if event.resource == "transfer"]
    node = next(node for node in result.graph.nodes if node.device == "pim")
    load, store = (event for event in events if event.node == node.name)
    sizes = [result.graph.value(name).elements for name in (node.inputs[0], node.output)]
    assert load.end_us - load.start_us == pytest.approx(2 * sizes[0] / 64e3)
    assert store.end_us - store.start_us == pytest.approx(2 * sizes[1] / 64e3)
    assert result.timeline.energy_mj["transfer"] > 0
    assert result.plan.predicted_us == pytest.approx(result.timeline.makespan_us, rel=1e-9)


def test_the_search_considers_them() -> None:
    free, fast, slow = (compiled(rate, "newton++") for rate in (None, 1000.0, 0.01))
    on_pim = [
        sum(getattr(decision, "device", "") == "pim" for decision in item.plan.decisions) for item in (free, fast, slow)
    ]
    assert free.plan.predicted_us < fast.plan.predicted_us < slow.plan.predicted_us
    assert on_pim[0] >= on_pim[1] > on_pim[2] == 0
    for item in (free, fast, slow):
        assert item.plan.predicted_us == pytest.approx(item.timeline.makespan_us, rel=1e-9)


def test_pipelines_hide_some_of_them() -> None:
    result = compiled(200.0, "pimflow")
    assert result.plan.predicted_us == pytest.approx(result.timeline.makespan_us, rel=1e-9)
    assert any(event.resource == "transfer" for event in result.timeline.events)
    assert result.verify().passed
