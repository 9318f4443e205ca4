"""Arrays by name in an .npz file, as `numpy.savez` writes it."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pimflow.errors import InputDataError
from pimflow.ir import Array


def read_npz(path: str | Path) -> dict[str, Array]:
    """The arrays of a file, by name.

    Raises:
        InputDataError: it is not an npz file.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            if not hasattr(file, "files"):
                raise InputDataError(f"{path} holds one bare array", "save arrays by name with numpy.savez")
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputDataError(f"{path} cannot be read as an npz file: {error}", "make it with numpy.savez") from None


def write_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """Writes arrays of numbers by name; the same arrays give the same bytes, whatever their names."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)
