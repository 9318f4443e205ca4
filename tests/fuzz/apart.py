"""Work in a separate process: whatever it does, and however long it takes, is a result."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT_S = 300.0
"""Time limit: a busy machine is not a fault of pimflow's."""
LIMIT_CPU_S = 60
LIMIT_BYTES = 6 << 30
_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Args:
        code: its exit code; negative: the signal that killed it; None: it was still running at the limit.
        out: its stdout.
        err: its stderr.
        result: what the work returned, as plain data; None if it did not return.
    """

    code: int | None
    out: str
    err: str
    result: Any = None

    @property
    def problem(self) -> str:
        """The description of an end that is never acceptable: a signal, a timeout, a traceback; "" for all others."""
        if self.code is None or self.code == -signal.SIGXCPU:
            return "no end"
        if self.code < 0:
            return f"killed by {signal.Signals(-self.code).name}"
        if "Traceback (most recent call last)" in self.err:
            return f"traceback: {self.err.strip().splitlines()[-1][:200]}"
        return ""

    @property
    def complaint(self) -> str:
        """A complaint about the end of a command: `problem`, or an error that is not one line."""
        if self.problem:
            return self.problem
        errors = [line for line in self.err.splitlines() if not line.startswith("pimflow: warning: ")]
        if self.code == 2 and (len(errors) != 1 or not errors[0].startswith("pimflow: error: ")):
            return f"exit 2 with {len(errors)} lines on stderr: {' | '.join(errors)[:300]}"
        if self.code not in (0, 1, 2):
            return f"exit {self.code}: {self.err[-300:]}"
        if self.code == 0 and errors:
            return f"exit 0 with words on stderr: {' | '.join(errors)[:300]}"
        return ""


def apart(work: Callable[[], Any], limit_s: float = LIMIT_S, limit_bytes: int = LIMIT_BYTES) -> Ended:
    """Run the work in a fork, within limits of time and memory.

    If it returns an `int`, that is the exit code; anything else is `Ended.result`. This process must not have run ONNX
    Runtime, whose threads a fork would lack.
    """
    with tempfile.TemporaryDirectory(prefix="fuzz-apart-") as folder:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if not child:
            _work(work, Path(folder), limit_bytes)
        code = _wait(child, limit_s)
        out, err, result = (_text(Path(folder, name)) for name in ("out", "err", "result"))
        return Ended(code, out, err, json.loads(result) if result else None)


def _work(work: Callable[[], Any], folder: Path, limit_bytes: int) -> None:
    """The child: never returns."""
    code = 1
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_CPU_S, LIMIT_CPU_S + 1))
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT, 0o600), number)
        sys.stdout, sys.stderr = os.fdopen(1, "w", encoding="utf-8"), os.fdopen(2, "w", encoding="utf-8")
        result = work()
        code = result if isinstance(result, int) else 0
        if not isinstance(result, int):
            (folder / "result").write_text(json.dumps(result))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(child: int, limit_s: float) -> int | None:
    end = time.monotonic() + limit_s
    pause = 0.001
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(pause)
        pause = min(0.05, 1.5 * pause)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _text(path: Path) -> str:
    """The text of a file, up to the first MiB, since no more can matter."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        return file.read(_MAX_BYTES).decode("utf-8", "replace")
