"""A sample of ONNX's own operator tests: everything that ONNX Runtime runs is accepted, and computes the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase

from pimflow.frontend import load_model
from pimflow.onnxio import to_onnx
from pimflow.onnxio.runtime import runtime_errors
from pimflow.onnxio.session import GraphSession
from pimflow.runtime.execute.ort import operands
from support.onnx_models import run_plain

Feeds = dict[str, Any]
Runnable = tuple[onnx.ModelProto, Feeds, dict[str, Any]]
NEWEST_OPSET = 26
STRIDE = 11  # of about 1900 cases; chosen so that the first ones of each operator are not favoured


def cases() -> list[TestCase]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return collect_testcases(None)[::STRIDE]


def feeds_of(case: TestCase, model: onnx.ModelProto) -> Feeds:
    readers: dict[type[Any], Callable[[Any], Any]] = {
        onnx.TensorProto: numpy_helper.to_array,
        onnx.SequenceProto: numpy_helper.to_list,
        onnx.OptionalProto: numpy_helper.to_optional,
    }
    assert case.data_sets is not None
    data = [readers.get(type(item), lambda array: array)(item) for item in case.data_sets[0][0]]
    return dict(zip([info.name for info in model.graph.input], data, strict=True))


def runnable(case: TestCase) -> Runnable | None:
    """The model in an opset that ONNX Runtime loads, its inputs and results; None if ONNX Runtime refuses it."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.ir_version = min(model.ir_version, 13)
    for opset in model.opset_import:
        if opset.domain == "":
            opset.version = min(opset.version, NEWEST_OPSET)
    feeds = feeds_of(case, model)
    dtypes = {info.type.tensor_type.elem_type for info in (*model.graph.input, *model.graph.output)}
    if any(opset.version < 7 for opset in model.opset_import if not opset.domain) or dtypes & EXOTIC:
        return None
    ort.set_default_logger_severity(4)
    try:
        return model, feeds, run_plain(model, feeds)
    except runtime_errors():
        return None


EXOTIC = {code for name, code in onnx.TensorProto.DataType.items() if name.startswith(("FLOAT8", "FLOAT4", "BFLOAT"))}


def shapes_of(model: onnx.ModelProto, feeds: Feeds) -> dict[str, tuple[int, ...]]:
    """Bindings for dimensions that the case leaves open."""
    names = {info.name for info in model.graph.input if info.type.HasField("tensor_type")}
    return {name: array.shape for name, array in feeds.items() if name in names and isinstance(array, np.ndarray)}


@pytest.fixture(scope="module")
def sample() -> list[Runnable]:
    found = [runnable(case) for case in cases()]
    return [item for item in found if item is not None]


def test_sample_of_onnx_operator_tests(sample: list[Runnable]) -> None:
    assert len(sample) >= 100
    for model, feeds, want in sample:
        graph = load_model(model, shapes_of(model, feeds))
        onnx.checker.check_model(to_onnx(graph))
        got = GraphSession(graph).run(operands(graph, feeds))
        for name, expected in want.items():
            if isinstance(expected, np.ndarray):
                np.testing.assert_array_equal(got[name], expected, err_msg=graph.name)
                assert graph.value(name).shape in (None, expected.shape), graph.name
            else:
                assert repr(got[name]) == repr(expected)
