"""Functions that need no model, called from Python: they return the verbs' results as rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import pimflow
from pimflow.runtime.gpu.calibrate import CalibrationWarning
from support.cli import Capture, document, run
from support.wrong_types import assert_type_error

LAYER = pimflow.MatmulProblem(1, 64, 64)


def same(told: dict[str, Any], data: dict[str, Any]) -> bool:
    """Whether a verb's document equals that of a result, apart from its own header."""
    return {key: told[key] for key in data} == data and set(told) - set(data) == {"format", "pimflow", "command"}


def test_layer_matches_the_verb(capsys: Capture) -> None:
    found = pimflow.layer(LAYER, mapping="newton++", target="aim-gddr6")
    assert same(
        document(capsys, "layer", "--matmul", "m=1,k=64,n=64", "--mapping", "newton++", "--target", "aim-gddr6"),
        found.as_json(),
    )
    (row,) = pd.DataFrame(found).to_dict("records")
    assert row["pim_cycles"] == found.as_json()["pim_cycles"]
    assert row["device"] == "pim"


def test_simulate_matches_the_verb(capsys: Capture, tmp_path: Path) -> None:
    files = [tmp_path / f"{channel}.pim" for channel in (0, 1)]
    compiled = pimflow.compile("zoo:toy", policy="pim", use_cache=False)
    for channel, file in enumerate(files):
        file.write_text("".join(compiled.trace("conv2", channel)))
    found = pimflow.simulate(files)
    assert same(document(capsys, "simulate", *files), found.as_json())
    assert pd.DataFrame(found)["cycles"].tolist() == [trace.cycles for _, trace in found.traces]
    assert pimflow.simulate(files[0])[0]["file"] == str(files[0])


@pytest.fixture(scope="module")
def kernels() -> pimflow.Profile:
    """Kernels with fixed times, because what rows determine depends on the times."""
    measured = pimflow.profile("zoo:toy", runs=1, warmup=0)
    timed = (replace(kernel, time_us=10.0 + index) for index, kernel in enumerate(measured.kernels))
    return replace(measured, kernels=tuple(timed))


def test_calibrate_matches_the_verb(capsys: Capture, tmp_path: Path, kernels: pimflow.Profile) -> None:
    table, target = tmp_path / "toy.csv", tmp_path / "mine.toml"
    table.write_text(kernels.csv())
    with pytest.warns(CalibrationWarning, match="5 rows determine"):
        found = pimflow.calibrate(table, folds=2, name="mine")
    assert same(document(capsys, "calibrate", "--from", table, "--folds", "2", "-o", target), found.as_json())
    assert target.read_text() == found.toml()
    fitted = pimflow.load_target(target)
    assert fitted == found.target
    assert (fitted.name, found.target.overrides != ()) == ("mine", True)
    assert "RTX" not in fitted.description
    assert "# [A] 14 Gb/s GDDR6, 16 bits per channel" in target.read_text()
    assert pd.DataFrame(found)["rows"].tolist()[-1] == 5
    checked = pimflow.calibrate(kernels, check=True)
    assert (checked.determined, checked.target) == (None, pimflow.load_target("pimflow"))


def test_the_command_line_warns_of_undetermined_parameters(
    capsys: Capture, tmp_path: Path, kernels: pimflow.Profile
) -> None:
    table = tmp_path / "toy.csv"
    table.write_text(kernels.csv())
    assert run("calibrate", "--from", table, "--folds", 2) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("pimflow: warning: 5 rows determine ")
    assert captured.err.count("\n") == 1
    assert "parameters are determined by the 5 rows" in captured.out


def test_shipped_items_are_listed(capsys: Capture) -> None:
    assert list(pimflow.zoo()) == document(capsys, "zoo", "list")["models"]
    names = [target["name"] for target in document(capsys, "targets", "list")["targets"]]
    assert pd.DataFrame(pimflow.list_targets())["name"].tolist() == names
    passes = [known["name"] for known in document(capsys, "opt", "--list")["passes"]]
    assert pd.DataFrame(pimflow.list_passes())["name"].tolist() == passes


def test_a_model_of_the_zoo_is_the_file_that_is_exported(tmp_path: Path) -> None:
    assert run("zoo", "export", "toy", "-o", tmp_path / "toy.onnx") == 0
    assert pimflow.zoo_model("toy").SerializeToString(deterministic=True) == (tmp_path / "toy.onnx").read_bytes()


WRONG: dict[str, tuple[Any, str]] = {
    "layer": (lambda: pimflow.layer(3), "'work' is an int; give a ConvProblem or a MatmulProblem"),  # type: ignore[arg-type]
    "files": (lambda: pimflow.simulate(3), "'files' is an int; "),  # type: ignore[arg-type]
    "file": (lambda: pimflow.simulate([3]), "'files' is an int; "),  # type: ignore[list-item]
    "tables": (lambda: pimflow.calibrate(3), "'tables' has an int; "),  # type: ignore[arg-type]
    "table": (lambda: pimflow.calibrate({"a": 1}), "'tables' has a dict; "),  # type: ignore[arg-type]
    "target": (lambda: pimflow.layer(LAYER, target=3), "'target' is an int; "),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_type_is_a_one_line_type_error(name: str) -> None:
    assert_type_error(*WRONG[name])


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (
            pimflow.ConvProblem(1, 16, 16, 8, 8, (0, 1)),
            "'kernel' of the layer is (0, 1); it must be whole",
        ),
        (pimflow.ConvProblem(1, 16, 16, 8, 8, (1, 1), pads=(0, 0, 0, -1)), "'pads' of the layer is (0, 0, 0, -1); "),
        (pimflow.ConvProblem(1, 16, 16, 8, 8, (3, 3), groups=3), "the channels of the layer are not multiples"),
        (pimflow.ConvProblem(1, 16, 16, 2, 8, (3, 3)), "the kernel of the layer is larger than its padded input"),
        (pimflow.ConvProblem(1, 16, 16, 10**30, 8, (3, 3)), "the layer has more than 1e+18 multiplications; make its"),
        (pimflow.MatmulProblem(10**400, 64, 64), "the layer has more than 1e+18 multiplications; "),
        (pimflow.MatmulProblem(1, 64, -64), "'n' of the layer is -64; "),
        (pimflow.MatmulProblem(1, 2.5, 64), "'work.k' is 2.5; "),  # type: ignore[arg-type]
    ],
)
def test_an_invalid_layer_is_a_one_line_error(layer: Any, message: str) -> None:
    with pytest.raises(pimflow.PimflowError) as caught:
        pimflow.layer(layer)
    assert message in str(caught.value)
