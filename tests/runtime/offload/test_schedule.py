"""Energies of a schedule in which activations are offloaded and loaded: by hand."""

from __future__ import annotations

import pytest

from pimflow.runtime.offload.schedule import SSD
from pimflow.runtime.spending import STATIC
from support.offload import compiled_short


def test_a_transfers_energy_is_that_of_drives_link_and_memory() -> None:
    """52 W while the drives work, 80 pJ per byte of the link, and the energy per byte of the GPU's memory."""
    model, spill = compiled_short()
    schedule = model.spilled_schedule
    assert schedule is not None
    dram_pj = model.machine.target.any_gpu.energy.dram_pj_per_byte
    moved = [event for event in schedule.events if event.resource == SSD]
    assert [(event.start_us, event.end_us) for event in moved] == [
        (transfer.begin_us, transfer.end_us) for transfer in spill.found.run.transfers
    ]
    for event in moved:
        expected = 52e-3 * (event.end_us - event.start_us) + event.bytes * (80 + dram_pj) * 1e-9
        assert event.energy_mj == pytest.approx(expected)
    idle_mj = 20e-3 * schedule.makespan_us
    assert schedule.energy_mj[SSD] == pytest.approx(idle_mj + sum(event.energy_mj for event in moved))


def test_kernels_keep_their_energy_and_static_power_lasts_longer() -> None:
    """Each as often as it runs; static power for the whole time."""
    model, spill = compiled_short()
    schedule, run = model.spilled_schedule, spill.found.run
    assert schedule is not None
    steps = [model.timeline.events[rerun.place - spill.trace.input_kernels].node for rerun in run.reruns]
    assert [event.name for event in schedule.events if event.kind == "again"] == steps
    once = {
        event.name: (event.energy_mj, event.end_us - event.start_us)
        for event in schedule.events
        if event.kind == "run" and event.end_us > event.start_us
    }
    busy_w = model.machine.target.any_gpu.energy.busy_w
    kept_mj = model.timeline.total_energy_mj - model.timeline.energy_mj[STATIC]
    longer_us = sum(us for _, us in once.values()) - model.timeline.makespan_us
    assert sum(mj for mj, _ in once.values()) == pytest.approx(kept_mj + busy_w * longer_us * 1e-3)
    assert schedule.energy_mj[STATIC] == pytest.approx(
        model.timeline.energy_mj[STATIC] * run.time_us / model.timeline.makespan_us
    )
