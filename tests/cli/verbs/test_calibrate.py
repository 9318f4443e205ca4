"""`pimflow profile` and `pimflow calibrate`: kernels timed, a target fitted."""

from __future__ import annotations

from pathlib import Path

from support.cli import Capture, document, run


def test_profile_and_calibrate(capsys: Capture, tmp_path: Path) -> None:
    table, target = tmp_path / "toy.csv", tmp_path / "mine.toml"
    assert run("profile", "zoo:toy", "--runs", 2, "--warmup", 1, "-o", table) == 0
    assert run("profile", "zoo:toy", "--runs", 2, "-o", table) == 2  # it exists
    assert document(capsys, "calibrate", "--from", table, "--folds", 2, "-o", target)
    assert run("compile", "zoo:toy", "-o", tmp_path / "out", "--target", target, "--profile", table) == 0
    table.write_text(table.read_text().replace("Conv", "Conv,", 1))
    assert run("calibrate", "--from", table) == 2
    assert "line 2" in capsys.readouterr().err
