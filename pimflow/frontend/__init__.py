"""ONNX to IR: safe loading, static shapes, typed ops from the forms of every opset."""

from pimflow.frontend.load import Loaded, bound_inputs, load_model, load_with_graph

__all__ = ["Loaded", "bound_inputs", "load_model", "load_with_graph"]
