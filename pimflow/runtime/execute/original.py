"""Loads and runs the original model in ONNX Runtime, unchanged by pimflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
from pimflow.records import NamedTuple

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
    """Outputs of one run of the original model; see `OriginalModel`."""
    return OriginalModel(content, optimise=optimise, is_once=is_once).run(inputs, limit_s)


class OriginalModel:
    """The original model in ONNX Runtime, for several runs: the session is opened by the first one.

    A 16-bit model for which ONNX Runtime lacks kernels is read and run in single precision.

    Args:
        content: a path, or a model in memory.
        optimise: whether ONNX Runtime may fuse and fold.
        is_once: whether the model runs only once, so that repacking weights does not pay off.
        reopens: whether every run opens a session of its own: in one session, random numbers differ from run to run,
            even with a seed.
    """

    def __init__(
        self, content: ModelContent, *, optimise: bool = True, is_once: bool = False, reopens: bool = False
    ) -> None:
        self._content = content
        self._optimise = optimise
        self._prepack = optimise and not is_once
        self._reopens = reopens
        self._exact_bytes = True
        self._widens = False
        self._session: _Session | None = None
        self._widened: _Widened | None = None

    def run(self, inputs: Mapping[str, Any], limit_s: float | None = None) -> dict[str, Any]:
        """Outputs by name: arrays, or lists for sequences.

        Args:
            inputs: arrays by input name.
            limit_s: time limit in seconds; the run is ended at the next node after it.

        Raises:
            ModelError: ONNX Runtime refuses the model, fails, or is ended.
        """
        if self._reopens:
            self.close()
        while not self._widens:
            try:
                if self._session is None:
                    self._session = _open(self._content, self._optimise, self._prepack, self._exact_bytes)
                return _run(self._session, inputs, limit_s, _name(self._content))
            except ModelError as error:
                if lacks_kernel(error):
                    self._widens = True
                elif self._exact_bytes and needs_zero_points(error):
                    self._exact_bytes = False
                else:
                    raise
            self.close()
        return self._in_single_precision(inputs)

    def close(self) -> None:
        """Free the session with its copy of the weights; the next run opens another."""
        self._session = self._widened = None

    def _in_single_precision(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        shapes = {name: item.shape for name, item in inputs.items() if isinstance(item, np.ndarray)}
        if self._widened is None or self._widened.shapes != shapes:
            self.close()
            graph = load_model(self._content, shapes)
            self._widened = _Widened(shapes, graph.inputs, GraphSession(graph, optimise=self._optimise))
        return self._widened.session.run({name: inputs[name] for name in self._widened.inputs})


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


class _Session(NamedTuple):
    """A session, and the constants that it reads in place."""

    ort: InferenceSession
    lent: dict[str, OrtValue]


class _Widened(NamedTuple):
    """A session in single precision, the shapes that the model was read for, and the names of its inputs."""

    shapes: Mapping[str, tuple[int, ...]]
    inputs: Sequence[str]
    session: GraphSession


def _open(content: ModelContent, optimise: bool, prepack: bool = False, exact_bytes: bool = True) -> _Session:
    options = session_options(optimise=optimise, prepack=prepack, exact_bytes=exact_bytes)
    lent = lend(content.constants, options) if isinstance(content, SplitModel) else {}
    model = content.proto if isinstance(content, SplitModel) else content
    data = model if isinstance(model, (str, bytes)) else model.SerializeToString()
    return _Session(open_session(data, options, _name(content)), lent)


def _name(content: ModelContent) -> str:
    return content if isinstance(content, str) else "model"
