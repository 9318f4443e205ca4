"""Processes that share one output folder and one price cache: each succeeds or reports why not, and all is complete."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

from fuzz.apart import apart
from fuzz.verdict import Verdict
from pimflow.bundle.manifest import read_manifest
from pimflow.cli import main

_SAVES = """
import sys
import pimflow
compiled = pimflow.compile("zoo:toy", policy=sys.argv[2], use_cache=False)
for _ in range(int(sys.argv[3])):
    try:
        compiled.save(sys.argv[1])
    except pimflow.PimflowError as error:
        print(error)
"""


def case(seed: int, folder: Path) -> Verdict:
    """Run several processes at once: saves into one folder, or compilations with one cold cache."""
    rng = Random(seed)
    return _saves(folder, rng) if rng.random() < 0.5 else _compilations(folder, rng)


def _saves(folder: Path, rng: Random) -> Verdict:
    out = folder / "out"
    commands = [
        [sys.executable, "-c", _SAVES, str(out), policy, "12"]
        for policy in rng.sample(("gpu", "pim", "md-dp", "auto"), 3)
    ]
    finding = ""
    for code, text, err in _run(commands):
        if code or err or text:
            finding = finding or f"exit {code}: {(text + err)[-300:]}"
    return Verdict("36 saves by 3 processes", finding or _whole(out, folder))


def _compilations(folder: Path, rng: Random) -> Verdict:
    outs = [folder / rng.choice(("one", "two")) for _ in range(4)]
    commands = [
        [
            sys.executable,
            "-m",
            "pimflow",
            "compile",
            "zoo:toy",
            "-o",
            str(out),
            "--policy",
            rng.choice(("pimflow", "auto")),
        ]
        for out in outs
    ]
    finding = ""
    for code, _, err in _run(commands, {"PIMFLOW_CACHE_DIR": str(folder / "cache")}):
        if code or err:
            finding = finding or f"exit {code}: {err[-300:]}"
    for out in sorted(set(outs)):
        finding = finding or _whole(out, folder)
    return Verdict("4 compilations, one cache", finding)


def _run(commands: list[list[str]], environment: dict[str, str] | None = None) -> list[tuple[int, str, str]]:
    processes = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE if "-c" in command else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        for command in commands
    ]
    ended = []
    for process in processes:
        out, err = process.communicate(timeout=600)
        ended.append((process.returncode, out or "", err))
    return ended


def _whole(out: Path, folder: Path) -> str:
    manifest = read_manifest(out)
    if manifest is None or manifest.changed(out) is not None:
        return f"{out.name} is damaged"
    left = [path.name for path in folder.iterdir() if path.name.startswith(".")]
    if left:
        return f"{left} are left"
    verified = apart(lambda: main(["verify", str(out)]))
    return "" if verified.code == 0 else f"verify of {out.name}: {verified.err or verified.out}"
