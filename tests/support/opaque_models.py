"""Models with a single operator that the compiler does not rewrite, and the kernels of that operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from pimflow.frontend import load_model
from pimflow.ir import Array, OnnxOp
from pimflow.runtime.gpu.work import GpuWork, KernelSequence, node_work
from support.onnx_models import model_of

CONTRIB = "com.microsoft"


def normal(*shape: int) -> Array:
    """Random weights."""
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def integers(*shape: int, dtype: str = "int8") -> Array:
    """Random quantised weights."""
    low = 0 if dtype == "uint8" else -100
    return np.random.default_rng(len(shape)).integers(low, 100, shape).astype(dtype)


def opaque_model(
    op_type: str,
    inputs: Mapping[str, Sequence[int]],
    constants: Mapping[str, Array] | None = None,
    order: Sequence[str] | None = None,
    outputs: Sequence[str] = ("y",),
    *,
    domain: str = "",
    opset: int = 17,
    dtype: int = onnx.TensorProto.FLOAT,
    out_dtype: int | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model with one node; its operands are inputs and then constants, or in the given order ("": absent)."""
    names = [*inputs, *(constants or {})] if order is None else order
    node = helper.make_node(op_type, list(names), list(outputs), "kept", domain=domain, **attributes)
    domains = {domain: 1} if domain else None
    model = model_of([node], inputs, [name for name in outputs if name], constants, opset, dtype, domains)
    for info in model.graph.output if out_dtype is not None else ():
        info.type.tensor_type.elem_type = out_dtype
    return model


def work_of(model: onnx.ModelProto, element_bytes: int = 2) -> KernelSequence:
    """The work of the one node of a model, which is not rewritten."""
    graph = load_model(model)
    (node,) = graph.nodes
    assert isinstance(node.op, OnnxOp)
    work = node_work(graph, node, element_bytes)
    assert work is not None
    return work if isinstance(work, KernelSequence) else KernelSequence(((work, 1),))


def kernels_of(model: onnx.ModelProto, element_bytes: int = 2) -> list[GpuWork]:
    """Its kernels, each repeated as often as it runs."""
    return [kernel for kernel, times in work_of(model, element_bytes).kernels for _ in range(times)]
