"""Conversion of models to newer opsets, as far as ONNX's own converter supports it."""

from __future__ import annotations

import onnx
from onnx import version_converter

from pimflow.onnxio.tensors import ONNX_ERRORS


def in_newer_opset(model: str | bytes | onnx.ModelProto, opset: int) -> onnx.ModelProto | None:
    """An equivalent model in another opset; None if ONNX's converter cannot make one.

    Args:
        model: a path, the bytes of a file, or a model in memory.
        opset: opset version of the default domain.
    """
    try:
        if isinstance(model, str):
            model = onnx.load(model)
        elif isinstance(model, bytes):
            model = onnx.load_model_from_string(model)
        return version_converter.convert_version(model, opset)
    except ONNX_ERRORS:
        return None
