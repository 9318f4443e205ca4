"""Digests of files by their stamps, so that a file that has not changed is not read again."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from pimflow.bundle.files import sha256_of
from pimflow.data import open_file

NOTHING_SEEN: Mapping[str, str] = MappingProxyType({})
"""An empty set of known digests."""
STAMPS_LAST = sys.platform != "win32"
"""Whether stamps identify files in later runs: on Windows anybody can set the time of change."""
_SETTLED_NS = 3_000_000_000
"""The next change of a file older than this changes its timestamp, which advances at least every 2 s on any file
system."""
_digests: dict[str, str] = {}
"""The digests of files that this process has read, by stamp."""


def digest_of(path: Path, seen: Mapping[str, str] = NOTHING_SEEN) -> str:
    """The SHA-256 of a file. It is not read again as long as its stamp is unchanged: an output that is replaced is
    checked before the work, before and after it is moved aside, and before it is removed.

    Args:
        path: of the file.
        seen: digests by stamp, from earlier runs.

    Raises:
        OSError: it cannot be read.
    """
    status = _status(path)
    stamp = stamp_of(status)
    _recall(stamp, seen)
    if stamp not in _digests:
        digest = sha256_of(path)
        if time.time_ns() - changed_ns(status) < _SETTLED_NS:  # another change could leave the same timestamp
            return digest
        _digests[stamp] = digest
    return _digests[stamp]


def recall(path: Path, seen: Mapping[str, str]) -> None:
    """Lets `digest_of` know what earlier runs knew of a file, by stamp.

    Raises:
        OSError: it cannot be read.
    """
    _recall(stamp_of(_status(path)), seen)


def _recall(stamp: str, seen: Mapping[str, str]) -> None:
    if stamp in seen:
        _digests[stamp] = seen[stamp]


def stamps_of(path: Path) -> dict[str, str]:
    """The digest of a file by its stamp, for later runs; {} if it is not known or its stamp could outlast a change.

    Raises:
        OSError: it cannot be read.
    """
    stamp = stamp_of(_status(path))
    return {stamp: _digests[stamp]} if STAMPS_LAST and stamp in _digests else {}


def _status(path: Path) -> os.stat_result:
    with open_file(path) as file:  # opening a file makes network file systems refresh its timestamps
        return os.fstat(file.fileno())


def stamp_of(status: os.stat_result) -> str:
    """A stamp, as 32 hex digits, that any change of the file changes, even if it is renamed, copied or backdated."""
    parts = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def changed_ns(status: os.stat_result) -> int:
    """When a file, or anything about it, was last changed."""
    return max(status.st_mtime_ns, status.st_ctime_ns)
