"""Blocked channels, the layout that ONNX Runtime's optimiser uses on this CPU ("NCHWc", at its level "all")."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
from onnx import TensorProto, helper

from pimflow.errors import ModelError
from pimflow.ir import Array
from pimflow.onnxio.session import open_session, session_options

BLOCKED = "com.microsoft.nchwc"
"""The domain of operators that read and write blocked channels."""

_MAX_BLOCK = 64


@cache
def channel_block() -> int:
    """The number of channels of a block on this CPU, measured by reordering a map; 0 if there are no such kernels."""
    source = np.arange(2 * _MAX_BLOCK, dtype=np.float32).reshape(1, _MAX_BLOCK, 1, 2)
    graph = helper.make_graph(
        [helper.make_node("ReorderInput", ["x"], ["y"], domain=BLOCKED)],
        "blocks",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, source.shape)],
        [onnx.ValueInfoProto(name="y")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(name, 1) for name in ("", BLOCKED)])
    model.ir_version, model.opset_import[0].version = 8, 13
    try:
        session = open_session(model.SerializeToString(), session_options(optimise=False), "blocks")
    except ModelError:
        return 0
    (made,) = session.run(None, {"x": source})
    return int(np.flatnonzero(made.reshape(-1) == 1)[0])  # the second column of the first channel follows the block


def plain_weights(weights: Array, block: int) -> Array:
    """Weights of a convolution in ONNX's layout [O, I, kh, kw], from blocks of output channels.

    If input channels form whole blocks, those are blocked too: ONNX Runtime's "OIHWBiBo", otherwise "OIHWBo".
    """
    out, inner, *kernel = weights.shape
    if inner % block:
        return np.ascontiguousarray(
            weights.reshape(out // block, inner, *kernel, block).transpose(0, 4, 1, 2, 3)
        ).reshape(weights.shape)
    blocks = weights.reshape(out // block, inner // block, *kernel, block, block)
    return np.ascontiguousarray(blocks.transpose(0, 5, 1, 4, 2, 3)).reshape(weights.shape)
