"""ONNX Runtime sessions over IR graphs: large constants are lent to the session, never copied or serialised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from pimflow.errors import ModelError
from pimflow.frontend.export import split_model
from pimflow.frontend.tensors import NUMPY_NATIVE, dtype_code
from pimflow.ir import Array, Graph

INLINE_LIMIT_BYTES = 16 * 1024
"""Constants up to this size travel inside the serialised model, larger ones are lent by reference."""

ORT_ERRORS: tuple[type[Exception], ...] = (
    ort_errors.Fail,
    ort_errors.InvalidArgument,
    ort_errors.InvalidGraph,
    ort_errors.InvalidProtobuf,
    ort_errors.NoSuchFile,
    ort_errors.NotImplemented,
    ort_errors.NoModel,
    ort_errors.RuntimeException,
    ort_errors.EPFail,
    RuntimeError,
    ValueError,
)
"""What ONNX Runtime raises for a model or an input that it refuses."""

_FATAL = 4


def session_options(threads: int = 2, optimise: bool = True) -> ort.SessionOptions:
    """Quiet options with a fixed number of threads."""
    options = ort.SessionOptions()
    options.log_severity_level = _FATAL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.disable_prepacking", "1")
    return options


class GraphSession:
    """A session over a graph; keeps the lent constants alive.

    Raises:
        ModelError: ONNX Runtime refuses the graph.
    """

    def __init__(self, graph: Graph, threads: int = 2, optimise: bool = True) -> None:
        model, lent = split_model(graph, INLINE_LIMIT_BYTES)
        options = session_options(threads, optimise)
        self._lent = {name: to_ort_value(array) for name, array in lent.items()}
        if self._lent:
            options.add_external_initializers(list(self._lent), list(self._lent.values()))
        try:
            self.session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except ORT_ERRORS as error:
            refuse(graph.name, error)
        self.name = graph.name
        self.outputs = tuple(item.name for item in self.session.get_outputs())

    def run(self, feeds: Mapping[str, Array], fetch: Sequence[str] | None = None) -> dict[str, Any]:
        """Values of the outputs (all, or those named).

        Raises:
            ModelError: ONNX Runtime fails.
        """
        names = list(self.outputs if fetch is None else fetch)
        try:
            if all(array.dtype.name in NUMPY_NATIVE or array.dtype == object for array in feeds.values()):
                return dict(zip(names, self.session.run(names, dict(feeds)), strict=True))
            lent = {name: to_ort_value(array) for name, array in feeds.items()}
            results = self.session.run_with_ort_values(names, lent)
            return {name: value.numpy() for name, value in zip(names, results, strict=True)}
        except ORT_ERRORS as error:
            refuse(self.name, error)


def to_ort_value(array: Array) -> ort.OrtValue:
    """An array as ONNX Runtime's, over the same memory where that is contiguous."""
    contiguous = np.ascontiguousarray(array).reshape(array.shape)
    if array.dtype.name in NUMPY_NATIVE or array.dtype == object:
        return ort.OrtValue.ortvalue_from_numpy(contiguous)
    bits = contiguous.view(np.dtype(f"uint{8 * array.dtype.itemsize}"))
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, dtype_code(array.dtype.name))


def refuse(name: str, error: Exception) -> NoReturn:
    """Raises ONNX Runtime's complaint as a `ModelError` of one line."""
    text = " ".join(str(error).split())
    text = text.split(" : ", 3)[-1] if text.startswith("[ONNXRuntimeError]") else text
    raise ModelError(f"ONNX Runtime refuses model {name!r}: {text[:600]}") from error
