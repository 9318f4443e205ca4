"""The original model: copied into an output folder, and run by ONNX Runtime with nothing of ours in between."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import onnx
import onnxruntime as ort

from pimflow.frontend.reading import all_tensors, is_external
from pimflow.frontend.session import ORT_ERRORS, refuse, session_options, to_ort_value
from pimflow.ir import Array


def copy_model(path: str, copy: Path) -> None:
    """Copies an ONNX file, with its external data gathered in one file beside the copy."""
    model = onnx.load(path, load_external_data=False)
    if not any(is_external(tensor) for tensor in all_tensors(model)):
        shutil.copyfile(path, copy)
        return
    onnx.external_data_helper.load_external_data_for_model(model, str(Path(path).parent))
    onnx.save_model(model, copy, save_as_external_data=True, location=f"{copy.name}.data", size_threshold=1024)


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
    try:
        session = ort.InferenceSession(data, session_options(), providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        known = {item.name for item in session.get_inputs()}
        feeds = {key: to_ort_value(array) for key, array in inputs.items() if key in known}
        results = session.run_with_ort_values(names, feeds)
    except ORT_ERRORS as error:
        refuse(name, error)
    return {key: value.numpy() for key, value in zip(names, results, strict=True)}
