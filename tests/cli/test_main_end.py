"""The end of the program: its output is complete, and objects are deallocated only if something else still runs."""

from __future__ import annotations

import subprocess
import sys

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
