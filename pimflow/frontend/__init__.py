"""ONNX as IR: safe loading, static shapes, typed ops from every opset's spelling."""

from pimflow.frontend.load import load_model

__all__ = ["load_model"]
