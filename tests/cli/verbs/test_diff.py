"""`pimflow diff`: two folders, as text and as JSON; anything but an output folder gives a one-line error."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cli import Capture, assert_one_line, document, run


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("diff")
    for policy in ("gpu", "newton++"):
        assert run("compile", "zoo:toy", "-o", folder / policy, "--policy", policy, "--no-cache") == 0
    return folder / "gpu", folder / "newton++"


def test_two_folders(folders: tuple[Path, Path], capsys: Capture) -> None:
    found = document(capsys, "diff", *folders)
    assert (found["a"]["policy"], found["b"]["policy"]) == ("gpu", "newton++")
    assert [change["key"] for change in found["options"]] == ["policy"]
    change_us = found["totals"]["time_us"]["b"] - found["totals"]["time_us"]["a"]
    assert sum(node["change_us"] for node in found["nodes"]) == pytest.approx(change_us)
    assert run("diff", *folders, "-v") == 0
    assert "conv2" in capsys.readouterr().out


def test_anything_but_an_output_folder_is_refused(folders: tuple[Path, Path], tmp_path: Path, capsys: Capture) -> None:
    assert run("diff", folders[0], tmp_path) == 2
    assert_one_line(capsys, str(tmp_path))
