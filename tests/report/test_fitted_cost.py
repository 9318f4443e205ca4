"""Policies, fronts and sweeps price activations that do not fit in the same way as `compile`."""

from __future__ import annotations

from pathlib import Path

import pytest

import pimflow
from pimflow.compiled import CompiledModel
from pimflow.errors import OptionError
from pimflow.runtime.offload.spill import SpillWay
from support.offload import machine, step

KIB = 400
"""Memory of the GPU: less than the step takes with all activations kept, enough if everything possible is offloaded."""


def compiled(kib: float = KIB, base: str = "a100-ssd", policy: str = "gpu", spill: SpillWay = "auto") -> CompiledModel:
    return pimflow.compile(step(), target=machine(kib, base), policy=policy, spill=spill, use_cache=False, check=False)


def figures(model: CompiledModel) -> tuple[float, float, bool]:
    """The figures of `compile --json`."""
    document = model.document()
    spill, result = document["memory"].get("spill"), document["result"]
    if spill is None:
        return result["time_us"], result["energy_mj"], "DOES NOT FIT" not in dict(model.about)["GPU memory"]
    return spill["time_us"], spill["energy_mj"], spill["fits"]


@pytest.mark.parametrize(
    ("kib", "base", "policy", "spill"),
    [
        (KIB, "a100-ssd", "gpu", "auto"),
        (KIB, "a100-ssd", "gpu", "recompute"),
        (KIB, "a100-ssd", "gpu", "never"),
        (150, "a100-ssd", "gpu", "auto"),
        (1 << 20, "a100-ssd", "gpu", "auto"),
        (560, "pimflow", "md-dp", "auto"),
    ],
)
def test_the_figures_are_those_of_compile(kib: float, base: str, policy: str, spill: SpillWay) -> None:
    expected = figures(compiled(kib, base, policy, spill))
    target = machine(kib, base)
    (row,) = pimflow.compare(step(), policies=[policy], target=target, spill=spill, use_cache=False).records()
    assert (row["spilled_us"], row["spilled_energy_mj"], row["fits"]) == expected
    points = pimflow.front(step(), policy=policy, target=target, spill=spill, use_cache=False).records()
    assert expected in [(point["spilled_us"], point["spilled_energy_mj"], point["fits"]) for point in points]


def test_tables_show_what_fits() -> None:
    text = pimflow.compare(step(), policies=["gpu"], target=machine(KIB), use_cache=False).text()
    assert "as it fits (us)" in text
    assert "DOES NOT FIT" not in text
    front = pimflow.front(step(), policy="gpu", target=machine(150), use_cache=False).text()
    assert "DOES NOT FIT" in front
    assert "as it fits" not in pimflow.compare(step(), policies=["gpu"], target=machine(1 << 20)).text()


def test_a_sweep_has_the_same_figures(tmp_path: Path) -> None:
    model = tmp_path / "step.onnx"
    model.write_bytes(step())
    sizes = [KIB / 2**20, 1.0]
    study = {
        "models": [str(model)],
        "targets": ["a100-ssd"],
        "policies": ["gpu"],
        "objectives": ["spilled_us", "memory.gpu.capacity_gib"],
        "grid": {"memory.gpu.capacity_gib": sizes, "memory.gpu.reserved_gib": [0.0]},
    }
    found = pimflow.sweep(study, jobs=1)
    rows = found.records()
    assert [(row["spilled_us"], row["spilled_energy_mj"], row["fits"]) for row in rows] == [
        figures(compiled()),
        figures(compiled(1 << 20)),
    ]
    assert all(row["on_front"] for row in rows)
    assert "1 point needs more than its GPU's memory; with offloaded or recomputed activations 1 fits" in " ".join(
        found.text().split()
    )


def test_inferences_in_flight_are_refused() -> None:
    with pytest.raises(OptionError, match="recompute is for one inference after the other"):
        pimflow.compare(step(), policies=["gpu"], target=machine(KIB), spill="recompute", objective="throughput")
