"""Reassigned memory channels: which nodes pay for it, and where it is shown."""

from __future__ import annotations

from functools import cache

import pytest

import pimflow
from pimflow.ir.plan import has_all_channels, switches
from pimflow.runtime.spending import total
from pimflow.targets import override

SWITCH_US = 0.005


@cache
def toy() -> pimflow.CompiledModel:
    target = override("pimflow", {"pim.channel_switch_us": SWITCH_US})
    return pimflow.compile("zoo:toy", target=target, use_cache=False)


def test_time_adds_up_with_switches() -> None:
    compiled = toy()
    count, run = switches(compiled.plan.decisions), compiled.report.result
    assert count == 2
    assert run.spent.busy_parts_us["memory channels"] == {"switch": pytest.approx(count * SWITCH_US)}
    assert total(run.spent.share_parts_us) == pytest.approx(run.time_us) == pytest.approx(compiled.plan.predicted_us)
    assert sum(total(row.spent.share_parts_us) for row in compiled.report.nodes) == pytest.approx(run.time_us)
    assert sum(total(row.spent.energy_parts_mj) for row in compiled.report.nodes) == pytest.approx(run.energy_mj)


def test_nothing_runs_while_channels_are_reassigned() -> None:
    events = toy().timeline.events
    switched = [event for event in events if event.resource == "memory channels"]
    assert len(switched) == 2
    for switch in switched:
        others = [event for event in events if event is not switch]
        assert all(event.end_us <= switch.start_us or event.start_us >= switch.end_us for event in others)


def test_switches_are_shown() -> None:
    compiled = toy()
    assert "channels  change hands 2 times, 0.01 us in all" in compiled.summary()
    whole = {name for decision in compiled.plan.decisions if has_all_channels(decision) for name in decision.nodes}
    told = {row.name for row in compiled.report.nodes if "the GPU has all memory channels" in row.why}
    assert told == whole
