"""`pimflow profile` and `pimflow calibrate`: kernels timed, a target fitted."""

from __future__ import annotations

from pathlib import Path

import pytest

import pimflow
from support.cli import Capture, document, run


def test_profile_and_calibrate(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, target = tmp_path / "toy.csv", tmp_path / "mine.toml"
    assert run("profile", "zoo:toy", "--runs", 2, "--warmup", 1, "-o", table) == 0
    with monkeypatch.context() as patch:
        patch.setattr(pimflow, "profile", None)  # nothing is timed if the file cannot be written
        assert run("profile", "zoo:toy", "--runs", 2, "-o", table) == 2
    assert document(capsys, "calibrate", "--from", table, "--folds", 2, "-o", target)
    assert run("compile", "zoo:toy", "-o", tmp_path / "out", "--target", target, "--profile", table) == 0
    table.write_text(table.read_text().replace("Conv", "Conv,", 1))
    assert run("calibrate", "--from", table) == 2
    assert "line 2" in capsys.readouterr().err


DATA = Path(__file__).parent.parent.parent / "data" / "measured"


def test_several_published_tables_checked_without_a_fit(capsys: Capture) -> None:
    tables = [DATA / f"t4_fp32_{op}.csv" for op in ("softmax", "relu")]
    found = document(capsys, "calibrate", "--target", "turing-pim", "--check", "--from", *tables)
    assert set(found["errors"]) == {"fp32 Softmax", "fp32 Relu", "all"}
    assert found["errors"]["all"]["rows"] == 600
    assert found["errors"]["all"]["before_median"] < 0.1
    assert found["parameters"] == {}
    assert found["folds"] == 0


def test_held_out_by_size(capsys: Capture, tmp_path: Path) -> None:
    table, target = DATA / "t4_fp32_add.csv", tmp_path / "mine.toml"
    options = ("--target", "turing-pim", "--from", table, "--folds", 2, "--folds-by", "size", "-o", target)
    assert run("calibrate", *options) == 0
    shown = capsys.readouterr().out
    assert "fp32.elementwise.memory_efficiency" in shown
    assert "held out" in shown
    assert 'basis = "calibrated on 300 kernels measured on NVIDIA T4"' in target.read_text()


def test_a_check_has_nothing_to_write(capsys: Capture, tmp_path: Path) -> None:
    options = ("--check", "-o", tmp_path / "mine.toml")
    assert run("calibrate", "--target", "turing-pim", "--from", DATA / "t4_fp32_add.csv", *options) == 2
    assert "--check fits nothing" in capsys.readouterr().err
