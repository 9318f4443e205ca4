"""Names in a model that contain control characters are plain text wherever the command line prints or writes them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
import pytest

from pimflow.errors import printable
from support.cli import Capture, document, run
from support.hostile import NAMES, hostile_model

OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f\u2028-\u202e]")
"""Characters that a terminal or an editor obeys instead of showing; newlines and tabs are allowed."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hostile model, on PIM where possible, verified; the model's own name is hostile too."""
    place = tmp_path_factory.mktemp("hostile")
    model = place / "<script>'\x1b[31m.onnx"
    onnx.save(hostile_model(), model)
    assert run("compile", model, "--policy", "md-dp", "--no-cache", "-o", place / "out", "-q") == 0
    return place


def told(capsys: Capture, *arguments: object) -> str:
    """The output of a verb, including stderr."""
    capsys.readouterr()
    assert run(*arguments) == 0
    captured = capsys.readouterr()
    return captured.out + captured.err


def assert_is_text(text: str) -> None:
    assert text
    assert not OBEYED.search(text), text[:2000]


@pytest.mark.parametrize("name", NAMES)
def test_explain(name: str, folder: Path, capsys: Capture) -> None:
    text = told(capsys, "explain", folder / "out", name)
    assert_is_text(text)
    assert printable(name)[:20] in text
    assert "GPU alone" in text
    assert document(capsys, "explain", folder / "out", name)["node"]["name"] == name


@pytest.mark.parametrize("form", [(), ("--roofline",), ("--text",)])
def test_inspect(form: tuple[str, ...], folder: Path, capsys: Capture) -> None:
    (model,) = folder.glob("*.onnx")
    for source in (model, folder / "out"):
        assert_is_text(told(capsys, "inspect", source, *form))
    assert {node["name"] for node in document(capsys, "inspect", model)["nodes"]} == set(NAMES)


def test_compile_compare_and_verify(folder: Path, capsys: Capture, tmp_path: Path) -> None:
    (model,) = folder.glob("*.onnx")
    assert_is_text(told(capsys, "compile", model, "-v", "--no-cache", "-o", tmp_path / "again"))
    assert_is_text(told(capsys, "compare", model, "--no-cache", "--policies", "gpu,pimflow"))
    assert_is_text(told(capsys, "verify", folder / "out"))


def test_diff(folder: Path, capsys: Capture) -> None:
    assert run("compile", "zoo:toy", "--policy", "pim", "--no-cache", "-o", folder / "toy", "-q") == 0
    assert_is_text(told(capsys, "diff", folder / "out", folder / "toy"))
    nodes = document(capsys, "diff", folder / "out", folder / "toy")["nodes"]
    assert {node["a"]["name"] for node in nodes} == set(NAMES)


def test_trace_and_timeline(folder: Path, capsys: Capture) -> None:
    on_pim = {name for name in NAMES if not run("trace", folder / "out", name)}
    assert on_pim
    captured = capsys.readouterr()
    assert not OBEYED.search(captured.out + captured.err)
    text = (folder / "out" / "timeline.json").read_text()
    assert not OBEYED.search(text)
    assert {event["args"]["origin"] for event in json.loads(text)["traceEvents"] if "origin" in event.get("args", {})}


def test_sweep(folder: Path, capsys: Capture, tmp_path: Path) -> None:
    (model,) = folder.glob("*.onnx")
    study = {"models": [str(model)], "policies": ["gpu", "newton++"], "objectives": ["time_us"]}
    text = "\n".join(f"{key} = {json.dumps(value)}" for key, value in study.items())
    (tmp_path / "sweep.toml").write_text(text)
    assert_is_text(told(capsys, "sweep", tmp_path / "sweep.toml", "-o", tmp_path / "runs", "-j", "1", "--reports", "0"))
    for written in (tmp_path / "runs").iterdir():
        if written.is_file() and written.suffix != ".csv":  # CSV files have values unescaped
            assert not OBEYED.search(written.read_text()), written.name
