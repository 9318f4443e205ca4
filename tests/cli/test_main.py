"""The program: stdout stays clean, and a stdout that cannot be written is one line."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pimflow.cli.main import main
from pimflow.cli.verbs import zoo

FULL = Path("/dev/full")


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


@pytest.mark.skipif(not FULL.exists(), reason="a device of Linux")
def test_a_full_disk_behind_stdout_is_one_line() -> None:
    with FULL.open("w") as full:
        command = [sys.executable, "-m", "pimflow", "zoo", "list"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("pimflow: error: cannot write to stdout: ")
    assert done.stderr.count("\n") == 1
