"""Batches drawn once, priced on machines whose memory tiers differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pimflow import gnn
from pimflow.gnn.loop import sample_epoch
from pimflow.sparse.generate import power_law
from pimflow.targets import load_target, override

GRAPH = power_law(2000, 20_000, 200)
MACHINE = load_target("rtx3090")
AMOUNTS: dict[str, Any] = {
    "fan_outs": (6, 3),
    "batch": 50,
    "features": 90,
    "hidden": 16,
    "classes": 5,
    "train": 300,
    "seed": 3,
}


@pytest.mark.parametrize(
    "values",
    [
        {"memory.host.gather_gb_per_s": 3, "memory.host.step_us": 100},
        {"memory.pcie.request_bytes": 64, "memory.pcie.outstanding_requests": 8},
        {"memory.host.spin_us": 1e6, "gpu.energy.static_w": 7, "memory.host.sampled_edges_per_us": 0.5},
    ],
)
def test_batches_are_reused_for_other_memory_tiers(values: dict[str, float]) -> None:
    other = override(MACHINE, values)
    sampled_epoch = sample_epoch(GRAPH, "sage", MACHINE, batches=3, **AMOUNTS)
    assert sampled_epoch.on(other) == gnn.epoch(GRAPH, "sage", target=other, batches=3, **AMOUNTS)
    assert sampled_epoch.on(MACHINE) != sampled_epoch.on(other)


@pytest.mark.parametrize("spin_w", [0.0, 30.0, 110.0])
def test_busy_waiting_threads_draw_power_for_the_rest_of_the_batch_only(spin_w: float) -> None:
    sampled_epoch = sample_epoch(GRAPH, "sage", MACHINE, batches=1, **AMOUNTS)
    always = sampled_epoch.on(
        override(MACHINE, {"memory.host.spin_us": 1e9, "memory.host.spin_w": spin_w, "memory.host.gather_w": 110})
    )
    for row in (always["gather"], always["gather-pageable"]):
        gathering = row.transfer_parts_us["gather"] / row.batch_us
        assert row.power_parts_w["gather"] == pytest.approx(110 * gathering + spin_w * (1 - gathering))
    assert always["zero-copy"].power_parts_w["gather"] == 0


def test_by_default_waiting_threads_draw_the_power_of_gathering() -> None:
    tier = MACHINE.memory.host if MACHINE.memory else None
    assert tier is not None
    assert tier.waiting_w == tier.spin_w != tier.gather_w
    assert replace(tier, spin_w=None).waiting_w == tier.gather_w


def test_batches_are_reused_for_another_loader() -> None:
    sampled_epoch = sample_epoch(GRAPH, "sage", MACHINE, batches=2, **AMOUNTS)
    other = replace(sampled_epoch, loader="none").on(MACHINE)
    assert other == gnn.epoch(GRAPH, "sage", loader="none", batches=2, **AMOUNTS)
