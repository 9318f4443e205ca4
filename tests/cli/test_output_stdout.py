"""`-o -`: a verb's file on stdout, in place of a file of that name."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

import pimflow_zoo
from pimflow.targets import load_target
from support.cli import Capture, assert_one_line, run

TABLE = Path(__file__).parent.parent / "data" / "measured" / "t4_fp32_add.csv"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, in which no verb may leave anything."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(capsys: Capture, *arguments: object) -> str:
    assert run(*arguments, "-o", "-") == 0
    assert not Path("-").exists()
    return capsys.readouterr().out


def test_a_page_and_node_data_go_to_stdout(capsys: Capture) -> None:
    assert run("compile", "zoo:toy", "-o", "toy", "--policy", "gpu", "-q") == 0
    assert written(capsys, "report", "toy").startswith("<!")
    assert json.loads(written(capsys, "report", "toy", "--format", "model-explorer"))


def test_a_model_goes_to_stdout(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run("zoo", "export", "toy", "-o", "-") == 0
    model = pimflow_zoo.build("toy")
    assert onnx.load_from_string(capfdbinary.readouterr().out).graph == model.graph


def test_a_model_is_no_text_for_a_terminal(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert run("zoo", "export", "toy", "-o", "-") == 2
    assert_one_line(capsys, "no text for a terminal")


def test_text_and_tables_go_to_stdout(capsys: Capture) -> None:
    graph = written(capsys, "opt", "zoo:toy", "-p", "fold-constants")
    assert run("opt", "zoo:toy", "-p", "fold-constants") == 0
    assert capsys.readouterr().out == graph
    assert written(capsys, "profile", "zoo:toy", "--runs", 1, "--warmup", 0).startswith("op,")


def test_a_fitted_target_goes_to_stdout_and_its_errors_to_stderr(capsys: Capture, here: Path) -> None:
    options = ("calibrate", "--target", "turing-pim", "--from", TABLE, "--folds", 2, "-o", "-")
    assert run(*options) == 0
    captured = capsys.readouterr()
    (here / "mine.toml").write_text(captured.out)
    assert load_target(here / "mine.toml").name == "turing-pim-calibrated"
    assert "held out" in captured.err
    assert run(*options, "--json") == 2
    assert_one_line(capsys, "-o - and --json both write to stdout")


@pytest.mark.parametrize("arguments", [("compile", "zoo:toy"), ("sweep", "sweep.toml")])
def test_a_folder_cannot_go_to_stdout(capsys: Capture, arguments: tuple[str, ...]) -> None:
    assert run(*arguments, "-o", "-") == 2
    assert_one_line(capsys, "-o - is stdout, which cannot take a folder", "./-")
