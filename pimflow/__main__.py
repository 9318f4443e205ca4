"""`python -m pimflow`, and the program `pimflow`: what a signal does is settled before anything is imported."""

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
    """Makes a signal an exception, but not within an import: compiled modules turn that into errors of their own, or
    are left half made. There it is raised as soon as the import is over.

    What was written of an output is then removed on the way out, as after any error.
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
        if now - self._raised_at > _PATIENCE_S:  # else it is on its way out, and removes what it wrote
            self._raised_at = now
            raise KeyboardInterrupt

    def end(self) -> None:
        """Ignores signals from here on: handlers are gone before the process is, and it would end by the signal."""
        self.over = True
        for number in _WORDS:
            signal.signal(number, signal.SIG_IGN)

    def unraisable(self, problem: Any) -> None:
        """Raises it again where Python could not, in a finaliser or a callback."""
        if not issubclass(problem.exc_type, KeyboardInterrupt):
            sys.__unraisablehook__(problem)
            return
        self._raised_at = -math.inf
        self._raise_in(_around_imports(sys._getframe(1)))

    def _raise_in(self, outer: FrameType | None) -> None:
        """Raises it as soon as a frame, which waits for others, goes on: at its next line, or what it calls next."""

        def trace(frame: FrameType, _event: str, _argument: Any) -> None:
            if frame is outer or (frame.f_back is outer and not _is_of_import(frame)):
                sys.settrace(None)
                self(self.number, frame)

        if outer is not None:
            outer.f_trace = trace
            sys.settrace(trace)


def _around_imports(frame: FrameType | None) -> FrameType | None:
    """The frame that the outermost import under way is in; the given one where none is under way."""
    around = frame
    while frame is not None:
        if _is_of_import(frame):
            around = frame.f_back
        frame = frame.f_back
    return around


def _is_of_import(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith("<frozen importlib")


def run() -> int:
    """The program `pimflow`: runs one verb, and ends the process at once.

    What a compilation made is not taken apart object by object, which takes a tenth of its time. Where threads or other
    processes may have something left to do, Python ends as ever, and so does `python -m pimflow` for profilers.

    Returns:
        The exit code, as `outcome`.
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
        with suppress(OSError):  # it is full, or its reader went away, which has been said
            if stream is not None:  # closed by whoever started us
                stream.flush()


def outcome() -> int:
    """Runs one verb; stopped by a signal it says so in one line.

    Returns:
        The exit code: as `pimflow.cli.main`, or 128 and the number of the signal (130: interrupted, 143: terminated).
    """
    stop = _Stop()
    try:
        try:
            code = _run(stop)
        finally:
            stop.end()
    except KeyboardInterrupt:  # at the very end
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
        if signal.getsignal(number) is not signal.SIG_IGN:  # as after `nohup`, or in the background of a shell
            signal.signal(number, stop)
    sys.unraisablehook = stop.unraisable
    gc.set_threshold(0)  # a verb sets its own; behind it nothing is looked through that is given back at once
    # Threads of numpy's products else wait for the next one at full speed, tens of milliseconds after each.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    from pimflow.cli import main

    return main()


if __name__ == "__main__":
    sys.exit(outcome())
