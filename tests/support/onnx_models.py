"""Small ONNX models for tests, and ONNX Runtime on its own as the oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from pimflow.ir import Array

ORT_REFUSALS = (ort_errors.Fail, ort_errors.InvalidGraph, ort_errors.NotImplemented)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str | None] | None],
    outputs: Sequence[str] = ("y",),
    constants: Mapping[str, Array] | None = None,
    opset: int = 17,
    dtype: int = onnx.TensorProto.FLOAT,
    domains: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """A model whose outputs have a declared type but no shape."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(name, dtype, shape) for name, shape in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(*item) for item in (domains or {}).items())]
    version = max(7, helper.find_min_ir_version_for(opsets, ignore_unknown=True))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=version)
    for info in model.graph.output:
        info.type.tensor_type.elem_type = dtype
    return model


def with_ranks(model: onnx.ModelProto, *ranks: int) -> onnx.ModelProto:
    """The model with outputs of unknown dimensions but known ranks: the checker then needs no session to find them."""
    for info, rank in zip(model.graph.output, ranks, strict=True):
        for axis in range(rank):
            info.type.tensor_type.shape.dim.add(dim_param=f"{info.name}{axis}")
    return model


def single(
    op_type: str,
    shape: Sequence[int | str],
    constants: Sequence[Array | None] = (),
    opset: int = 17,
    dtype: int = onnx.TensorProto.FLOAT,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node: input x, constants c0, c1, .. (None: absent), output y."""
    names = ["x", *(f"c{index}" if array is not None else "" for index, array in enumerate(constants))]
    given = {f"c{index}": array for index, array in enumerate(constants) if array is not None}
    return model_of([helper.make_node(op_type, names, ["y"], **attributes)], {"x": shape}, ["y"], given, opset, dtype)


def newest_opset() -> int:
    """The newest opset that the installed ONNX and ONNX Runtime both support."""
    for opset in range(onnx.defs.onnx_opset_version(), 7, -1):
        try:
            run_plain(single("Relu", (1,), opset=opset), {"x": np.zeros(1, np.float32)})
        except ORT_REFUSALS:
            continue
        return opset
    raise AssertionError("no opset is supported")


def run_plain(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> dict[str, npt.NDArray[Any]]:
    """Run the unchanged model with ONNX Runtime alone."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_quant_qdq", "1")  # those fusions are not exact
    session = ort.InferenceSession(
        model.SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=["MatmulTransposeFusion"],  # off in pimflow's sessions too; it changes rounding
    )
    names = [item.name for item in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


OPSETS = range(7, min(26, newest_opset()) + 1)
"""The opsets that the tests cover and the installed ONNX Runtime supports."""
