"""A machine whose PIM channels also multiply 8-bit operands."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from onnx import TensorProto, helper

import pimflow
from pimflow.onnxio.session import open_session, session_options
from pimflow.targets.schema.newton import Int8
from support.versions import OLDER_RUNTIME


def with_int8(name: str = "pimflow", timing: str | None = None) -> pimflow.Target:
    """A shipped machine with twice as many multipliers for 8-bit operands, and 32-bit results."""
    target = pimflow.override(name, timing=timing)
    multipliers = target.pim.multipliers * target.pim.element_bytes
    return target.with_units(pim=replace(target.pim, int8=Int8(multipliers, 4, 0.2, 0.1)))


@cache
def clips_sums_of_bytes() -> bool:
    """Whether ONNX Runtime clips sums of products of bytes to 16 bits on this CPU unless it is asked not to."""
    given = helper.make_tensor_value_info("x", TensorProto.UINT8, (1, 2))
    made = helper.make_tensor_value_info("y", TensorProto.INT32, (1, 1))
    weights = helper.make_tensor("w", TensorProto.INT8, (2, 1), np.full(2, 127, np.int8))
    graph = helper.make_graph([helper.make_node("MatMulInteger", ["x", "w"], ["y"])], "sum", [given], [made], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    session = open_session(model.SerializeToString(), session_options(exact_bytes=False), "sum")
    (result,) = session.run(None, {"x": np.full((1, 2), 255, np.uint8)})
    return bool(result.item() != 2 * 255 * 127)


needs_exact_bytes = pytest.mark.skipif(
    clips_sums_of_bytes() and OLDER_RUNTIME,
    reason="this version of ONNX Runtime clips sums of bytes on this CPU, or ends the process",
)
"""Newer versions are asked not to clip, so these tests run with them on every CPU."""

needs_signed_weights = pytest.mark.skipif(
    OLDER_RUNTIME, reason="this version of ONNX Runtime may lack a ConvInteger with signed weights"
)
