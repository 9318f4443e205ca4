"""The copy of the original model, with its external data, in an output folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import onnx

from pimflow.errors import ModelError
from pimflow.frontend.file_outline import file_outline
from pimflow.frontend.reading import all_tensors, external_range, is_external


def find_original(folder: Path, name: str) -> Path:
    """The original model that an output folder names.

    Raises:
        ModelError: the path that it names is not inside the folder.
    """
    path, root = folder / name, os.path.realpath(folder)
    if "\0" in name or os.path.commonpath([root, os.path.realpath(path)]) != root:
        raise ModelError(f"{folder} is damaged: {name!r} is not inside it", "compile the model again")
    return path


def copy_model(path: str, folder: Path, *, whole: bool = False) -> Path:
    """Copy an ONNX file and its external data, unchanged, into a new folder; return the path of the copy.

    Args:
        path: the file.
        folder: the new folder.
        whole: whether the file is known to have no external data; otherwise it is parsed to find them.
    """
    home = Path(path).parent
    for file in () if whole else sorted(_external_files(Path(path))):
        copy = folder / file.relative_to(home)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / Path(path).name
    shutil.copyfile(path, copy)
    return copy


def _external_files(path: Path) -> set[Path]:
    """The files of a model's external data."""
    outlined = file_outline(path)
    model = onnx.load(path, load_external_data=False) if outlined is None else outlined.proto
    within = {} if outlined is None else outlined.places
    tensors = (tensor for tensor in all_tensors(model) if is_external(tensor) and tensor.name not in within)
    return {external_range(tensor, path).path for tensor in tensors}
