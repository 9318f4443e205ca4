"""Signals: one line and a separate exit code, whatever the program is doing; no partial output stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

WORDS = {signal.SIGINT: "pimflow: interrupted\n", signal.SIGTERM: "pimflow: terminated\n"}
EARLY = """
import importlib, os, signal, sys, time

def stop():
    os.kill(os.getpid(), signal.{name})
    time.sleep(0.01)

try:
    stop()
except KeyboardInterrupt:
    raise ImportError("initialization failed")  # as compiled modules do
sys.path.remove({folder!r})
del sys.modules["numpy"]
sys.modules["numpy"] = importlib.import_module("numpy")
"""


@pytest.fixture(autouse=True)
def _heeded() -> Iterator[None]:
    """Restore SIGINT: shells start background jobs with it ignored, and children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("number", list(WORDS), ids=lambda number: number.name)
def test_a_signal_during_an_import_waits_for_its_end(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text(EARLY.format(name=number.name, folder=str(tmp_path)))
    out = tmp_path / "out"
    command = [sys.executable, "-m", "pimflow", "compile", "zoo:toy", "-o", str(out), "--no-cache"]
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=False)
    assert (done.returncode, done.stderr) == (128 + number, WORDS[number])
    assert not out.exists()


STOPPED = """
import signal, sys
from pimflow.__main__ import outcome

def work():
    {work}
    print("went on")

sys.modules["pimflow.cli"] = type(sys)("pimflow.cli")
sys.modules["pimflow.cli"].main = work
sys.exit(outcome())
"""
STOPS = "import signal; signal.raise_signal(signal.SIGTERM)"


@pytest.mark.parametrize(
    ("work", "module"),
    [
        ("import stops", STOPS),
        ("import around", "import stops"),
        ("try: import stops\n    except ImportError: pass", f"{STOPS}\nraise ImportError"),
        ("print([__import__('stops'), (lambda: 'went on')()])", STOPS),
        ("object.__new__(__import__('dies').Dies)", "class Dies:\n    def __del__(self):\n        import stops"),
    ],
    ids=["import", "nested", "error", "one-line", "finaliser"],
)
def test_a_signal_takes_effect_as_soon_as_the_import_ends(work: str, module: str, tmp_path: Path) -> None:
    (tmp_path / "stops.py").write_text(module if "raise_signal" in module else STOPS)
    for name in ("around", "dies"):
        (tmp_path / f"{name}.py").write_text(module)
    command = [sys.executable, "-c", STOPPED.format(work=work)]
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "pimflow: terminated\n")


WAITING = """
import sys, time
from pimflow.compiled import writing

def wait(model, path):
    print("writing", flush=True)
    time.sleep(60)

writing._write_streams = wait
from pimflow.__main__ import run
sys.exit(run())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("number", list(WORDS), ids=lambda number: number.name)
def test_a_signal_while_an_output_is_written_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WAITING, "compile", "zoo:toy", "-o", str(tmp_path / "out"), "--no-cache"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        process.send_signal(number)
        time.sleep(0.01)
        process.send_signal(number)  # an impatient user
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (128 + number, WORDS[number])
    assert list(tmp_path.iterdir()) == []
