"""`pimflow report`: a folder, or two, as a page."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from support.cli import Capture, assert_one_line, run


def test_one_folder_and_two(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    for policy in ("gpu", "md-dp"):
        assert run("compile", "zoo:toy", "-o", tmp_path / policy, "--policy", policy, "--no-cache", "-q") == 0
    page = tmp_path / "page.html"
    assert run("report", tmp_path / "md-dp", "-o", page, "--verify") == 0
    assert f"written to {page}" in capsys.readouterr().out
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert run("report", tmp_path / "gpu", "-o", page) == 2
    assert_one_line(capsys, f"{page} exists")
    monkeypatch.chdir(tmp_path)
    assert run("report", "gpu", "md-dp", "-q") == 0
    assert capsys.readouterr().out == ""
    assert "a difference" in (tmp_path / "gpu-to-md-dp.html").read_text(encoding="utf-8")
    assert run("report", "md-dp", "--format", "model-explorer") == 0
    assert "Model Explorer" in capsys.readouterr().out
    results = json.loads((tmp_path / "md-dp.json").read_text(encoding="utf-8"))["results"]
    names = {node.name for node in onnx.load(tmp_path / "md-dp" / "model.onnx").graph.node}
    assert set(results) < names
    assert run("report", "md-dp", "gpu", "--format", "model-explorer", "-o", "other.json") == 2
    assert_one_line(capsys, "node data describe a single folder")
    assert run("report", tmp_path, "-o", tmp_path / "none.html") == 2
    assert_one_line(capsys, "not an output folder")
    assert not (tmp_path / "none.html").exists()
