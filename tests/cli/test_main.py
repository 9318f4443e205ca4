"""The program: stdout stays clean, and an unwritable stdout gives a one-line error."""

from __future__ import annotations

import gc
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pimflow.cli.main import command_line, main, verb_names
from pimflow.cli.verbs import compile as compiling
from pimflow.cli.verbs import zoo
from pimflow.ir import Builder
from pimflow.onnxio import save_onnx
from support.cli import Capture, assert_one_line, document, run

FULL = Path("/dev/full")


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["compile", "a b.onnx", "-o", "out", "--json"], "pimflow compile 'a b.onnx' --json"),
        (["compile", "m.onnx", "--output=out"], "pimflow compile m.onnx"),
        (["compile", "m.onnx", "-oout", "--output", "x", "--policy", "gpu"], "pimflow compile m.onnx --policy gpu"),
        (["compile", "-o", "out", "--", "-oo.onnx"], "pimflow compile -- -oo.onnx"),
    ],
)
def test_the_recorded_command_leaves_out_the_output(words: list[str], command: str) -> None:
    assert command_line(words) == command


def test_an_installed_program_keeps_stdout_clean(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pimflow", "compile", "zoo:toy", "-o", str(tmp_path / "out"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"}, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["output_dir"] == str(tmp_path / "out")
    assert "Traceback" not in done.stderr


def test_a_verb_collects_garbage_rarely_and_leaves_its_caller_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def look(arguments: object) -> int:
        seen.append(gc.get_threshold()[0])
        return 0

    monkeypatch.setattr(zoo, "run", look)
    before = gc.get_threshold()
    assert main(["zoo", "list"]) == 0
    assert seen[0] > before[0]
    assert gc.get_threshold() == before
    monkeypatch.setattr(compiling, "run", look)
    assert main(["compile", "zoo:toy"]) == 0
    assert seen[1] > seen[0], "objects made for one model are needed to the end"
    assert gc.get_threshold() == before


@pytest.mark.parametrize("given", [None, "20"])
def test_the_program_spends_no_time_on_idle_threads_or_final_garbage(given: str | None) -> None:
    code = (
        "import contextlib, gc, os, sys; from pimflow.__main__ import outcome; sys.argv[1:] = ['--version']\n"
        "with contextlib.suppress(SystemExit): outcome()\n"
        "print(os.environ['OPENBLAS_THREAD_TIMEOUT'], gc.get_threshold()[0])"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_THREAD_TIMEOUT"}
    environment |= {} if given is None else {"OPENBLAS_THREAD_TIMEOUT": given}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.splitlines()[-1] == f"{given or 4} 0"


@pytest.mark.skipif(sys.platform == "win32", reason="folders without permissions")
def test_a_home_that_cannot_be_written_prints_nothing(tmp_path: Path) -> None:
    """ONNX Runtime 1.32 and later say on stderr if they cannot store an identifier for telemetry there."""
    (tmp_path / "home").touch()  # a file, as tests may run as root, who can write to any folder
    environment = {**os.environ, "HOME": str(tmp_path / "home"), "PIMFLOW_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "pimflow", "compile", "zoo:toy", "-q", "-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.skipif(not FULL.exists(), reason="Linux only")
def test_a_full_disk_on_stdout_is_a_one_line_error() -> None:
    with FULL.open("w") as full:
        command = [sys.executable, "-m", "pimflow", "zoo", "list"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("pimflow: error: cannot write to stdout: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="a folder in use cannot be removed there")
@pytest.mark.parametrize("line", ["compile zoo:toy", "verify ."])
def test_a_current_folder_that_was_removed_is_a_one_line_error(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(line.split()) == 2
    assert capsys.readouterr().err == "pimflow: error: the current folder does not exist any more; change to another\n"


def test_the_version_needs_no_verb() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "pimflow", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("pimflow ")
    assert "pimflow.cli.main" in done.stderr
    assert not [name for name in ("numpy", "onnx", "pimflow.cli.verbs.compile") if f" {name}\n" in done.stderr]


def test_help_of_a_verb(capsys: Capture) -> None:
    shown = []
    for words in (("compile", "--help"), ("help", "compile")):
        with pytest.raises(SystemExit) as ended:
            run(*words)
        assert ended.value.code == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert "usage: pimflow compile" in shown[0]


def test_help_of_an_unknown_verb(capsys: Capture) -> None:
    assert run("help", "compil") == 2
    assert_one_line(capsys, "unknown verb 'compil'; did you mean 'compile'?")


def test_quiet_prints_nothing(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    assert run("-q", "compile", "zoo:toy", "-o", out, "--policy", "gpu", "--no-cache") == 0
    assert run("verify", out, "--quiet") == 0
    assert capsys.readouterr() == ("", "")
    assert run("-q", "verify", out, "--json") == 0
    assert json.loads(capsys.readouterr().out)["passed"]


@pytest.mark.parametrize(
    "words",
    [
        ("cache", "info"),
        ("compare", "zoo:toy", "--policies", "gpu", "--no-cache"),
        ("inspect", "zoo:toy"),
        ("layer", "--matmul", "m=1,k=64,n=64"),
        ("opt", "--list"),
        ("opt", "zoo:toy", "-o", "toy.onnx", "-v"),
        ("profile", "zoo:toy", "--runs", "1", "--warmup", "0", "-o", "toy.csv"),
        ("targets", "list"),
        ("train", "zoo:toy"),
        ("zoo", "export", "toy"),
    ],
)
def test_every_verb_can_be_quiet(
    words: tuple[str, ...], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*words, "-q") == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("verb", verb_names())
def test_every_verb_lists_the_quiet_option(verb: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        run(verb.replace("_", "-"), "--help")
    assert "-q, --quiet" in capsys.readouterr().out


@pytest.mark.parametrize(("verb", "action"), [("cache", "info"), ("targets", "list"), ("zoo", "list")])
def test_a_verb_with_several_actions_lists_them(verb: str, action: str, capsys: Capture) -> None:
    assert run(verb) == 0
    shown = capsys.readouterr().out
    assert run(verb, action) == 0
    assert shown == capsys.readouterr().out != ""
    assert run(verb, "-q") == 0
    assert capsys.readouterr().out == ""


def test_data_are_printed_quietly_too(capsys: Capture) -> None:
    assert run("-q", "opt", "zoo:toy") == run("-q", "targets", "show", "pimflow") == 0
    assert "description" in capsys.readouterr().out


def test_a_misspelled_option_is_corrected(capsys: Capture) -> None:
    assert run("compile", "zoo:toy", "--polcy=md-dp") == 2
    assert_one_line(capsys, "unrecognized arguments: --polcy=md-dp; did you mean '--policy'?")
    assert run("targets", "list", "--jsn") == 2
    assert_one_line(capsys, "did you mean '--json'?")
    assert run("zoo", "list", "more") == 2
    assert_one_line(capsys, "unrecognized arguments: more; see `pimflow zoo list --help`")


@pytest.mark.parametrize(("verb", "action"), [("zoo", "list"), ("targets", "list"), ("cache", "info")])
def test_options_of_a_verb_without_an_action_are_those_of_the_default(verb: str, action: str, capsys: Capture) -> None:
    assert document(capsys, verb) | {"command": ""} == document(capsys, verb, action) | {"command": ""}
    assert run(verb, "-q") == 0
    capsys.readouterr()
    assert run(verb, "--jsn") == 2
    assert_one_line(capsys, "unrecognized arguments: --jsn; did you mean '--json'?")
    assert run(verb, "--timing", "strict") == 2
    assert_one_line(capsys, f"unrecognized arguments: --timing strict; see `pimflow {verb} {action} --help`")
    assert run(verb, "nothing") == 2
    assert_one_line(capsys, "unknown action 'nothing'; choose one of ")


VERBS = (
    ("--help",),
    ("cache", "info"),
    ("compare", "MODEL", "--policies", "gpu,pim", "--no-cache"),
    ("compile", "MODEL", "-o", "out", "--policy", "pim", "--no-cache", "-v"),
    ("inspect", "MODEL"),
    ("layer", "--matmul", "m=1,k=64,n=64"),
    ("opt", "MODEL"),
    ("profile", "MODEL", "--runs", "1", "--warmup", "0"),
    ("targets", "list"),
    ("trace", "out", "卷积"),
    ("verify", "out"),
    ("zoo", "list"),
)


def exit_code(*words: str) -> object:
    try:
        return run(*words)
    except SystemExit as end:  # raised by --help
        return end.code


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_no_verb_fails_on_a_stdout_that_is_not_utf_8(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIMFLOW_CACHE_DIR", str(tmp_path / "Kälte ─ 冷"))
    build = Builder("模型")
    graph = build.graph(build.conv(build.input(1, 64, 6, 6, name="输入"), 64, name="卷积"))
    save_onnx(graph, Path("模型.onnx"))
    for words in VERBS:
        screen = io.TextIOWrapper(io.BytesIO(), encoding)
        monkeypatch.setattr("sys.stdout", screen)
        assert exit_code(*(word.replace("MODEL", "模型.onnx") for word in words)) == 0, words


@pytest.mark.parametrize("words", [("zoo", "list"), ("inspect", "zoo:toy"), ("layer", "--matmul", "m=1,k=64,n=64")])
def test_json_does_not_depend_on_window_or_encoding(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    plain = document(capsys, *words)
    for name, value in {"COLUMNS": "24", "NO_COLOR": "1", "FORCE_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, "ascii"))
    assert run(*words, "--json") == 0
    assert json.loads(written.getvalue()) == plain
