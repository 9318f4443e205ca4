"""Runs work in the background: for ONNX Runtime, which releases the GIL while it runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def in_background(work: Callable[[], object], jobs: int | None) -> Iterator[Callable[[], None]]:
    """Does some work in a separate thread while the block runs; with only one job, before the block.

    Errors of the work take precedence: an error of the block is raised only if the work succeeds. The block receives a
    function that raises the work's error if there is one already; a long block may call it. If the block is
    interrupted, the work in progress is waited for.

    Args:
        work: the work, which must not depend on anything that the block changes.
        jobs: how many jobs may run in parallel; None for the number of cores.
    """
    if (jobs or cores()) == 1:
        work()
        del work  # what it needs may be freed
        yield lambda: None
        return
    errors: list[BaseException] = []
    thread = Thread(target=_do, args=(work, errors))  # importing concurrent.futures takes 3 ms
    thread.start()
    del work  # what it needs may be freed when it is done
    try:
        yield lambda: _raise_first(errors)
    except Exception:
        thread.join()
        _raise_first(errors)
        raise
    finally:
        thread.join()
    _raise_first(errors)


def _do(work: Callable[[], object], errors: list[BaseException]) -> None:
    leave_signals_to_main()
    try:
        work()
    except BaseException as error:  # for the thread that waits for it
        errors.append(error)


def _raise_first(errors: list[BaseException]) -> None:
    if errors:
        raise errors[0]


def leave_signals_to_main() -> None:
    """Blocks the signals that end a program in this thread and those that it starts. A main thread that sleeps or waits
    for a file wakes up only for a signal that it receives itself."""
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
