"""Output of the command line: text and JSON documents on stdout, remarks and progress on stderr."""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from pimflow.errors import OptionError, printable
from pimflow.report.tables import clipped
from pimflow.version import document

if TYPE_CHECKING:
    from typing_extensions import Self

STDOUT = "-"
"""The name of an output file that stands for stdout."""

_EVERY_S = 0.1
_TICK_S = 0.5


def say(text: str, stream: TextIO | None = None, end: str = "\n") -> None:
    """Print text on stdout or another stream, with unprintable characters (in names of nodes, for example) escaped. All
    text for a terminal goes through this function."""
    print(printable(text, keep="\n"), file=stream or sys.stdout, end=end)


@contextmanager
def escape_unencodable() -> Iterator[None]:
    """Escape characters that stdout's encoding lacks, as Python does on stderr, instead of raising an error.

    The encodings of Windows and of the C locale lack box-drawing characters, and may lack characters of a model's
    names.
    """
    stream = sys.stdout
    if not isinstance(stream, io.TextIOWrapper):
        yield
        return
    encoding, errors = stream.encoding, stream.errors
    if errors in ("strict", "surrogateescape"):
        stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        with suppress(OSError):  # the disk is full or the reader has gone, which has already been reported
            stream.reconfigure(encoding=encoding, errors=errors)


def print_data(texts: Iterable[str]) -> None:
    """Print text that programs read: unchanged and in UTF-8, whatever the locale.

    On a terminal it is printed with `say`.
    """
    if sys.stdout is None:  # None: closed by the parent process
        return
    if sys.stdout.isatty():
        for text in texts:
            say(text, end="")
        return
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    for text in texts:
        sys.stdout.write(text)


def print_bytes(data: bytes) -> None:
    """Write what is not text to stdout.

    Raises:
        OptionError: stdout is a terminal.
    """
    if sys.stdout is None:
        return
    if sys.stdout.isatty():
        raise OptionError("an ONNX file is no text for a terminal", "give a FILE, or redirect stdout")
    sys.stdout.flush()
    sys.stdout.buffer.write(data)


def output_file(text: str | None) -> Path | None:
    """The file that an argument names; None for stdout, which an absent argument stands for, too."""
    return None if text in (None, "", STDOUT) else Path(text or "")


def output_folder(text: str) -> Path:
    """The folder that an argument names.

    Raises:
        OptionError: it stands for stdout.
    """
    if text == STDOUT:
        raise OptionError("-o - is stdout, which cannot take a folder", "name a folder (./- for one of this name)")
    return Path(text)


def print_json(kind: str, content: Mapping[str, Any], command: str | None = None, stream: TextIO | None = None) -> None:
    """Print one JSON document of a kind (`pimflow.version.FORMATS`), beginning with its format, and a newline."""
    json.dump(document(kind, content, command), stream or sys.stdout, indent=2, allow_nan=False)
    (stream or sys.stdout).write("\n")


class Printable(Protocol):
    """A result that is shown to people as text and to programs as plain values."""

    def text(self) -> str:
        """For people."""

    def as_json(self) -> Mapping[str, Any]:
        """For programs."""


def show(kind: str, result: Printable, arguments: argparse.Namespace, layout: Callable[[str], str] = str) -> None:
    """Print the result of a verb: a JSON document of a kind with `--json`, otherwise text, unless `--quiet` is given.

    Args:
        kind: of `pimflow.version.FORMATS`.
        result: the result.
        arguments: of the verb.
        layout: lays the text out.
    """
    if arguments.json:
        print_json(kind, result.as_json(), arguments.command)
    elif not arguments.quiet:
        say(layout(result.text()))


def _columns_of_stderr() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except OSError:  # stderr is not a terminal
        return shutil.get_terminal_size().columns


class Progress:
    """Shows the progress of long work on stderr, as a line that rewrites itself; only on a terminal.

    A context manager: the line is erased when the work ends, whether it succeeds or fails. With `quiet` nothing is
    shown. If no text arrives for a while, a thread shows the last one with the time since then.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._tty = not quiet and sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._last = self._reported = time.monotonic()
        self._text = ""
        self._shown = 0
        self._lock = threading.Lock()
        self._ticking = ExitStack()

    def __call__(self, text: str) -> None:
        """Report progress; shown at most ten times a second."""
        if not self._tty:
            return
        now = time.monotonic()
        with self._lock:
            self._text, self._reported = text, now
            if now - self._last >= _EVERY_S:
                self._show(text, now)

    def tick(self) -> None:
        """Show the last text, with the time since then, if nothing has been shown for half a second."""
        now = time.monotonic()
        with self._lock:
            if self._text and now - self._last >= _TICK_S:
                seconds = int(now - self._reported)
                self._show(f"{self._text} ({seconds} s so far)" if seconds else self._text, now)

    def _show(self, text: str, now: float) -> None:
        self._last = now
        text, columns = clipped(printable(text), _columns_of_stderr() - 1)  # a wrapped line could not be overwritten
        blanks = " " * (self._shown - columns)
        sys.stderr.write(f"{text}{blanks}\r")  # the next output overwrites it
        self._shown = columns
        sys.stderr.flush()

    def __enter__(self) -> Self:
        if self._tty:
            from pimflow.search.progress import ticking  # imported here because most commands show no progress

            self._ticking.enter_context(ticking(self.tick, _TICK_S))
        return self

    def __exit__(self, *_error: object) -> None:
        self._ticking.close()
        if self._shown:
            sys.stderr.write(" " * self._shown + "\r")
            sys.stderr.flush()
            self._shown = 0
