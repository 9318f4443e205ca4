"""The projection within ONNX Runtime's Attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pimflow.ir import Array
from support.expansions import check_expansion, reason
from support.kept import CONTRIB, kept_model, normal

KINDS = ["MatMul", "Add", "Slice", "Slice", "Slice", "MultiHeadAttention"]
MASK = np.array([[1, 1, 1, 1, 0, 0], [1] * 6], np.int32)


@pytest.mark.parametrize(
    ("masks", "attributes"), [({}, {}), ({}, {"unidirectional": 1}), ({"mask": MASK}, {}), ({}, {"scale": 0.5})]
)
def test_the_projection_leaves_the_host(masks: dict[str, Array], attributes: dict[str, Any]) -> None:
    constants = {"w": np.float32(0.1) * normal(64, 192), "b": normal(192), **masks}
    check_expansion(
        kept_model("Attention", {"x": (2, 6, 64)}, constants, domain=CONTRIB, num_heads=4, **attributes), KINDS
    )


def test_why_not() -> None:
    model = kept_model("Attention", {"x": (2, 6, 64), "w": (64, 192), "b": (192,)}, domain=CONTRIB, num_heads=4)
    assert "are computed" in reason(model)
