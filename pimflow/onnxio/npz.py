"""Arrays by name in an .npz file, as `numpy.savez` writes it."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pimflow.data import open_file
from pimflow.errors import InputDataError
from pimflow.ir import Array
from pimflow.sparse.memory import available_bytes, size_text
from pimflow.sparse.npz import DAMAGED


def read_npz(path: str | Path) -> dict[str, Array]:
    """The arrays of an .npz file, by name.

    Raises:
        InputDataError: it is not an npz file, or its arrays do not fit into memory.
    """
    try:
        with open_file(path) as opened:
            if opened.read(6) == b"\x93NUMPY":
                raise InputDataError(f"{path} holds one bare array", "save arrays by name with numpy.savez")
            with zipfile.ZipFile(opened) as archive:
                _check_room(archive, path)
            opened.seek(0)
            with np.load(opened, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
    except OSError as error:
        raise InputDataError(f"{path} cannot be read: {error.strerror or error}", "check the path") from None
    except MemoryError:  # an array's header claims more than the archive holds
        raise InputDataError(f"{path} claims arrays that are larger than memory", "make it with numpy.savez") from None
    except DAMAGED as error:
        raise InputDataError(f"{path} cannot be read as an npz file: {error}", "make it with numpy.savez") from None


def _check_room(archive: zipfile.ZipFile, path: str | Path) -> None:
    unpacked, room = sum(info.file_size for info in archive.infolist()), available_bytes()
    if unpacked > room:
        raise InputDataError(
            f"{path}: its arrays unpack to {size_text(unpacked)}, but {size_text(room)} of memory is free",
            "leave out what the model does not read",
        )


def write_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """Writes arrays of numbers under any names; the same arrays give the same bytes."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)
