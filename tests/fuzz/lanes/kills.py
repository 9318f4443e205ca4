"""Compilations that are killed at a random moment: the output is absent, old or new, and always complete."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from fuzz.apart import apart
from fuzz.verdict import Verdict
from pimflow.bundle.manifest import read_manifest
from pimflow.cli import main

_ENDS = {signal.SIGINT: (130, "pimflow: interrupted"), signal.SIGTERM: (143, "pimflow: terminated")}
_LONGEST_S = 4.0
_PATIENCE_S = 60.0


def case(seed: int, folder: Path) -> Verdict:
    """Kill one compilation, check what is there, compile again and verify."""
    rng = Random(seed)
    out = folder / "out"
    if rng.random() < 0.5:
        _compile(out, "gpu")
    before = _state(out)
    number = rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM))
    finding = _killed(out, number, rng)
    after = _state(out)
    if after == "damaged" or (after == "absent" and before != "absent" and number != signal.SIGKILL):
        finding = finding or f"{out.name} is {after}, was {before}"
    if number != signal.SIGKILL and any(path.name.startswith(".out") for path in folder.iterdir()):
        finding = finding or "leaves its scratch folder"
    finding = finding or _mended(out, folder)
    return Verdict(f"{number.name}, {before} before, {after} after", f"{number.name}: {finding}" if finding else "")


def _command(out: Path, policy: str) -> list[str]:
    return [sys.executable, "-m", "pimflow", "compile", "zoo:toy", "-o", str(out), "--policy", policy]


def _compile(out: Path, policy: str) -> int:
    return apart(lambda: main(_command(out, policy)[3:])).code or 0


def _killed(out: Path, number: signal.Signals, rng: Random) -> str:
    """Start a compilation and kill it at a random moment, or as soon as it writes; return what is wrong."""
    as_it_writes = rng.random() < 0.4
    delay = rng.uniform(0, 0.1 if as_it_writes else _LONGEST_S)
    with subprocess.Popen(_command(out, "md-dp"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        _wait(process, lambda: _heeds_signals(process.pid))
        if as_it_writes:
            _wait(process, lambda: _is_writing(out))
        time.sleep(delay)
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
    if number == signal.SIGKILL or process.returncode == 0:
        return ""
    code, line = _ENDS[number]
    if (process.returncode, err.strip()) != (code, line):
        return f"exit {process.returncode}, {err[-300:]!r}"
    return ""


def _wait(process: subprocess.Popen[str], for_what: Callable[[], bool]) -> None:
    end = time.monotonic() + _PATIENCE_S
    while process.poll() is None and time.monotonic() < end and not for_what():
        time.sleep(0.001)


def _heeds_signals(pid: int) -> bool:
    """Whether a process has a handler for SIGTERM: before that, a signal reaches the interpreter, not pimflow."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True  # it has ended, or the platform does not say
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def _is_writing(out: Path) -> bool:
    return any(path.name.startswith(f".{out.name}.") for path in out.parent.iterdir())


def _state(out: Path) -> str:
    if not out.exists():
        return "absent"
    manifest = read_manifest(out)
    return "whole" if manifest is not None and manifest.changed(out) is None else "damaged"


def _mended(out: Path, folder: Path) -> str:
    """What is wrong after another compilation into the same folder."""
    if _compile(out, "md-dp") or _state(out) != "whole":
        return "the next compilation fails"
    left = [path.name for path in folder.iterdir() if path.name != out.name]
    if left:
        return f"the next compilation leaves {left}"
    verified = apart(lambda: main(["verify", str(out)]))
    return "" if verified.code == 0 else f"verify of the next: {verified.err or verified.out}"
