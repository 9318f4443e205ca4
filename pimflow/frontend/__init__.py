"""ONNX -> IR and IR -> ONNX: safe loading, static shapes, typed ops in every opset's spelling."""

from pimflow.frontend.binding import parse_shapes
from pimflow.frontend.export import to_onnx
from pimflow.frontend.load import load_model
from pimflow.frontend.save import save_onnx

__all__ = ["load_model", "parse_shapes", "save_onnx", "to_onnx"]
