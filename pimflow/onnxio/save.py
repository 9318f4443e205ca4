"""Writing a graph as an ONNX file; weights beyond what protobuf can hold go to a data file beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from pimflow.errors import OutputError
from pimflow.ir import Array, Graph
from pimflow.onnxio.export import set_external, split_model

SINGLE_FILE_LIMIT_BYTES = 256 << 20
"""Constants up to this sum are stored inside the model: protobuf copies what it holds, and can hold 2 GB at most."""

EXTERNAL_MINIMUM_BYTES = 1024
ALIGNMENT_BYTES = 4096
"""Tensors in the data file start at multiples of a page, so that they can be mapped."""


def save_onnx(graph: Graph, path: str | Path, *, single_file_limit_bytes: int = SINGLE_FILE_LIMIT_BYTES) -> None:
    """Writes the graph as ONNX; the same graph gives the same bytes.

    Constants that exceed the limit in sum go to `<file name>.data` in the same folder.

    Raises:
        OutputError: a file cannot be written.
    """
    path = Path(path)
    total = graph.constant_bytes
    model, outside = split_model(graph, None if total <= single_file_limit_bytes else EXTERNAL_MINIMUM_BYTES)
    try:
        if outside:
            _write_data(model, outside, path.with_name(path.name + ".data"))
        path.write_bytes(model.SerializeToString(deterministic=True))
    except OSError as error:
        raise OutputError(f"cannot write {error.filename or path}: {error.strerror}") from error


def _write_data(model: onnx.ModelProto, arrays: dict[str, Array], path: Path) -> None:
    """Writes the arrays one after the other and points the model's tensors at them."""
    with path.open("wb") as file:
        for tensor in model.graph.initializer:
            if tensor.name not in arrays:
                continue
            array = np.ascontiguousarray(arrays[tensor.name])
            file.write(b"\0" * (-file.tell() % ALIGNMENT_BYTES))
            set_external(tensor, path.name, file.tell(), array.nbytes)
            array.tofile(file)
