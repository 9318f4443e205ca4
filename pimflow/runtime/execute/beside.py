"""Work that goes on while other work is done: ONNX Runtime's, which holds no lock of Python's while it works."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def beside(work: Callable[[], object], jobs: int | None) -> Iterator[Callable[[], None]]:
    """Does some work while the block is executed, in a thread of its own, or with one job before the block.

    Either way what the work raises comes first: an error of the block is raised only if the work is done without one.
    What the block is given raises what the work has raised so far, for a block that takes long. Where the block is
    interrupted, the work under way is waited for.

    Args:
        work: what is done; nothing that the block changes.
        jobs: how much may be done at once; None is as much as there are cores.
    """
    if (jobs or cores()) == 1:
        work()
        yield lambda: None
        return
    with ThreadPoolExecutor(1, initializer=leave_signals_to_main) as pool:
        done = pool.submit(work)
        try:
            yield lambda: _look_at(done)
        except Exception:
            done.result()
            raise
        done.result()


def leave_signals_to_main() -> None:
    """Blocks in this thread, and in those that it starts, the signals that end a program: a main thread that sleeps or
    waits for a file is woken only by one that it receives itself."""
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))


def _look_at(done: Future[object]) -> None:
    if done.done():
        done.result()
