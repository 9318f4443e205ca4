"""What the command line prints beside tables: JSON documents on stdout, progress on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

from pimflow.version import format_of

if TYPE_CHECKING:
    from typing_extensions import Self


def print_json(kind: str, content: Mapping[str, Any], stream: TextIO | None = None) -> None:
    """One JSON document of a kind (`pimflow.version.FORMATS`), which says its format first, with a newline."""
    document = {"format": format_of(kind), **content}
    json.dump(document, stream or sys.stdout, indent=2, allow_nan=False)
    (stream or sys.stdout).write("\n")


class Progress:
    """Shows on stderr how far long work has come: a line that rewrites itself on a terminal, few lines elsewhere.

    A context manager: the line is wiped when the work ends, well or not.
    """

    def __init__(self, every_s: float = 5.0) -> None:
        self._tty = sys.stderr.isatty()
        self._every_s = 0.1 if self._tty else every_s
        self._last = time.monotonic()
        self._shown = 0

    def __call__(self, text: str) -> None:
        """Says where the work is; shown at most every so often."""
        now = time.monotonic()
        if now - self._last < self._every_s:
            return
        self._last = now
        if self._tty:
            sys.stderr.write("\r" + text.ljust(self._shown))
            self._shown = len(text)
        else:
            sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._shown:
            sys.stderr.write("\r" + " " * self._shown + "\r")
            sys.stderr.flush()
            self._shown = 0
