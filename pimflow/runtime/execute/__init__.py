"""Runs graphs: ONNX Runtime, the planned memory arena, PIM nodes by value, the original model."""
