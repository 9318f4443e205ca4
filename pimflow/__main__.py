"""`python -m pimflow` and the program `pimflow`. Signal handlers are installed before anything else is imported."""

from __future__ import annotations

import gc
import math
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
_PATIENCE_S = 1.0


class _Stop:
    """Raises KeyboardInterrupt on a signal, but never inside an import: compiled modules would turn it into errors of
    their own, or be left half initialised. There it is raised as soon as the import is over.

    Partly written output is then removed on the way out, as after any other error.
    """

    def __init__(self) -> None:
        self.number = 0
        self.over = False
        self._raised_at = -math.inf

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.over:
            return
        self.number = number
        outer = _around_imports(frame)
        if outer is not frame:
            self._raise_in(outer)
            return
        now = time.monotonic()
        if now - self._raised_at > _PATIENCE_S:  # otherwise already on its way out, removing what it wrote
            self._raised_at = now
            raise KeyboardInterrupt

    def end(self) -> None:
        """Ignore signals from here on: Python removes its handlers before it exits, so a signal would kill it."""
        self.over = True
        for number in _WORDS:
            signal.signal(number, signal.SIG_IGN)

    def unraisable(self, problem: Any) -> None:
        """Raise the exception again after Python could not, in a finaliser or a callback."""
        if not issubclass(problem.exc_type, KeyboardInterrupt):
            sys.__unraisablehook__(problem)
            return
        self._raised_at = -math.inf
        self._raise_in(_around_imports(sys._getframe(1)))

    def _raise_in(self, outer: FrameType | None) -> None:
        """Raise the exception as soon as `outer`, which waits for inner frames, continues: at its next line or call."""

        def trace(frame: FrameType, _event: str, _argument: Any) -> None:
            if frame is outer or (frame.f_back is outer and not _is_of_import(frame)):
                sys.settrace(None)
                self(self.number, frame)

        if outer is not None:
            outer.f_trace = trace
            sys.settrace(trace)


def _around_imports(frame: FrameType | None) -> FrameType | None:
    """The frame that contains the outermost import in progress, or the given frame if there is none."""
    around = frame
    while frame is not None:
        if _is_of_import(frame):
            around = frame.f_back
        frame = frame.f_back
    return around


def _is_of_import(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith("<frozen importlib")


def run() -> int:
    """The program `pimflow`: runs one verb and ends the process at once.

    The objects that a compilation leaves are not deallocated one by one, which would take a tenth of its time. If
    threads or other processes may have work left, Python shuts down as usual.

    Returns:
        The exit code, as for `outcome`.
    """
    code = outcome()
    if _is_alone():
        _flush()
        os._exit(code)
    return code


def _is_alone() -> bool:
    import threading

    return "multiprocessing" not in sys.modules and threading.active_count() == 1


def _flush() -> None:
    from contextlib import suppress

    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # the disk is full or the reader has gone, which has already been reported
            if stream is not None:  # None: closed by the parent process
                stream.flush()


def outcome() -> int:
    """Run one verb. If a signal stops it, report that in one line.

    Returns:
        The exit code: as for `pimflow.cli.main`, or 128 plus the number of the signal (130: interrupted, 143:
            terminated).
    """
    stop = _Stop()
    try:
        try:
            code = _run(stop)
        finally:
            stop.end()
    except KeyboardInterrupt:  # a signal at the very end
        stop.end()
        code = 128 + signal.SIGINT
    if not stop.number:
        return code
    from contextlib import suppress

    with suppress(OSError):  # stderr may be closed
        os.write(2, f"pimflow: {_WORDS[signal.Signals(stop.number)]}\n".encode())
    return 128 + stop.number


def _run(stop: _Stop) -> int:
    for number in _WORDS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # ignored after `nohup`, or in the background of a shell
            signal.signal(number, stop)
    sys.unraisablehook = stop.unraisable
    gc.set_threshold(0)  # a verb sets its own; after it, there is no point in collecting
    # Otherwise threads of numpy's matrix products spin for tens of milliseconds after each one, waiting for the next.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    # ONNX Runtime would store an identifier in the home folder, and say on stderr if it cannot.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    from pimflow.cli import main

    return main()


def _is_run_by_python() -> bool:
    """Whether Python's own option -m runs this module, not a profiler or a debugger, which has work left afterwards."""
    words = sys.orig_argv[1:]
    at = words.index("-m") if "-m" in words else len(words)
    options = [word for before, word in zip(["", *words], words[:at], strict=False) if before not in ("-X", "-W")]
    return words[at + 1 : at + 2] == ["pimflow"] and all(word.startswith("-") for word in options)


if __name__ == "__main__":
    sys.exit(run() if _is_run_by_python() and not sys.flags.inspect else outcome())
