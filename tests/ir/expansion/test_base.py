"""Properties of every expanded operator."""

from __future__ import annotations

import pytest
from onnx import TensorProto

from support.expansions import reason
from support.opaque_models import opaque_model


@pytest.mark.parametrize("dtype", [TensorProto.DOUBLE, TensorProto.INT32])
def test_units_multiply_no_wider_operands(dtype: int) -> None:
    """They would be rounded on the way."""
    model = opaque_model("Einsum", {"a": (4, 48), "b": (48, 32)}, dtype=dtype, equation="ij,jk->ik")
    assert reason(model).endswith("units multiply floats of 32 bits and fewer")
