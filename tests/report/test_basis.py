"""Every speedup is shown with the basis of its GPU model."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

from pimflow.cli import main
from pimflow.data import Table
from pimflow.report.basis import MEASURED_TARGET, gpu_basis
from pimflow.targets import load_target, target_names
from pimflow.targets.schema import Unit

PIMFLOW = load_target("pimflow")
SIMULATED = "GPU fitted to the paper's simulator; measured GPU: --target turing-pim"
MEASURED = "GPU calibrated on 2226 kernels measured on NVIDIA T4"


def test_every_shipped_target_states_its_basis() -> None:
    found = {name: gpu_basis(load_target(name)) for name in target_names()}
    assert found == dict.fromkeys(("aim-gddr6", "hbm-pim", "pimflow", "pimflow-cpu"), SIMULATED) | {
        MEASURED_TARGET: MEASURED,
        "upmem-gpu": MEASURED,
        "h200": "GPU calibrated on 1263 kernels measured on NVIDIA H200",
        "upmem": "",
        "rtx3090": "GPU with the efficiencies of kernels measured on NVIDIA T4",
        "a100-ssd": "GPU with data sheets' peaks and efficiencies of kernels measured on NVIDIA T4",
    }


@dataclass(frozen=True)
class Cpu(Unit):
    """A host that is not a GPU."""

    kind: ClassVar[str] = "cpu"
    can_host: ClassVar[bool] = True


def test_targets_of_a_users_own() -> None:
    fitted = PIMFLOW.with_units(gpu=replace(PIMFLOW.gpu, basis="calibrated on 30 measured kernels"))
    assert gpu_basis(fitted) == "GPU calibrated on 30 measured kernels"
    silent = replace(PIMFLOW.with_units(gpu=replace(PIMFLOW.gpu, basis="")), name="mine")
    assert gpu_basis(silent).startswith("GPU of mine, which does not say what it was fitted to; measured GPU: ")
    assert gpu_basis(replace(PIMFLOW, units=Table({"cpu": Cpu(), "pim": PIMFLOW.pim}))) == ""


def test_measured_kernels_take_precedence() -> None:
    text = "GPU fitted to the paper's simulator; profiled kernels as measured"
    assert gpu_basis(PIMFLOW, measured=True) == text


@pytest.mark.parametrize(("target", "basis"), [("pimflow", SIMULATED), ("turing-pim", MEASURED)])
def test_summary_comparison_and_documents(
    target: str, basis: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["zoo:toy", "--target", target, "--no-cache"]
    assert main(["compile", *options, "--policy", "pimflow", "-o", str(tmp_path / "a")]) == 0
    lines = capsys.readouterr().out.splitlines()
    speedup = next(index for index, line in enumerate(lines) if line.startswith("speedup"))
    assert lines[speedup + 1].split(maxsplit=1) == ["baseline", basis]
    assert main(["compile", *options, "--policy", "pimflow", "-o", str(tmp_path / "b"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gpu_basis"] == basis
    assert main(["compare", *options, "--policies", "gpu"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"speedups are over the {basis}"
    assert main(["compare", *options, "--policies", "gpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gpu_basis"] == basis
