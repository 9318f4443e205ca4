"""The original model: copied into an output folder, and run by ONNX Runtime with nothing of ours in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx

from pimflow.ir import Array
from pimflow.onnxio.session import (
    ORT_ERRORS,
    from_ort_value,
    needs_ort_value,
    open_session,
    ort_dtype,
    refuse,
    session_options,
    to_ort_value,
    unaliased,
)
from pimflow.onnxio.tensors import NUMPY_NATIVE, dtype_code


def run_original(content: str | bytes | onnx.ModelProto, inputs: Mapping[str, Array]) -> dict[str, Any]:
    """Outputs of the original model by name: arrays, or lists for sequences.

    Args:
        content: a path, or a model in memory.
        inputs: arrays by input name.

    Raises:
        ModelError: ONNX Runtime refuses the model or fails.
    """
    name = content if isinstance(content, str) else "model"
    data = content if isinstance(content, (str, bytes)) else content.SerializeToString()
    session = open_session(data, session_options(), name)
    types = {output.name: ort_dtype(output.type) for output in session.get_outputs()}
    known = {item.name for item in session.get_inputs()}
    feeds = {key: array for key, array in inputs.items() if key in known}
    exotic = any(dtype_code(dtype) and dtype not in (*NUMPY_NATIVE, "object") for dtype in types.values())
    try:
        if not exotic and not any(needs_ort_value(array) for array in feeds.values()):
            return unaliased(dict(zip(types, session.run(list(types), feeds), strict=True)), feeds)
        results = session.run_with_ort_values(list(types), {key: to_ort_value(array) for key, array in feeds.items()})
        return {key: from_ort_value(value, types[key]) for key, value in zip(types, results, strict=True)}
    except ORT_ERRORS as error:
        refuse(name, error)
