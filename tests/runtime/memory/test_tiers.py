"""A model is held against the memory of the GPU that it is compiled for, where the target says how much there is."""

from __future__ import annotations

from pathlib import Path

import pytest

import pimflow
from pimflow.runtime.memory.tiers import gigabytes
from support.cli import document


def test_what_fits_and_what_does_not_is_a_line_of_the_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roomy = pimflow.compile("zoo:toy", target="rtx3090", policy="gpu")
    line = dict(roomy.about)["GPU memory"]
    needed = roomy.memory.arena_bytes + roomy.memory.weight_bytes
    assert line == f"{gigabytes(needed)} of 24.96 GB taken, weights and activations at their peak"
    tight = pimflow.override("rtx3090", {"memory.gpu.capacity_gib": 0.0001, "memory.gpu.reserved_gib": 0})
    told = dict(pimflow.compile("zoo:toy", target=tight, policy="gpu").about)["GPU memory"]
    assert told == (
        f"DOES NOT FIT: weights and activations take {gigabytes(needed)} at their peak, the GPU has 0.11 MB for them"
    )
    command = ["compile", "zoo:toy", "--target", "rtx3090", "--policy", "gpu", "-o", str(tmp_path / "out")]
    memory = document(capsys, *command)["memory"]
    assert memory["gpu_capacity_bytes"] == round(23.25 * 2**30)


def test_without_tiers_nothing_is_said() -> None:
    compiled = pimflow.compile("zoo:toy", policy="gpu")
    assert "GPU memory" not in dict(compiled.about)
    assert "gpu_capacity_bytes" not in compiled.document()["memory"]


def test_small_amounts_are_told_in_megabytes() -> None:
    assert [gigabytes(amount) for amount in (10**5, 10**9, 24 * 10**9)] == ["0.10 MB", "1.00 GB", "24.00 GB"]
