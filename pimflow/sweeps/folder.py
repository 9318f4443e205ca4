"""The folder of a sweep: the store, and what is made of it anew after every run."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pimflow.bundle.files import folder_around, replace_file, sha256_of
from pimflow.errors import OutputError
from pimflow.sweeps.store import Store, is_store

STORE = "points.jsonl"
_ANOTHER = "choose another folder with -o"


@contextmanager
def sweep_folder(folder: Path | None) -> Iterator[Store]:
    """The open store of a sweep's folder, which is made where it is missing; in memory, where there is no folder.

    Raises:
        OutputError: the folder holds anything else than a sweep, or what was made of it has been changed since; another
            process sweeps there; or it cannot be written.
    """
    if folder is None:
        store = Store()
        with store.opened():
            yield store
        return
    _check(folder)
    with ExitStack() as stack:
        with _writing(folder):
            stack.enter_context(folder_around(folder / STORE))
            store = Store(folder / STORE)
            stack.enter_context(store.opened())
            _check_made(folder, store)
        yield store


def write_made(folder: Path, store: Store, texts: Mapping[str, str]) -> None:
    """Files that are made of a sweep, each whole or as it was before.

    Raises:
        OutputError: they cannot be written.
    """
    with _writing(folder):
        for name, text in texts.items():
            data = text.encode("utf-8", "backslashreplace")
            (folder / name).parent.mkdir(exist_ok=True)
            store.made(name, hashlib.sha256(data).hexdigest())  # before: a kill must not make our own file a stranger
            replace_file(folder / name, data)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
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


def _check_made(folder: Path, store: Store) -> None:
    """Refuses to replace a file that is not as it was made."""
    for name, digests in store.files.items():
        path = folder / name
        if os.path.lexists(path) and (not path.is_file() or sha256_of(path) not in digests):
            raise OutputError(f"{path} was changed since it was written", "move it away; the sweep makes it anew")
