"""The manifest of an output folder, which identifies the folder as pimflow's and reveals changes since it was written.

Files that are added to a complete folder (`verification.json`) are not in its manifest, and carry their own digest.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

from pimflow.bundle.files import json_text, read_json, sha256_of, write_json
from pimflow.bundle.stamps import NOTHING_SEEN, STAMPS_LAST, changed_ns, digest_of, stamp_of
from pimflow.data import decode, encode
from pimflow.errors import DataError
from pimflow.records import dataclass
from pimflow.version import format_of

MANIFEST = "manifest.json"
VERIFICATION = "verification.json"
_SEAL = "sha256"
_FORMAT = format_of("output")


@dataclass(frozen=True)
class _File:
    """One file as it was written."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """All files of an output folder except the manifest itself, by name."""

    format: str
    files: Mapping[str, _File]

    @cached_property
    def folders(self) -> frozenset[str]:
        """The folders that contain the files."""
        return frozenset(parent.as_posix() for name in self.files for parent in PurePosixPath(name).parents)

    def changed(self, folder: Path, seen: Mapping[str, str] = NOTHING_SEEN, *, added: bool = True) -> str | None:
        """The name of an entry that was removed, changed or `added` since the output was written; None if there is
        none.

        Args:
            folder: the output folder.
            seen: file digests by stamp; these files are not read.
            added: whether added entries count.

        Raises:
            OSError: something cannot be read.
        """
        present = _entries(folder) if added else {name: folder / name for name in self.files}
        altered = {name for name, path in present.items() if not self._is_as_written(name, path, seen)}
        return min(altered | (self.files.keys() - present.keys()), default=None)

    def remove(self, folder: Path) -> None:
        """Remove the unchanged files, and the folder if nothing else is left. The manifest is removed last, so that the
        remains of a killed process can still be recognised.

        Raises:
            OSError: something cannot be read or removed, other than because it was changed.
        """
        for name, path in sorted(_entries(folder).items(), reverse=True):  # entries before their folder
            if name != MANIFEST and self._is_as_written(name, path):
                _remove(path)
        if set(_entries(folder)) == {MANIFEST} and self._is_as_written(MANIFEST, folder / MANIFEST):
            (folder / MANIFEST).unlink()
            _remove(folder)

    def _is_as_written(self, name: str, path: Path, seen: Mapping[str, str] = NOTHING_SEEN) -> bool:
        try:
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode):
                return name in self.folders
            if not stat.S_ISREG(status.st_mode):  # a link, FIFO or device is not from pimflow, and is not read
                return False
            if name == MANIFEST:
                return path.read_bytes() == json_text(encode(self)).encode()
            if name == VERIFICATION:
                return _is_sealed(path)
            listed = self.files.get(name)
            return listed is not None and listed == _File(status.st_size, digest_of(path, seen))
        except FileNotFoundError:  # removed in the meantime
            return False


def stamps(folder: Path) -> dict[str, str]:
    """The digests listed in a manifest, by the stamps of their files. Called right after the manifest is written. Only
    files last changed before the manifest's own timestamp are included, so that any later change gives another stamp.

    Raises:
        OSError: something cannot be read.
    """
    manifest = read_manifest(folder)
    if manifest is None or not STAMPS_LAST:
        return {}
    written_ns = (folder / MANIFEST).stat().st_ctime_ns
    statuses = {name: (folder / name).stat() for name in manifest.files}
    return {
        stamp_of(status): manifest.files[name].sha256
        for name, status in statuses.items()
        if changed_ns(status) < written_ns
    }


def write_manifest(folder: Path, known: Mapping[str, str] = MappingProxyType({})) -> None:
    """Write a manifest of all files in a folder; digests in `known`, by name, are not computed again."""
    files = {
        name: _File(path.stat().st_size, known.get(name) or sha256_of(path))
        for name, path in sorted(_entries(folder).items())
        if path.is_file() and name != VERIFICATION
    }
    write_json(folder / MANIFEST, encode(Manifest(_FORMAT, files)))


def is_output(folder: Path) -> bool:
    """Whether a folder is an output of this or another version."""
    form = _read(folder).get("format")
    return isinstance(form, str) and form.startswith(_FORMAT.partition("/")[0] + "/")


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of an output folder of this version; None if it is not one."""
    try:
        return _decoded(_read(folder))
    except DataError:
        return None


def change_since(folder: Path, ours: Collection[str]) -> str | None:
    """The name of a file that was changed or removed since an output folder was written; None if there is none, or if
    there is no manifest of this version to compare with. Added files count only if their name is in `ours`.

    Args:
        folder: the output folder.
        ours: the names of the files that a folder may hold.

    Raises:
        OSError: something cannot be read.
    """
    document = _read(folder)
    if document.get("format") != _FORMAT:
        return None
    try:
        manifest = _decoded(document)
    except DataError:
        return MANIFEST
    unlisted = (name for name in _entries(folder) if name in ours and name not in manifest.files)
    return min(unlisted, default=None) or manifest.changed(folder, added=False)


def sealed(document: Mapping[str, Any]) -> str:
    """A JSON document with its own digest."""
    return json_text({**document, _SEAL: hashlib.sha256(json_text(document).encode()).hexdigest()})


def read_sealed(path: Path) -> dict[str, Any]:
    """The document that `sealed` wrote to a file, without the digest.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not JSON.
        DataError: it was changed since it was written.
    """
    data = read_json(path)
    document = {key: value for key, value in data.items() if key != _SEAL} if isinstance(data, dict) else {}
    if sealed(document) != json_text(data):
        raise DataError("it was changed since it was written")
    return document


def _is_sealed(path: Path) -> bool:
    try:
        read_sealed(path)
    except (ValueError, DataError):
        return False
    return True


def _decoded(document: Any) -> Manifest:
    manifest = decode(Manifest, document)
    if manifest.format != _FORMAT:
        raise DataError("'format' is another version's")
    for name in manifest.files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\0" in name:
            raise DataError(f"'files' names {name!r}, which is not inside the folder")
    return manifest


def _read(folder: Path) -> dict[str, Any]:
    """A manifest as plain data; empty if there is none."""
    path = folder / MANIFEST
    document = None
    with suppress(OSError, ValueError):
        document = read_json(path)
    return document if isinstance(document, dict) else {}


def _entries(folder: Path) -> dict[str, Path]:
    """Every entry below a folder by its relative name, including folders; links are not followed."""

    def fail(error: OSError) -> None:
        raise error

    paths = (
        Path(place, name) for place, folders, files in os.walk(folder, onerror=fail) for name in (*folders, *files)
    )
    return {path.relative_to(folder).as_posix(): path for path in paths}


def _remove(path: Path) -> None:
    """Remove a file, or a folder if it is empty."""
    if not path.is_dir():
        path.unlink()
        return
    with suppress(OSError):
        path.rmdir()
