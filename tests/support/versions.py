"""Versions of ONNX Runtime that some tests depend on."""

from __future__ import annotations

import onnxruntime

OLDER_RUNTIME = tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 32)
"""Whether it is older than the newest that the tests were written with: some of its kernels are missing or wrong."""
