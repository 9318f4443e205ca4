"""What holds of every operator that is written out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from onnx import TensorProto

from support.expansions import reason
from support.kept import CONTRIB, kept_model


@pytest.mark.parametrize(
    ("op_type", "attributes", "dtype"),
    [
        ("Einsum", {"equation": "ij,jk->ik"}, TensorProto.DOUBLE),
        ("Einsum", {"equation": "ij,jk->ik"}, TensorProto.INT32),
        ("FusedMatMul", {"domain": CONTRIB}, TensorProto.DOUBLE),
    ],
)
def test_units_multiply_no_wider_operands(op_type: str, attributes: Mapping[str, Any], dtype: int) -> None:
    """They would be rounded on the way."""
    model = kept_model(op_type, {"a": (4, 48), "b": (48, 32)}, dtype=dtype, **attributes)
    assert reason(model).endswith("units multiply floats of 32 bits and fewer")
