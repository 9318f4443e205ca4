"""The store of a sweep: one line of JSON per known point, appended as soon as the point is known.

Every line contains its own checksum, so a line that was cut short by a kill or a full disk is ignored and its point
computed again. A point's key is a digest of everything that its result depends on (`evaluate.key_of`), so results that
a changed sweep needs again are found, and those of another model, machine or version are not mistaken for them.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from pimflow.data import decode, open_file
from pimflow.errors import DataError, OutputError
from pimflow.records import dataclass

_CHECK = "check"
_FILE = "file"
_FORMAT = "pimflow-sweep-store/1"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a point.

    Args:
        key: the digest of everything that it depends on.
        status: "ok"; "invalid" if there is no such machine, or the model cannot be compiled for it; "failed" if the
            evaluation itself crashed, in which case the next run tries again.
        reason: why it is not "ok".
        figures: time, energy and the like, by name.
        machine: by key, the values of the machine that are objectives.
        seconds: the time of the evaluation.
    """

    key: str
    status: str
    reason: str
    figures: Mapping[str, Any]
    machine: Mapping[str, Any]
    seconds: float


class Store:
    """Outcomes by key, in memory, and in a file if there is one. The first outcome under a key stays.

    `files` are digests, by name, of the files that were generated from it; `damaged` counts lines that were ignored.

    Args:
        path: the file; None for in memory only.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.damaged = 0
        self.files: dict[str, set[str]] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._file: BinaryIO | None = None

    def __contains__(self, key: str) -> bool:
        return key in self._outcomes

    def __getitem__(self, key: str) -> Outcome:
        return self._outcomes[key]

    def __len__(self) -> int:
        return len(self._outcomes)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Read the file, if there is one, and lock it for this process while the block runs.

        Raises:
            OutputError: another process holds it; or it cannot be read or written, or is not a sweep's store.
        """
        if self.path is None:
            yield
            return
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0), 0o666)
        except OSError as error:
            raise OutputError(f"cannot write {self.path}: {error.strerror}", "check the folder") from None
        with os.fdopen(descriptor, "ab") as file:
            _lock(file, self.path)
            self._file = file
            try:
                self._read(self.path)
                yield
            finally:
                self._file = None

    def add(self, outcome: Outcome, about: Mapping[str, Any]) -> None:
        """Add the outcome of a point, on disk at once; `about` describes the point for readers of the file.

        Raises:
            OutputError: the disk is full or not writable.
        """
        if outcome.key in self._outcomes:
            return
        self._outcomes[outcome.key] = outcome
        if outcome.status != "failed":
            self._append({"point": dict(about), **vars(outcome)})

    def add_file(self, name: str, sha256: str) -> None:
        """Record that a file with this name and content was generated from the store.

        Raises:
            OutputError: see `add`.
        """
        if sha256 not in self.files.setdefault(name, set()):
            self.files[name].add(sha256)
            self._append({_FILE: name, "sha256": sha256})

    def _append(self, data: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        try:
            self._file.write(_line(data))
            self._file.flush()
        except OSError as error:
            raise OutputError(
                f"cannot write {self.path}: {error.strerror}", "free some disk space; stored points are kept"
            ) from None

    def _read(self, path: Path) -> None:
        assert self._file is not None
        try:
            with open_file(path) as file:
                content = file.read()
        except OSError as error:
            raise OutputError(f"cannot read {path}: {error.strerror}", "choose another folder with -o") from None
        head, *lines = content.split(b"\n")
        if not content or (not lines and _is_cut_header(head)):
            self._file.truncate(0)
            self._file.write(_line({"format": _FORMAT}))
            return
        if _checked(head).get("format") != _FORMAT:
            raise OutputError(f"{path} is not the store of a sweep by this version", "choose another folder with -o")
        for line in filter(None, lines):
            self._add_line(_checked(line))
        if not content.endswith(b"\n"):
            self._file.write(b"\n")  # a writer was cut off: its torn line must not corrupt our first one

    def _add_line(self, data: dict[str, Any]) -> None:
        data.pop("point", None)
        try:
            if _FILE in data:
                self.files.setdefault(decode(str, data[_FILE]), set()).add(decode(str, data["sha256"]))
                return
            outcome = decode(Outcome, data)
        except (DataError, KeyError):
            self.damaged += 1
            return
        self._outcomes.setdefault(outcome.key, outcome)


def is_store(path: Path) -> bool:
    """Whether a file is the store of a sweep, of any version."""
    try:
        with open_file(path) as file:
            head = file.readline(1 << 12)
    except OSError:
        return False
    return str(_checked(head.rstrip(b"\n")).get("format", "")).startswith(_FORMAT.partition("/")[0]) or _is_cut_header(
        head
    )


def _line(data: Mapping[str, Any]) -> bytes:
    body = json.dumps(data, allow_nan=False)
    return json.dumps({_CHECK: f"{zlib.crc32(body.encode()):08x}", **data}, allow_nan=False).encode() + b"\n"


def _checked(line: bytes) -> dict[str, Any]:
    """The content of a line; empty if it is damaged."""
    try:
        data = json.loads(line)
        check = data.pop(_CHECK)
        body = json.dumps(data, allow_nan=False)
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        return {}
    return data if check == f"{zlib.crc32(body.encode()):08x}" else {}


def _is_cut_header(head: bytes) -> bool:
    """Whether the first line of a file is the beginning of ours, cut short."""
    return bool(head) and _line({"format": _FORMAT}).startswith(head)


def _lock(file: BinaryIO, path: Path) -> None:
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OutputError(
            f"another sweep is running in {path.parent}", "wait for it, or choose another folder with -o"
        ) from None
    except OSError:  # this file system has no locks
        pass
