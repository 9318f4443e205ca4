"""A model is checked against the memory of the target's GPU, if the target states its size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import pimflow
from pimflow.runtime.memory.tiers import gigabytes
from pimflow.targets import Target, load_target
from pimflow.targets.schema import GpuMemory, Memory
from support.cli import document


def test_the_summary_states_whether_a_model_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    roomy = pimflow.compile("zoo:toy", target="rtx3090", policy="gpu")
    line = dict(roomy.about)["GPU memory"]
    needed = roomy.memory.arena_bytes + roomy.memory.weight_bytes
    assert line == f"{gigabytes(needed)} of 24.96 GB taken, weights and activations at their peak"
    tight = pimflow.override("rtx3090", {"memory.gpu.capacity_gib": 0.0001, "memory.gpu.reserved_gib": 0})
    told = dict(pimflow.compile("zoo:toy", target=tight, policy="gpu").about)["GPU memory"]
    assert told == (
        f"DOES NOT FIT: weights and activations take {gigabytes(needed)} at their peak, the GPU has 0.11 MB for them, "
        f"{gigabytes(needed - round(0.0001 * 2**30))} short; "
        "largest there: conv1 0.07 MB, depthwise 0.07 MB, weights 0.02 MB"
    )
    command = ["compile", "zoo:toy", "--target", "rtx3090", "--policy", "gpu", "-o", str(tmp_path / "out")]
    memory = document(capsys, *command)["memory"]
    assert memory["gpu_capacity_bytes"] == round(23.25 * 2**30)


def pim_with(capacity_gib: float) -> Target:
    """The paper's machine with this much memory on its GPU."""
    return replace(load_target("pimflow"), memory=Memory(GpuMemory(capacity_gib, 0.0)))


def test_no_more_are_in_flight_than_fit() -> None:
    free = pimflow.compile("zoo:toy", target=pim_with(1.0), objective="throughput")
    assert free.steady_report is not None
    assert free.plan.rest_us == free.steady_report.rest_us == 0
    weights, arena = free.memory.weight_bytes, free.steady_report.arena_bytes
    line = dict(free.about)["GPU memory"]
    in_flight = free.steady_report.in_flight
    assert line == f"{gigabytes(weights + arena)} of 1.07 GB taken, weights and activations of {in_flight} in flight"
    tight = pim_with((weights + arena - 1) / 2**30)
    held = pimflow.compile("zoo:toy", target=tight, objective="throughput")
    assert held.steady_report is not None
    assert held.steady_report.arena_bytes < arena
    assert free.plan.interval_us is not None
    assert held.plan.interval_us == pytest.approx(free.plan.interval_us + held.plan.rest_us)
    assert held.steady_report.interval_us == pytest.approx(held.plan.interval_us, abs=1e-3)
    assert held.plan.rest_us > 0
    assert held.steady_report.rest_us == pytest.approx(held.plan.rest_us, abs=1e-3)
    assert "as the GPU's memory holds no more in flight" in held.summary()
    checks = held.verify()
    assert checks.in_flight is not None
    assert checks.passed


def test_a_single_inference_that_does_not_fit_is_reported() -> None:
    compiled = pimflow.compile("zoo:toy", target=pim_with(0.0001), objective="throughput")
    assert compiled.plan.rest_us == 0
    assert dict(compiled.about)["GPU memory"].startswith("DOES NOT FIT: weights and activations of ")


def test_without_tiers_nothing_is_reported() -> None:
    compiled = pimflow.compile("zoo:toy", policy="gpu")
    assert "GPU memory" not in dict(compiled.about)
    assert "gpu_capacity_bytes" not in compiled.document()["memory"]


def test_small_amounts_are_shown_in_megabytes() -> None:
    assert [gigabytes(amount) for amount in (10**5, 10**9, 24 * 10**9)] == ["0.10 MB", "1.00 GB", "24.00 GB"]
