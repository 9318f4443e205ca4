"""The operations that the compiler reasons about, a family per file, and `OnnxOp` for all others.

Typed ops do not depend on an opset: the frontend brings every opset's spelling into this form (dims and bounds that
ONNX passes as constant inputs become fields) and writes it back in the model's own opset. Layout is ONNX's:
activations are NCHW, matrices row-major.
"""
