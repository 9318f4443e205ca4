"""Output folders: written whole or not at all, and never over something that is not ours."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pimflow.data import decode, encode
from pimflow.errors import DataError, OutputError
from pimflow.version import format_of

MANIFEST = "manifest.json"
_FORMAT = format_of("output")


@dataclass(frozen=True)
class _Manifest:
    """The file by which a folder is known as an output of pimflow: sizes of all other files, by name."""

    format: str
    files: Mapping[str, int]


def check_output(folder: Path) -> None:
    """Refuses a folder that cannot be written, or that holds anything but an unchanged output of ours.

    Called before long work, so that the refusal comes at once.

    Raises:
        OutputError: says what is in the way.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise OutputError(f"{folder} exists and is not a folder", "choose another output folder with -o")
    parent = folder.absolute().parent
    if not parent.is_dir():
        raise OutputError(f"the folder {parent} does not exist", "create it, or choose another output folder with -o")
    if not os.access(parent, os.W_OK):
        raise OutputError(f"the folder {parent} cannot be written", "choose another output folder with -o")
    if folder.is_dir() and any(folder.iterdir()):
        _check_ours(folder)


def _check_ours(folder: Path) -> None:
    listed = read_manifest(folder)
    if listed is None:
        raise OutputError(
            f"{folder} is not empty, and is not an output folder of pimflow",
            "choose another output folder with -o, or empty it",
        )
    present = {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    present.pop(MANIFEST, None)
    for name in sorted(present.keys() | listed.keys()):
        if present.get(name) != listed.get(name):
            raise OutputError(
                f"{folder} is an output folder of pimflow, but {name} was added or changed since",
                "move what you want to keep, and empty the folder, or choose another with -o",
            )


def read_manifest(folder: Path) -> dict[str, int] | None:
    """File sizes by name of an output folder of ours; None if it is not one."""
    try:
        manifest = decode(_Manifest, read_json(folder / MANIFEST))
    except (OSError, ValueError, DataError):
        return None
    return dict(manifest.files) if manifest.format == _FORMAT else None


@contextmanager
def new_output(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes `folder` when the block ends well, and vanishes when it does not.

    Raises:
        OutputError: see `check_output`; or the disk is full or not writable.
    """
    check_output(folder)
    folder = folder.absolute()
    try:
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
            made = Path(scratch, "new")
            made.mkdir()
            yield made
            _write_manifest(made)
            if folder.exists():
                folder.rename(Path(scratch, "old"))
            made.rename(folder)
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror or error}", "check space and permissions") from None


def _write_manifest(folder: Path) -> None:
    files = {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    write_json(folder / MANIFEST, encode(_Manifest(_FORMAT, files)))


def write_json(path: Path, document: Any, indent: int | None = 2) -> None:
    """One JSON document as a file, byte-stable."""
    text = json.dumps(document, indent=indent, allow_nan=False, separators=None if indent else (",", ":"))
    path.write_text(text + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not UTF-8, or not JSON.
    """
    return json.loads(path.read_text(encoding="utf-8"))


def write_whole(path: Path, data: bytes) -> None:
    """One file, whole or not at all; an existing file is not overwritten.

    Raises:
        OutputError: it exists, or cannot be written.
    """
    if path.exists():
        raise OutputError(f"{path} exists", "choose another name, or remove it first")
    try:
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
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}", "check the folder and its permissions"
        ) from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
