"""The first trials of every lane, as `python -m fuzz` runs them: in a process that has not run ONNX Runtime."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.campaign import Campaign
from fuzz.lanes import LANES
from fuzz.verdict import Verdict

TESTS = Path(__file__).parent.parent
SLOW = ("kills", "races")


@pytest.mark.parametrize(("lanes", "trials"), [(tuple(lane for lane in LANES if lane not in SLOW), 2), (SLOW, 1)])
def test_the_first_trials_find_nothing(lanes: tuple[str, ...], trials: int, tmp_path: Path) -> None:
    chosen = [word for lane in lanes for word in ("--lane", lane)]
    command = [sys.executable, "-m", "fuzz", "--seed", "3", *chosen, "--trials", str(trials)]
    places = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=TESTS, env=places, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"{lane}: {trials} trials" in done.stdout for lane in lanes)
    assert list(tmp_path.glob("fuzz-*")) == []


def test_a_finding_is_counted_and_says_how_to_repeat_it(capsys: pytest.CaptureFixture[str]) -> None:
    def case(seed: int, folder: Path) -> Verdict:
        assert list(folder.iterdir()) == []
        return Verdict("odd", "it is odd") if seed % 2 else Verdict("even")

    campaign = Campaign({"numbers": case}, print)
    campaign.run_each(7, 3)
    (line,) = campaign.findings
    assert line == "numbers: it is odd  (again: python -m fuzz --lane numbers --trial 7000001)"
    assert capsys.readouterr().out == f"FINDING {line}\n"
    assert "2  even" in campaign.text()
