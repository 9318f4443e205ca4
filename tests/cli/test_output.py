"""Stdout takes any text in any encoding, with names escaped; progress shows only on a terminal, and is erased."""

from __future__ import annotations

import ast
import io
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pimflow.cli import output, verbs
from pimflow.cli.output import Progress, escape_unencodable, print_data
from support.cli import Capture, run


class Screen(io.StringIO):
    """A stderr that is a terminal, or not."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def shown(monkeypatch: pytest.MonkeyPatch, *texts: str, terminal: bool = True, columns: str = "80") -> str:
    screen = Screen(terminal=terminal)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(output, "_EVERY_S", 0.0)
    monkeypatch.setenv("COLUMNS", columns)
    with Progress() as progress:
        for text in texts:
            progress(text)
    return screen.getvalue()


def test_the_progress_line_is_rewritten_and_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, "searching", "done") == "searching\rdone     \r    \r"


def test_progress_is_shown_only_on_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, "searching", "done", terminal=False) == ""


def test_a_line_does_not_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, "0123456789", columns="8") == "0123456\r       \r"
    assert shown(monkeypatch, "节点节点节点", columns="8") == "节点节 \r       \r"


def test_a_dumb_terminal_gets_no_progress_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert shown(monkeypatch, "searching") == ""


def test_progress_is_shown_at_most_ten_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(terminal=True)
    monkeypatch.setattr("sys.stderr", screen)
    with Progress() as progress:
        progress("at once")
    assert screen.getvalue() == ""


class Clock:
    """A clock that advances when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)


def test_long_steps_are_shown_again_with_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", screen := Screen(terminal=True))
    clock, progress = Clock(monkeypatch), Progress()
    progress("load net")  # too early to be shown
    clock.now += 0.4
    progress.tick()
    assert screen.getvalue() == ""
    clock.now += 0.2
    progress.tick()
    assert screen.getvalue() == "load net\r"
    clock.now += 1
    progress.tick()
    assert screen.getvalue() == "load net\rload net (1 s so far)\r"
    progress("clean net")
    clock.now += 40
    progress.tick()
    assert screen.getvalue().split("\r")[2:] == ["clean net (40 s so far)", ""]


def test_the_time_is_shown_while_work_reports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()

    class Watched(Screen):
        def write(self, text: str) -> int:
            told.set()
            return super().write(text)

    monkeypatch.setattr("sys.stderr", screen := Watched(terminal=True))
    monkeypatch.setattr(output, "_TICK_S", 0.001)
    with Progress() as progress:
        progress("load net")
        assert told.wait(60)
    assert screen.getvalue().startswith("load net\r")
    assert all(thread.name != "ticking" for thread in threading.enumerate())


EVIL = "\x1b[31m\x1b]0;title\x07\r\n\x9b\u202e"


def evil_model(path: Path) -> Path:
    """A convolution and a Relu whose names all contain escape sequences."""
    names = {name: f"{EVIL}{name}" for name in ("x", "w", "y", "z", "conv", "relu")}
    weights = np.ones((8, 8, 1, 1), np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", [names["x"], names["w"]], [names["y"]], names["conv"]),
            helper.make_node("Relu", [names["y"]], [names["z"]], names["relu"]),
        ],
        f"{EVIL}graph",
        [helper.make_tensor_value_info(names["x"], TensorProto.FLOAT, [1, 8, 8, f"{EVIL}W"])],
        [helper.make_tensor_value_info(names["z"], TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weights, names["w"])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_no_name_reaches_the_terminal_raw(tmp_path: Path, capsys: Capture) -> None:
    model, folder = evil_model(tmp_path / "evil.onnx"), tmp_path / "out"
    shape = ("--shape", f"{EVIL}W=8")
    assert run("compile", model) == 2  # the error names the unbound dimension
    assert run("compile", model, *shape, "-o", folder, "-v", "--policy", "pim", "--print-ir-after-all") == 0
    assert run("inspect", model, *shape) == 0
    assert run("inspect", model, *shape, "--text") == 0
    assert run("opt", model, *shape, "-p", "cleanup", "-v") == 0
    assert run("verify", folder) == 0
    assert run("trace", folder, f"{EVIL}nothing") == 2
    captured = capsys.readouterr()
    assert "\\x1b[31m" in captured.out
    assert all(char.isprintable() or char == "\n" for char in captured.out + captured.err)


def test_all_verbs_print_through_the_same_functions() -> None:
    for path in sorted(Path(verbs.__path__[0]).glob("*.py")):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        assert "print" not in {ast.unparse(call.func) for call in calls}, path


def test_nothing_is_shown_if_it_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", screen := Screen(terminal=True))
    monkeypatch.setattr(output, "_EVERY_S", 0.0)
    with Progress(quiet=True) as progress:
        progress("searching")
    assert screen.getvalue() == ""


def windows(monkeypatch: pytest.MonkeyPatch) -> io.BytesIO:
    """Give stdout an encoding that lacks most characters; return the bytes written to it."""
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, "cp1252"))
    return written


def test_characters_that_stdout_lacks_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    written = windows(monkeypatch)
    with escape_unencodable():
        print("Größe ─ 模型 \udcff")
        sys.stdout.flush()
    assert written.getvalue().decode("cp1252") == "Größe \\u2500 \\u6a21\\u578b \\udcff\n"
    assert isinstance(sys.stdout, io.TextIOWrapper)
    assert (sys.stdout.encoding, sys.stdout.errors) == ("cp1252", "strict")


def test_output_for_programs_is_utf_8(monkeypatch: pytest.MonkeyPatch) -> None:
    written = windows(monkeypatch)
    with escape_unencodable():
        print_data(("模", "型\n"))
        sys.stdout.flush()
    assert written.getvalue() == "模型\n".encode()
    assert sys.stdout.encoding == "cp1252"
