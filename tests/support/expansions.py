"""Checks of operators that are expanded so that their product can leave the host, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import pimflow
from pimflow.api.models import inspect
from pimflow.compiled import CompiledModel
from pimflow.frontend import load_model
from pimflow.ir import Array
from pimflow.runtime.costs import CostModel
from pimflow.runtime.execute.original import run_original
from support.values import assert_varies

_RANDOM = np.random.default_rng(3)


def of_types(model: onnx.ModelProto, inputs: int, output: int) -> onnx.ModelProto:
    """The model with other element types of its inputs and its output."""
    for info in model.graph.input:
        info.type.tensor_type.elem_type = inputs
    model.graph.output[0].type.tensor_type.elem_type = output
    return model


def bytes_in(model: onnx.ModelProto, output: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """The model, with input in unsigned bytes."""
    return of_types(model, TensorProto.UINT8, output)


def check_expansion(
    model: onnx.ModelProto, kinds: list[str] | None, rtol: float = 2e-6, *, unfused: bool = False
) -> CompiledModel:
    """Assert that the one node expands to these (None: any), one of them on PIM, and that ONNX Runtime and the programs
    compute its values.

    The GPU alone runs the operator as it is, or as a pass has unfused it, at the same price.
    """
    compiled = pimflow.compile(model, policy="pim", use_cache=False)
    assert kinds is None or [node.kind for node in compiled.graph.nodes] == kinds
    assert len(compiled.programs) == 1
    assert unfused or {node.placement.origin for node in compiled.graph.nodes} == {"kept"}
    feeds = {info.name: drawn(info) for info in model.graph.input}
    results = compiled.run(feeds)
    for name, expected in run_original(model, feeds).items():
        assert_varies(expected, name)
        scale = np.abs(expected.astype(np.float64)).max()
        assert np.abs(results[name].astype(np.float64) - expected.astype(np.float64)).max() <= rtol * scale
    for operand in ("fp32", None):
        result = compiled.verify(inputs=feeds, pim="values", operand=operand)
        assert result.passed, result.text()
        assert result.programs is not None
        assert result.programs.largest_error < 2e-5
    alone = pimflow.compile(model, policy="gpu", use_cache=False)
    assert [node.kind for node in alone.graph.nodes] == (kinds if unfused else [model.graph.node[0].op_type])
    assert compiled.document()["baseline"]["time_us"] == alone.document()["result"]["time_us"]
    graph = load_model(model)
    as_it_is = CostModel(compiled.machine.target).host_only().node_cost(graph, graph.nodes[0]).time_us
    assert alone.document()["result"]["time_us"] == pytest.approx(as_it_is)
    assert [row.fractions["pim"] for row in compiled.report.nodes if row.leaves_host] == [1.0]
    return compiled


def drawn(info: onnx.ValueInfoProto) -> Array:
    """Random data of an input's type; bytes span their whole range."""
    shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
    if info.type.tensor_type.elem_type == TensorProto.UINT8:
        return _RANDOM.integers(0, 256, shape).astype(np.uint8)
    return _RANDOM.standard_normal(shape).astype(np.float32)


def reason(model: onnx.ModelProto) -> str:
    """The reason why the one node cannot run on PIM."""
    (node,) = inspect(model).nodes
    return node.reason
