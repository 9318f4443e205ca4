"""The first trials of every lane, as `python -m fuzz` runs them: in a process that has not run ONNX Runtime."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.lanes import LANES

TESTS = Path(__file__).parent.parent
TRIALS = {"mutants": 6, "graphs": 5, "prices": 4}


@pytest.mark.parametrize("lane", list(LANES))
def test_the_first_trials_find_nothing(lane: str) -> None:
    command = [sys.executable, "-m", "fuzz", "--seed", "6", "--lane", lane, "--trials", str(TRIALS[lane])]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{lane}: {TRIALS[lane]} trials" in done.stdout
