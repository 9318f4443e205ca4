"""The original model: copied into an output folder, and run by ONNX Runtime with nothing of ours in between."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import onnx

from pimflow.frontend.reading import all_tensors, external_range, is_external
from pimflow.frontend.session import ORT_ERRORS, open_session, refuse, session_options, to_ort_value
from pimflow.ir import Array


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


def run_original(content: str | bytes | onnx.ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs of the original model by name.

    Args:
        content: a path, or a model in memory.
        inputs: arrays by input name.

    Raises:
        ModelError: ONNX Runtime refuses the model or fails.
    """
    name = content if isinstance(content, str) else "model"
    data = content if isinstance(content, (str, bytes)) else content.SerializeToString()
    session = open_session(data, session_options(), name)
    names = [output.name for output in session.get_outputs()]
    known = {item.name for item in session.get_inputs()}
    try:
        feeds = {key: to_ort_value(array) for key, array in inputs.items() if key in known}
        results = session.run_with_ort_values(names, feeds)
    except ORT_ERRORS as error:
        refuse(name, error)
    return {key: value.numpy() for key, value in zip(names, results, strict=True)}
