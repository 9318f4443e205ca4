"""The folder of a sweep: the store, and the files that are generated from it after every run."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pimflow.bundle.files import parent_folders, replace_file, sha256_of
from pimflow.errors import OutputError
from pimflow.sweeps.store import Store, is_store

STORE = "points.jsonl"
_ANOTHER = "choose another folder with -o"


@contextmanager
def sweep_folder(folder: Path | None) -> Iterator[Store]:
    """The open store of a sweep's folder, which is created if it is missing; in memory if there is no folder.

    Raises:
        OutputError: the folder contains anything other than a sweep, or a generated file has been changed since;
            another process is sweeping there; or it cannot be written.
    """
    if folder is None:
        store = Store()
        with store.opened():
            yield store
        return
    _check(folder)
    with ExitStack() as stack:
        with _writing(folder):
            stack.enter_context(parent_folders(folder / STORE))
            store = Store(folder / STORE)
            stack.enter_context(store.opened())
            _check_generated(folder, store)
        yield store


def write_generated(folder: Path, store: Store, texts: Mapping[str, str]) -> None:
    """Write files that are generated from a sweep, each atomically.

    Raises:
        OutputError: they cannot be written.
    """
    with _writing(folder):
        for name, text in texts.items():
            data = text.encode("utf-8", "backslashreplace")
            (folder / name).parent.mkdir(exist_ok=True)
            store.add_file(name, hashlib.sha256(data).hexdigest())  # first, so that a kill leaves no unknown file
            replace_file(folder / name, data)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except ValueError as error:  # the name has a NUL, or cannot be encoded
        raise OutputError(f"cannot write {folder}: {error}", _ANOTHER) from None
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror or error}", "check space and permissions") from None


def _check(folder: Path) -> None:
    if os.path.lexists(folder) and not folder.is_dir():
        raise OutputError(f"{folder} exists and is not a folder", _ANOTHER)
    try:
        is_empty = not folder.is_dir() or not any(folder.iterdir())
    except OSError as error:
        raise OutputError(f"cannot read {folder}: {error.strerror}", _ANOTHER) from None
    if not is_empty and not is_store(folder / STORE):
        raise OutputError(f"{folder} is not empty, and is not the folder of a sweep", f"{_ANOTHER}, or empty it")


def _check_generated(folder: Path, store: Store) -> None:
    """Refuse to replace a generated file that has been changed."""
    for name, digests in store.files.items():
        path = folder / name
        if os.path.lexists(path) and (not path.is_file() or sha256_of(path) not in digests):
            raise OutputError(f"{path} was changed since it was written", "move it away; the sweep writes it again")
