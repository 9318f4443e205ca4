"""Engines: joblib's processes and a Dask cluster, with workers that die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pimflow
from pimflow.errors import OptionError
from pimflow.sweeps import engines
from pimflow.sweeps.engines import engine_for
from pimflow.sweeps.evaluate import Task, evaluate

STUDY: dict[str, Any] = {
    "models": ["zoo:toy"],
    "policies": ["md-dp"],
    "grid": {"pim.channels": list(range(1, 24)), "pim.buffers": [1, 2]},
}
linux = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")


def kill_at(fraction: float, victims: Any) -> Any:
    """A progress callback that kills a worker once, at a given fraction."""
    killed: list[int] = []

    def tell(text: str) -> None:
        done, total = (int(word.replace(",", "")) for word in (text.split()[1], text.split()[3]))
        if not killed and done >= fraction * total:
            killed.append(victims())
            os.kill(killed[0], signal.SIGKILL)

    tell.killed = killed  # type: ignore[attr-defined]
    return tell


@linux
def test_a_process_that_dies_loses_and_repeats_nothing(tmp_path: Path) -> None:
    pytest.importorskip("joblib")

    tell = kill_at(0.2, _process_of_loky)
    pimflow.sweep(STUDY, tmp_path / "two", jobs=2, progress=tell)
    pimflow.sweep(STUDY, tmp_path / "one", jobs=1)
    assert tell.killed
    assert (tmp_path / "two" / "sweep.json").read_bytes() == (tmp_path / "one" / "sweep.json").read_bytes()
    assert _twice(tmp_path / "two") == []


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_point_that_kills_its_process_is_given_up_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("joblib")

    def dies(task: Task) -> Any:  # defined here, so that it is pickled by value and sent to the processes
        if task.points[0].values["pim.channels"] == 8:
            os.kill(os.getpid(), signal.SIGKILL)
        return task, evaluate(task)

    monkeypatch.setattr(engines, "_work", dies)
    small = {**STUDY, "grid": {"pim.channels": [4, 8, 12, 16]}}
    result = pimflow.sweep(small, jobs=2)
    statuses = [row["status"] for row in result]
    assert statuses == ["ok", "failed", "ok", "ok"]
    assert "died" in result[1]["reason"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A scheduler and two workers, each a process."""
    pytest.importorskip("distributed")
    log = (tmp_path / "dask.log").open("wb")
    where = tmp_path / "scheduler.json"

    def start(*words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.dask_{words[0]}", "--no-dashboard", *words[1:]]
        return subprocess.Popen([*command, "--scheduler-file", str(where)], stdout=log, stderr=log, cwd=tmp_path)

    processes = [start("scheduler", "--port", "0", "--host", "127.0.0.1")]
    try:
        _wait_for(where.exists)
        processes += [start("worker", "--nthreads", "1", "--no-nanny") for _ in range(2)]
        import json

        address = json.loads(where.read_text())["address"]
        from distributed import Client

        with Client(address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
        yield address, processes[1:]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        log.close()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_worker_of_a_cluster_that_dies_loses_and_repeats_nothing(
    cluster: tuple[str, list[subprocess.Popen[bytes]]], tmp_path: Path
) -> None:
    address, workers = cluster
    tell = kill_at(0.2, lambda: workers[0].pid)
    pimflow.sweep(STUDY, tmp_path / "cluster", scheduler=address, progress=tell)
    assert workers[0].wait(10) == -signal.SIGKILL
    pimflow.sweep(STUDY, tmp_path / "one", jobs=1)
    assert (tmp_path / "cluster" / "sweep.json").read_bytes() == (tmp_path / "one" / "sweep.json").read_bytes()
    assert _twice(tmp_path / "cluster") == []


def test_missing_packages_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "joblib", None)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(OptionError, match=r"pimflow\[sweep\]"):
        engine_for(2, None)
    with pytest.raises(OptionError, match=r"pimflow\[cluster\]"):
        engine_for(None, "tcp://127.0.0.1:1")
    assert len(pimflow.sweep({"models": ["zoo:toy"], "policies": ["gpu"]})) == 1  # in this process


def _twice(folder: Path) -> list[str]:
    lines = (folder / "points.jsonl").read_text().splitlines()
    keys = [line.split('"key": ')[1][:34] for line in lines if '"key"' in line]
    assert len(keys) == 46
    return [key for key in keys if keys.count(key) > 1]


def _process_of_loky() -> int:
    """A child process that works for joblib."""
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes()
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
        except (OSError, IndexError):
            continue
        if b"popen_loky" in words and parent == str(os.getpid()):
            return int(folder.name)
    raise AssertionError("joblib has no processes")


def _wait_for(ready: Any) -> None:
    end = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.05)
