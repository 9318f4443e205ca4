"""A model on stdin."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

import pimflow_zoo
from pimflow.cli.stdin import stdin_bytes
from pimflow.errors import ModelError
from support.cli import Capture, assert_one_line, document, run


def on_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), "ascii"))


def test_a_model_is_compiled_from_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    model = pimflow_zoo.build("toy").SerializeToString()
    on_stdin(monkeypatch, model)
    found = document(capsys, "compile", "-", "--policy", "gpu", "--no-cache")
    assert found["output_dir"] == "model.pimflow"
    assert run("verify", "model.pimflow") == 0
    on_stdin(monkeypatch, model)
    assert document(capsys, "inspect", "-")["nodes"] == document(capsys, "inspect", "zoo:toy")["nodes"]


def test_stdin_without_a_model_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    on_stdin(monkeypatch, b"")
    assert run("inspect", "-") == 2
    assert_one_line(capsys, "stdin is empty")
    on_stdin(monkeypatch, b"\xff" * 9)
    assert run("inspect", "-") == 2
    assert_one_line(capsys, "is not an ONNX model")
    monkeypatch.setattr("sys.stdin", None)
    assert run("inspect", "-") == 2
    assert_one_line(capsys, "stdin is closed")


def test_no_more_is_read_than_a_model_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    on_stdin(monkeypatch, b"123")
    assert stdin_bytes(most=3) == b"123"
    on_stdin(monkeypatch, b"1234")
    with pytest.raises(ModelError, match="more than 3 bytes"):
        stdin_bytes(most=3)
