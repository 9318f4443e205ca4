"""Collecting cyclic garbage less often.

Python looks for unreachable cycles whenever 700 more objects have been made than freed. A search makes a million that
are needed to its end, and hardly any cycles: looking for them takes a seventh of the time of a compilation.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

OBJECTS_OF_A_MODEL = 5_000_000
"""As many objects as the compilation of a large model makes; most make fewer."""

_LOCK = Lock()
_FOUND = [gc.get_threshold()]
"""The thresholds outside of all blocks."""
_ASKED: list[int] = []
"""What the blocks in progress ask for."""


@contextmanager
def rare_collections(after: int = OBJECTS_OF_A_MODEL) -> Iterator[None]:
    """Within a block, collect after this many new objects, or even later if that is set (but not never).

    Blocks may be nested, or run in several threads: of those in progress the highest number counts, and after the last
    one what was set before the first.
    """
    with _LOCK:
        if not _ASKED:
            _FOUND[0] = gc.get_threshold()
        _ASKED.append(after)
        _set_threshold()
    try:
        yield
    finally:
        with _LOCK:
            _ASKED.remove(after)
            _set_threshold()


def _set_threshold() -> None:
    before, *older = _FOUND[0]
    gc.set_threshold(max(before, *_ASKED) if _ASKED else before, *older)
