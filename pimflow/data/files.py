"""Opens and reads the regular files that data come from."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

MAX_TEXT_BYTES = 64 << 20
"""Size limit of a text file, written by a person or a program: far more than any needs, and far less than memory."""


def open_file(path: str | Path) -> BinaryIO:
    """Open a regular file for reading. A FIFO would block, and a device may never end.

    Raises:
        OSError: it cannot be opened, or is not a regular file; `strerror` says which.
    """
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except ValueError as error:  # NUL in the name
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def read_file(path: str | Path, max_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Read all bytes of a regular file.

    Raises:
        OSError: as for `open_file`; or it is larger than `max_bytes`.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = b"" if size > max_bytes else file.read()
    if max(size, len(data)) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes:,} bytes", str(path))
    return data


def is_folder(path: Path) -> bool:
    """Whether there is a folder at a path. A path that the system does not take (a name too long, a NUL) has none."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False
