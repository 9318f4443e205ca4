"""Loads and runs the original model in ONNX Runtime, unchanged by pimflow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pimflow.errors import ModelError
from pimflow.frontend import load_model
from pimflow.ir import Array
from pimflow.onnxio.export import ModelContent, SplitModel
from pimflow.onnxio.runtime import runtime_errors
from pimflow.onnxio.session import (
    GraphSession,
    from_ort_value,
    lacks_kernel,
    lend,
    needs_ort_value,
    needs_zero_points,
    open_session,
    ort_dtype,
    refuse,
    session_options,
    time_limited,
    to_ort_value,
    unaliased,
)
from pimflow.onnxio.tensors import NUMPY_NATIVE, dtype_code

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, OrtValue


def load_original(content: ModelContent) -> None:
    """Loads the original model unchanged, to check that ONNX Runtime accepts it.

    Raises:
        ModelError: ONNX Runtime refuses it.
    """
    try:
        _open(content, optimise=False)
    except ModelError as error:
        if not lacks_kernel(error):  # a 16-bit model: this was checked when the model was read
            raise


def run_original(
    content: ModelContent,
    inputs: Mapping[str, Array],
    *,
    optimise: bool = True,
    is_once: bool = False,
    limit_s: float | None = None,
) -> dict[str, Any]:
    """Outputs of the original model by name: arrays, or lists for sequences.

    A 16-bit model for which ONNX Runtime lacks kernels is read and run in single precision.

    Args:
        content: a path, or a model in memory.
        inputs: arrays by input name.
        optimise: whether ONNX Runtime may fuse and fold.
        is_once: whether the model runs only once, so that repacking weights does not pay off.
        limit_s: time limit in seconds; the run is ended at the next node after it.

    Raises:
        ModelError: ONNX Runtime refuses the model, fails, or is ended.
    """
    for exact_bytes in (True, False):
        try:
            session = _open(content, optimise, prepack=optimise and not is_once, exact_bytes=exact_bytes)
            return _run(session, inputs, limit_s, _name(content))
        except ModelError as error:
            if lacks_kernel(error):
                break
            if not exact_bytes or not needs_zero_points(error):
                raise
    return _run_widened(content, inputs, optimise)


def _run(session: _Session, inputs: Mapping[str, Array], limit_s: float | None, name: str) -> dict[str, Any]:
    types = {output.name: ort_dtype(output.type) for output in session.ort.get_outputs()}
    known = {item.name for item in session.ort.get_inputs()}
    feeds = {key: array for key, array in inputs.items() if key in known}
    non_native = any(dtype_code(dtype) and dtype not in (*NUMPY_NATIVE, "object") for dtype in types.values())
    with time_limited(limit_s) as options:
        try:
            if not non_native and not any(needs_ort_value(array) for array in feeds.values()):
                results = session.ort.run(list(types), feeds, options)
                return unaliased(dict(zip(types, results, strict=True)), feeds)
            lent = {key: to_ort_value(array) for key, array in feeds.items()}
            results = session.ort.run_with_ort_values(list(types), lent, options)
            return {key: from_ort_value(value, types[key]) for key, value in zip(types, results, strict=True)}
        except runtime_errors() as error:
            refuse(name, error)


def _run_widened(content: ModelContent, inputs: Mapping[str, Any], optimise: bool) -> dict[str, Any]:
    graph = load_model(content, {name: item.shape for name, item in inputs.items() if isinstance(item, np.ndarray)})
    return GraphSession(graph, optimise=optimise).run({name: inputs[name] for name in graph.inputs})


class _Session(NamedTuple):
    """A session, and the constants that it reads in place."""

    ort: InferenceSession
    lent: dict[str, OrtValue]


def _open(content: ModelContent, optimise: bool, prepack: bool = False, exact_bytes: bool = True) -> _Session:
    options = session_options(optimise=optimise, prepack=prepack, exact_bytes=exact_bytes)
    lent = lend(content.constants, options) if isinstance(content, SplitModel) else {}
    model = content.proto if isinstance(content, SplitModel) else content
    data = model if isinstance(model, (str, bytes)) else model.SerializeToString()
    return _Session(open_session(data, options, _name(content)), lent)


def _name(content: ModelContent) -> str:
    return content if isinstance(content, str) else "model"
