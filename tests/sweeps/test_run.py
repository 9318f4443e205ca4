"""Whole sweeps: no point is lost or computed twice, and the bytes are the same in whatever way they were made."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pimflow
from pimflow.api import sweeps
from pimflow.cli import main
from pimflow.errors import OutputError, PimflowError
from pimflow.sweeps.engines import Done
from pimflow.sweeps.evaluate import Task, evaluate
from pimflow.sweeps.run import Setup, run_study
from pimflow.sweeps.store import Store
from pimflow.sweeps.study import Study

SMALL: dict[str, Any] = {
    "models": ["zoo:toy"],
    "policies": ["md-dp", "pimflow"],
    "objectives": ["time_us", "energy_mj", "pim.channels"],
    "grid": {"pim.channels": [4, 8, 40], "gpu.launch_cycles": [1000, 3000]},
}
MADE = ("points.csv", "sweep.json")


class Counting:
    """An engine that runs in this process, and counts."""

    def __init__(self, breaks_after: int = -1) -> None:
        self.tasks: list[Task] = []
        self.breaks_after = breaks_after

    def __call__(self, tasks: Iterable[Task]) -> Iterator[Done]:
        for task in tasks:
            if len(self.tasks) == self.breaks_after:
                raise KeyboardInterrupt
            self.tasks.append(task)
            yield task, evaluate(task)


def swept(data: dict[str, Any], store: Store, engine: Counting) -> Any:
    study = Study.of(data)
    return run_study(study, Setup.of(study), store, engine, lambda _text: None)


def test_known_points_are_not_computed_again(tmp_path: Path) -> None:
    first, second = Counting(), Counting()
    store = Store(tmp_path / "points.jsonl")
    with store.opened():
        result = swept(SMALL, store, first)
    assert len(first.tasks) == 6  # the policies of one machine together
    assert (result.count("ok"), result.count("invalid"), result.computed) == (8, 4, 12)
    longer = {**SMALL, "grid": {"pim.channels": [4, 8, 40, 12], "gpu.launch_cycles": [1000, 3000]}}
    again = Store(tmp_path / "points.jsonl")
    with again.opened():
        extended = swept(longer, again, second)
    assert {point.values["pim.channels"] for task in second.tasks for point in task.points} == {12}
    assert extended.computed == 4
    assert len(extended) == 16


def test_another_table_of_measured_kernels_is_another_input(tmp_path: Path) -> None:
    table = tmp_path / "toy.csv"
    study = {"models": ["zoo:toy"], "policies": ["gpu"], "options": {"profile": str(table)}}
    assert main(["profile", "zoo:toy", "--runs", "1", "--warmup", "0", "-o", str(table)]) == 0
    assert [pimflow.sweep(study, tmp_path / "runs", jobs=1).computed for _ in range(2)] == [1, 0]
    table.write_text(table.read_text() + "\n")
    assert pimflow.sweep(study, tmp_path / "runs", jobs=1).computed == 1


def test_known_points_are_compared_by_other_objectives(tmp_path: Path) -> None:
    first = pimflow.sweep({**SMALL, "objectives": ["time_us"]}, tmp_path / "runs", jobs=1)
    again = pimflow.sweep({**SMALL, "objectives": ["time_us", "pim.channels"]}, tmp_path / "runs", jobs=1)
    whole = pimflow.sweep({**SMALL, "objectives": ["time_us", "pim.channels"]}, jobs=1)
    assert (first.computed, again.computed) == (12, 0)
    assert again.as_json() == whole.as_json()
    assert [dict(at.outcome.machine) for at in again.found if at.is_ok] == [
        {"pim.channels": at.point.values["pim.channels"]} for at in again.found if at.is_ok
    ]


def test_an_interrupted_sweep_resumes_with_the_same_result(tmp_path: Path) -> None:
    whole, engine = Store(), Counting()
    with whole.opened():
        expected = swept(SMALL, whole, engine).as_json()
    seen: Counter[str] = Counter()
    for _ in range(10):
        engine = Counting(breaks_after=1)
        store = Store(tmp_path / "points.jsonl")
        try:
            with store.opened():
                found = swept(SMALL, store, engine).as_json()
        except KeyboardInterrupt:
            found = None
        seen.update(key for task in engine.tasks for key in task.keys)
        if found is not None:
            break
    assert found == expected
    assert set(seen.values()) == {1}
    assert len(seen) == 12


def test_the_same_machine_under_two_names_is_computed_once(tmp_path: Path) -> None:
    engine, store = Counting(), Store()
    other = tmp_path / "other.toml"
    other.write_text('base = "pimflow"\nname = "other"\ndescription = "the same"\n')
    with store.opened():
        result = swept({"models": ["zoo:toy"], "targets": ["pimflow", str(other)]}, store, engine)
    assert result.computed == 1
    assert len(result) == 2
    assert result[0]["time_us"] == result[1]["time_us"]


def test_every_engine_makes_the_same_bytes(tmp_path: Path) -> None:
    for name, jobs in (("one", 1), ("two", 2)):
        pimflow.sweep(SMALL, tmp_path / name, jobs=jobs)
    for made in MADE:
        assert (tmp_path / "one" / made).read_bytes() == (tmp_path / "two" / made).read_bytes()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_repeatedly_killed_sweep_has_the_same_result(tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    channels = [2, 4, 6, 8, 10, 12, 14, 16]
    file.write_text(f'models = ["zoo:toy"]\npolicies = ["pimflow"]\n[grid]\npim.channels = {channels}\n')
    folder = tmp_path / "runs"
    command = [sys.executable, "-m", "pimflow", "sweep", str(file), "-o", str(folder), "-j", "1", "-q"]
    for wanted in (2, 4, 6):
        process = subprocess.Popen(command)
        while process.poll() is None and _lines(folder) < wanted:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
    killed = _lines(folder)
    whole = tmp_path / "whole"
    for place in (folder, whole):  # in processes too: test registrations here are other code, with other keys
        subprocess.run([str(place) if word == str(folder) else word for word in command], check=True)
    assert killed >= 6
    for made in MADE:
        assert (folder / made).read_bytes() == (whole / made).read_bytes()
    keys = [
        line.split('"key": ')[1][:34] for line in (folder / "points.jsonl").read_text().splitlines() if '"key"' in line
    ]
    assert len(keys) == len(set(keys)) == len(channels)


def _lines(folder: Path) -> int:
    path = folder / "points.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize("data", [{"models": ["zoo:nope"]}, {"models": ["no.onnx"]}, {**SMALL, "objectives": ["x"]}])
def test_a_sweep_that_cannot_begin_leaves_nothing(data: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(PimflowError):
        pimflow.sweep(data, tmp_path / "runs", jobs=1)
    assert not list(tmp_path.iterdir())


def test_the_folder_keeps_foreign_files(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "mine.txt").write_text("mine")
    with pytest.raises(OutputError, match="not the folder of a sweep"):
        pimflow.sweep(SMALL, foreign, jobs=1)
    assert [path.name for path in foreign.iterdir()] == ["mine.txt"]
    ours = tmp_path / "runs"
    pimflow.sweep(SMALL, ours, jobs=1)
    (ours / "notes.txt").write_text("mine")
    (ours / sweeps.TABLE).write_text("edited")
    with pytest.raises(OutputError, match=r"points\.csv was changed"):
        pimflow.sweep(SMALL, ours, jobs=1)
    assert (ours / sweeps.TABLE).read_text() == "edited"
    (ours / sweeps.TABLE).unlink()
    pimflow.sweep(SMALL, ours, jobs=1)
    assert (ours / "notes.txt").read_text() == "mine"
    assert (ours / sweeps.TABLE).exists()


def test_progress_shows_how_far_and_how_long() -> None:
    lines: list[str] = []
    pimflow.sweep(SMALL, jobs=1, progress=lines.append)
    assert any("12 of 12 points (100 %)" in text and "on the front" in text for text in lines)
    assert any("to go" in text for text in lines)
