"""How the command line prints: text and JSON documents on stdout, remarks and progress on stderr."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

from pimflow.errors import printable
from pimflow.version import format_of

if TYPE_CHECKING:
    from typing_extensions import Self

_EVERY_S = 0.1


def say(text: str, stream: TextIO | None = None, end: str = "\n") -> None:
    """Lines of text on stdout or another stream: the one way from here to a terminal, which what does not print (in
    names of nodes, say) reaches as escapes."""
    print(printable(text, keep="\n"), file=stream or sys.stdout, end=end)


def print_json(kind: str, content: Mapping[str, Any], stream: TextIO | None = None) -> None:
    """One JSON document of a kind (`pimflow.version.FORMATS`), which says its format first, with a newline."""
    document = {"format": format_of(kind), **content}
    json.dump(document, stream or sys.stdout, indent=2, allow_nan=False)
    (stream or sys.stdout).write("\n")


class Progress:
    """Shows on stderr how far long work has come, on a terminal only: a line that rewrites itself.

    A context manager: the line is wiped when the work ends, well or not.
    """

    def __init__(self) -> None:
        self._tty = sys.stderr.isatty()
        self._last = time.monotonic()
        self._shown = 0

    def __call__(self, text: str) -> None:
        """Says where the work is; shown at most ten times a second."""
        now = time.monotonic()
        if not self._tty or now - self._last < _EVERY_S:
            return
        self._last = now
        text = printable(text)[: shutil.get_terminal_size().columns - 1]  # a line that wraps cannot be rewritten
        sys.stderr.write("\r" + text.ljust(self._shown))
        self._shown = len(text)
        sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._shown:
            sys.stderr.write("\r" + " " * self._shown + "\r")
            sys.stderr.flush()
            self._shown = 0
