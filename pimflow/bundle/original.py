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


def copy_model(path: str, folder: Path) -> Path:
    """Copy an ONNX file and its external data, unchanged, into a new folder; return the path of the copy."""
    home, outlined = Path(path).parent, file_outline(Path(path))
    model = onnx.load(path, load_external_data=False) if outlined is None else outlined.proto
    within = {} if outlined is None else outlined.places
    tensors = (tensor for tensor in all_tensors(model) if is_external(tensor) and tensor.name not in within)
    outside = {external_range(tensor, Path(path)).path for tensor in tensors}
    for file in sorted(outside):
        copy = folder / file.relative_to(home)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / Path(path).name
    shutil.copyfile(path, copy)
    return copy
