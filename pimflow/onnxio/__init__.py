"""IR as ONNX: tensors, export, captures, files and ONNX Runtime sessions. Knows no machine."""

from pimflow.onnxio.export import to_onnx
from pimflow.onnxio.save import save_onnx

__all__ = ["save_onnx", "to_onnx"]
