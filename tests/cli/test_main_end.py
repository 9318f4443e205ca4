"""The end of the program: its output is complete, and objects are deallocated only if something else still runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import atexit, sys
from pimflow import __main__ as program

def outcome():
    print("done", end=" ")
    print("said", end=" ", file=sys.stderr)
    return 3

program.outcome = outcome
atexit.register(print, "taken apart")
{other}
sys.exit(program.run())
"""
THREAD = "import threading, time; threading.Thread(target=time.sleep, args=(0.05,)).start()"


@pytest.mark.parametrize(
    ("other", "said"),
    [("", "done "), ("import multiprocessing", "done taken apart\n"), (THREAD, "done taken apart\n")],
    ids=["alone", "processes", "thread"],
)
def test_the_program_ends_at_once_if_nothing_else_runs(other: str, said: str) -> None:
    command = [sys.executable, "-c", PROGRAM.format(other=other)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, said, "said ")


@pytest.mark.parametrize(
    ("start", "ends_at_once"),
    [
        ("-m pimflow", True),
        ("-X utf8 -W ignore -m pimflow", True),
        ("-m cProfile -m pimflow", False),
        ("{folder}/profiler.py -m pimflow", False),
    ],
)
def test_only_what_python_itself_starts_ends_at_once(start: str, ends_at_once: bool, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import atexit; atexit.register(print, 'taken apart')\n")
    profiler = "import runpy, sys; del sys.argv[:2]; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
    (tmp_path / "profiler.py").write_text(profiler)
    command = [sys.executable, *start.format(folder=tmp_path).split(), "zoo", "list"]
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}, check=True)
    assert "mobilenet-v2" in done.stdout
    assert ("taken apart" in done.stdout) is not ends_at_once
    assert ("function calls" in done.stdout) is ("cProfile" in start)
