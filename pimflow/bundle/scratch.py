"""The scratch folder next to an output folder, `.NAME.pimflow-XXXXXXXX`: holds the output in progress and the previous
one.

It holds `new`, the output in progress, until that is put in place; and `old`, the output that it replaces, from shortly
before. So an `old` next to a `new` is still needed, and an `old` alone is not.

Two advisory locks, which are released when their process ends, keep processes apart. One is on the scratch folder for
as long as its process lives: a scratch folder without a lock was left by a killed process. The other is on the parent
folder while anything is moved in it. Where the file system has no locks, nothing is swept, and of two processes that
race one may fail.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum, auto
from pathlib import Path

from pimflow.bundle.manifest import read_manifest
from pimflow.errors import OutputError

NEW, OLD = "new", "old"
_MARK = ".pimflow-"
_RANDOM = 8  # letters that tempfile adds to a prefix
MAX_NAME_BYTES = 255 - len(f".{_MARK}") - _RANDOM
"""The limit for the name of an output folder: the name of its scratch folder is longer."""
_WAIT_S = 60.0
_RETRY_S = 0.01


class OutputWarning(UserWarning):
    """An event that a user should know of: an earlier output was put back, or left in another place."""


@contextmanager
def parent_lock(folder: Path) -> Iterator[None]:
    """Lock the parent folder, so that no other process moves an output folder in the meantime. First sweeps what killed
    processes left of it: an output that they had moved aside is put back.

    Args:
        folder: an absolute path; it need not exist.

    Raises:
        OutputError: another process does not end, or what was moved aside cannot be put back.
    """
    with _locked(folder.parent, _WAIT_S) as lock:
        if lock is _Lock.TAKEN:
            raise OutputError(f"another process is writing into {folder.parent}", "try again when it has ended")
        if lock is _Lock.HELD:
            _sweep(folder)
        yield


@contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """A scratch folder for one output, with an empty `new`; `_close` removes it.

    Raises:
        OSError: it cannot be created.
        OutputError: see `parent_lock`.
    """
    with ExitStack() as stack:
        with parent_lock(folder):  # nobody sweeps it before it is locked
            scratch = Path(tempfile.mkdtemp(prefix=_prefix(folder), dir=folder.parent))
            stack.enter_context(_locked(scratch))
        try:
            (scratch / NEW).mkdir()
            yield scratch
        finally:
            _close(scratch, folder)


def put_in_place(scratch: Path, folder: Path, check: Callable[[Path], None]) -> None:
    """Put `new` in the place of a folder, which becomes `old`; if anything fails, the previous content is put back.

    Args:
        scratch: the scratch folder of this output.
        folder: an absolute path; it need not exist.
        check: given the previous content, which has been moved aside; raises if it must not be replaced.

    Raises:
        OSError: a folder cannot be renamed.
        OutputError: see `parent_lock`; or another process created the folder again.
    """
    with parent_lock(folder):
        try:
            if os.path.lexists(folder):
                check(folder.rename(scratch / OLD))
            _rename_new(scratch, folder)
        finally:
            _restore(scratch, folder)


def _rename_new(scratch: Path, folder: Path) -> None:
    try:
        (scratch / NEW).rename(folder)
    except OSError:
        if not os.path.lexists(folder):
            raise
        raise OutputError(f"another process made {folder} meanwhile", "try again when it has ended") from None


def _prefix(folder: Path) -> str:
    return f".{folder.name}{_MARK}"


def _sweep(folder: Path) -> None:
    prefix = _prefix(folder)
    places: list[Path] = []
    with suppress(OSError):
        places = [path for path in folder.parent.iterdir() if path.name.startswith(prefix)]
    for scratch in sorted(places):
        if len(scratch.name) != len(prefix) + _RANDOM or scratch.is_symlink() or not scratch.is_dir():
            continue
        with _locked(scratch) as lock:
            if lock is _Lock.HELD:
                _close(scratch, folder)


def _close(scratch: Path, folder: Path) -> None:
    """Remove a scratch folder. An old output is put back if nothing took its place. Files that were changed while an
    output was replaced stay where they are, with a warning.

    Raises:
        OutputError: the old output cannot be put back.
    """
    old, new = scratch / OLD, scratch / NEW
    if _restore(scratch, folder):
        _warn(f"{folder} has been restored: an interrupted run had moved it aside")
    if _is_needed(scratch):
        _warn(f"{folder} was taken by something else while being replaced; its previous content is in {old}")
        return
    if os.path.lexists(old) and not _remove_unchanged(old):
        _warn(f"{folder} was changed while it was being replaced; the changed files are in {old}")
    shutil.rmtree(new, ignore_errors=True)
    with suppress(OSError):
        scratch.rmdir()


def _is_needed(scratch: Path) -> bool:
    """Whether a scratch folder holds an old output that no new one has replaced."""
    return os.path.lexists(scratch / OLD) and (scratch / NEW).exists()


def _restore(scratch: Path, folder: Path) -> bool:
    """Put the old output back if it is needed and nothing took its place; return whether it did."""
    if not _is_needed(scratch) or os.path.lexists(folder):
        return False
    try:
        (scratch / OLD).rename(folder)
    except OSError as error:
        raise OutputError(
            f"cannot put back what was in {folder}: {error.strerror}; it is in {scratch / OLD}", f"move it to {folder}"
        ) from None
    return True


def _remove_unchanged(old: Path) -> bool:
    """Remove the unchanged files of a replaced output; return whether nothing is left."""
    manifest = read_manifest(old)
    with suppress(OSError):
        if manifest is None:
            old.rmdir()
        else:
            manifest.remove(old)
    return not os.path.lexists(old)


def _warn(message: str) -> None:
    warnings.warn(message, OutputWarning, stacklevel=2)


class _Lock(Enum):
    """The result of an attempt to lock a folder."""

    HELD = auto()
    TAKEN = auto()
    """Another process, or another thread, holds it."""
    NONE = auto()
    """This folder, file system or platform has no locks."""


@contextmanager
def _locked(folder: Path, wait_s: float = 0.0) -> Iterator[_Lock]:
    """Acquire the advisory lock of a folder, if that is possible within `wait_s`."""
    if sys.platform == "win32":
        yield _Lock.NONE
        return
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield _Lock.NONE
        return
    try:
        yield _lock(handle, wait_s)
    finally:
        os.close(handle)  # releases the lock


def _lock(handle: int, wait_s: float) -> _Lock:
    import fcntl

    end = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                return _Lock.TAKEN
            time.sleep(_RETRY_S)
        except OSError:
            return _Lock.NONE
        else:
            return _Lock.HELD
