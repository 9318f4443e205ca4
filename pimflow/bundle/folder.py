"""Output folders: written atomically, and never over anything that pimflow did not write."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from pimflow.bundle.files import parent_folders
from pimflow.bundle.manifest import is_output, read_manifest, stamps, write_manifest
from pimflow.bundle.scratch import MAX_NAME_BYTES, NEW, parent_lock, put_in_place, scratch_folder
from pimflow.bundle.stamps import NOTHING_SEEN
from pimflow.errors import OutputError

_ANOTHER = "choose another output folder with -o"


def check_output(folder: Path, seen: Mapping[str, str] = NOTHING_SEEN) -> None:
    """Refuse a folder that cannot be written, or that holds anything but an unchanged output of pimflow.

    Called before long work, so that the refusal comes at once. Puts back an output that a killed run had moved aside.

    Args:
        folder: the output folder.
        seen: file digests by stamp, from earlier runs; these files are not read again.

    Raises:
        OutputError: something is in the way; the message says what.
    """
    place = folder.absolute()
    if len(os.fsencode(place.name)) > MAX_NAME_BYTES:
        raise OutputError(f"the name of the output folder is longer than {MAX_NAME_BYTES} bytes", _ANOTHER)
    with _output_errors(folder):
        parent = next((parent for parent in place.parents if parent.exists()), place)
        if not parent.is_dir():
            raise OutputError(f"{parent} is not a folder", _ANOTHER)
        if not os.access(parent, os.W_OK):
            raise OutputError(f"the folder {parent} cannot be written", _ANOTHER)
        if parent != place.parent:
            return  # there is nothing yet
        with parent_lock(place):
            _check_replaceable(place, folder, seen)


def find_output(folder: Path) -> bool:
    """Whether a folder is an output of pimflow, of any version.

    Waits for a process that is replacing it, and puts back an output that a killed run had moved aside.

    Raises:
        OutputError: it cannot be put back, or the other process does not end.
    """
    place = folder.absolute()
    if is_output(place):
        return True
    if not place.parent.is_dir():
        return False
    with parent_lock(place):
        return is_output(place)


@contextmanager
def new_output(
    folder: Path, known: Mapping[str, str] = MappingProxyType({}), seen: dict[str, str] | None = None
) -> Iterator[Path]:
    """A temporary folder that becomes `folder` if the block succeeds, and is removed if it fails.

    Missing folders around it are created. The previous content of `folder` is moved aside, checked once more, and
    removed once the new output is in place; if anything fails before that, it is put back.

    Args:
        folder: the output folder.
        known: digests of files that the block writes, by name, if the block computes them; read when the block has
            ended.
        seen: file digests by stamp, from earlier runs, as for `check_output`; those of the new output are added.

    Raises:
        OutputError: see `check_output`; or the disk is full or not writable.
    """
    seen = {} if seen is None else seen
    check_output(folder, seen)
    with _output_errors(folder), parent_folders(folder), scratch_folder(folder.absolute()) as scratch:
        yield scratch / NEW
        write_manifest(scratch / NEW, known)
        written = stamps(scratch / NEW)
        put_in_place(scratch, folder.absolute(), lambda old: _check_replaceable(old, folder, seen))
        seen.update(written)


def _check_replaceable(place: Path, folder: Path, seen: Mapping[str, str]) -> None:
    """Refuse anything but a missing folder, an empty one or an unchanged output; `folder` is the user's name for it."""
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        raise OutputError(f"{folder} exists and is not a folder", _ANOTHER)
    if not place.exists() or not any(place.iterdir()):
        return
    manifest = read_manifest(place)
    if manifest is None and is_output(place):
        raise OutputError(f"{folder} is the output folder of another version of pimflow", f"remove it, or {_ANOTHER}")
    if manifest is None:
        raise OutputError(f"{folder} is not empty, and is not an output folder of pimflow", f"{_ANOTHER}, or empty it")
    name = manifest.changed(place, seen)
    if name is not None:
        raise OutputError(
            f"{folder} is an output folder of pimflow, but {name} was added or changed since",
            "move what you want to keep, and empty the folder, or choose another with -o",
        )


@contextmanager
def _output_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror or error}", "check space and permissions") from None
