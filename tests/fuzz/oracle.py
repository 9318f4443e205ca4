"""The values of a model, by ONNX Runtime alone, without any code of the compiler."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime as ort

Values = Mapping[str, Any]

RELATIVE_BOUND = 1e-3
"""The largest error over the largest magnitude: far above rounding, far below any wrong row, weight or window."""
_HALF_BOUND = 2e-2
_MAX_ELEMENTS = 1 << 26


def session(model: str | bytes) -> ort.InferenceSession:
    """A quiet session that computes what the model says (without inexact fusions of quantised nodes)."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def drawn_inputs(of: ort.InferenceSession, seed: int) -> dict[str, Any]:
    """An array for every input, with free dimensions set to 1.

    Raises:
        ValueError: one is not a tensor, or is too large to be worth running.
    """
    rng = np.random.default_rng(seed)
    feeds: dict[str, Any] = {}
    for item in of.get_inputs():
        shape = [size if isinstance(size, int) else 1 for size in item.shape]
        if math.prod(shape) > _MAX_ELEMENTS or item.type not in _TYPES:
            raise ValueError(f"{item.name} is {item.type}{shape}")
        kind = np.dtype(_TYPES[item.type])
        drawn = rng.standard_normal(shape) if kind.kind == "f" else rng.integers(0, 2, shape)
        feeds[item.name] = drawn.astype(kind)
    return feeds


_TYPES = {"tensor(float)": "f4", "tensor(double)": "f8", "tensor(float16)": "f2", "tensor(int64)": "i8",
          "tensor(int32)": "i4", "tensor(int8)": "i1", "tensor(uint8)": "u1", "tensor(bool)": "?"}  # fmt: skip


def difference(model: str | bytes, other: str | bytes, seed: int) -> str:
    """How two models differ on the same inputs; "" if they do not.

    Raises:
        Exception: whatever ONNX Runtime raises for a model that it cannot load or run.
    """
    first, second = session(model), session(other)
    feeds = drawn_inputs(first, seed)
    return values_differ(run(first, feeds), run(second, feeds))


def run(of: ort.InferenceSession, feeds: Values) -> dict[str, Any]:
    """All outputs by name."""
    names = [item.name for item in of.get_outputs()]
    return dict(zip(names, of.run(names, dict(feeds)), strict=True))


def values_differ(expected: Values, actual: Values) -> str:
    """Which output differs, and by how much; "" if none does."""
    for name, wanted in expected.items():
        if name not in actual:
            return f"output {name!r} is missing"
        problem = _differ(wanted, actual[name])
        if problem:
            return f"output {name!r} {problem}"
    return ""


def _differ(wanted: Any, found: Any) -> str:
    if not isinstance(wanted, np.ndarray):
        return "" if type(wanted) is type(found) else "is of another kind"
    found = np.asarray(found)
    if wanted.shape != found.shape or wanted.dtype != found.dtype:
        return f"is {found.dtype}{found.shape}, not {wanted.dtype}{wanted.shape}"
    if wanted.dtype.kind != "f":
        return "" if np.array_equal(wanted, found) else "differs"
    wide, other = wanted.astype(np.float64), found.astype(np.float64)
    finite = np.isfinite(wide) & np.isfinite(other)
    if not np.array_equal(np.isnan(wide), np.isnan(other)):
        return "has NaN elsewhere"
    if not np.array_equal(np.isinf(wide), np.isinf(other)):
        return "has infinities elsewhere"
    if not finite.any():
        return ""
    scale = float(np.abs(wide[finite]).max())
    error = float(np.abs(wide[finite] - other[finite]).max())
    bound = _HALF_BOUND if wanted.dtype == np.float16 else RELATIVE_BOUND
    return f"is off by {error / scale:.2g} of its magnitude" if error > bound * scale else ""
