"""Files: JSON documents, byte-stable; digests; and single files written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pimflow.errors import OutputError


def json_text(document: Any, indent: int | None = 2) -> str:
    """One JSON document as text, byte-stable."""
    return json.dumps(document, indent=indent, allow_nan=False, separators=None if indent else (",", ":")) + "\n"


def write_json(path: Path, document: Any, indent: int | None = 2) -> None:
    """One JSON document as a file, byte-stable."""
    path.write_text(json_text(document, indent), encoding="utf-8")


def read_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not UTF-8, or not JSON.
    """
    return json.loads(path.read_text(encoding="utf-8"))


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, read in blocks.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def folder_around(place: Path) -> Iterator[None]:
    """Missing folders around a file or folder that the block writes; they go again if it fails.

    Raises:
        OSError: they cannot be made.
    """
    missing = [folder for folder in place.absolute().parents if not folder.exists()]
    place.absolute().parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for folder in missing:
            with suppress(OSError):  # another process writes there
                folder.rmdir()
        raise


def write_whole(path: Path, data: bytes) -> None:
    """One file, whole or not at all; an existing file is not overwritten, missing folders around it are made.

    Raises:
        OutputError: it exists, or cannot be written.
    """
    if path.exists():
        raise OutputError(f"{path} exists", "choose another name, or remove it first")
    try:
        with folder_around(path):
            _write_aside(path, data)
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}", "check the folder and its permissions"
        ) from None


def _write_aside(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
    scratch = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        scratch.chmod(0o666 & ~_umask())
        scratch.rename(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
