"""A copy of the original model, with its external data, in an output folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx

from pimflow.frontend.reading import all_tensors, external_range, is_external


def copy_model(path: str, folder: Path) -> Path:
    """Copies an ONNX file and its external data, as they are, into a new folder; returns the copy's path."""
    model = onnx.load(path, load_external_data=False)
    home = Path(path).parent
    outside = {external_range(tensor, home).path for tensor in all_tensors(model) if is_external(tensor)}
    for file in sorted(outside):
        copy = folder / file.relative_to(home)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / Path(path).name
    shutil.copyfile(path, copy)
    return copy
