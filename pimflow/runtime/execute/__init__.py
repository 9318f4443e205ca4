"""Runs graphs by value: in ONNX Runtime, in the planned memory arena, on PIM; and runs the original model."""
