"""IR as ONNX: tensors, export, captures, files and ONNX Runtime sessions. Independent of the machine."""

from pimflow.onnxio import sparse_patterns
from pimflow.onnxio.export import to_onnx
from pimflow.onnxio.save import save_onnx

__all__ = ["save_onnx", "sparse_patterns", "to_onnx"]
