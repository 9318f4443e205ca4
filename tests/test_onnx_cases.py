"""A sample of ONNX's own operator tests through the whole compiler; `python -m support.onnx_cases` runs them all."""

from __future__ import annotations

import numpy as np
import onnx

from pimflow.frontend import load_model
from pimflow.onnxio import to_onnx
from pimflow.onnxio.session import GraphSession
from pimflow.runtime.execute.ort import operands
from support.onnx_cases import Case, cases, passed_by_ort, shapes_of, through_the_compiler
from support.onnx_models import run_plain

STRIDE = 11  # of about 1900; chosen so that the first ones of each operator are not favoured


def test_a_sample_of_onnx_operator_tests_is_read_and_survives_the_compiler() -> None:
    """One test, as onnx takes ten seconds to make its cases. Every other case is compiled."""
    sample = list(passed_by_ort(cases(STRIDE)))
    assert len(sample) > 100
    for case in sample:
        check_reading(case)
    outcomes = {case.name: through_the_compiler(case) for case in sample[::2]}
    assert {name: outcome for name, outcome in outcomes.items() if outcome.failed} == {}


def check_reading(case: Case) -> None:
    """The graph is valid, and gives exactly the model's results, in the shapes that it states."""
    graph = load_model(case.model, shapes_of(case))
    onnx.checker.check_model(to_onnx(graph))
    got = GraphSession(graph).run(operands(graph, case.feeds))
    results = case.results if has_no_numpy_type(case) else run_plain(case.model, case.feeds)
    assert results
    for name, expected in results.items():
        if isinstance(expected, np.ndarray) and expected.dtype.isbuiltin == 2:  # no NaN of such a type equals another
            assert got[name].tobytes() == expected.tobytes(), graph.name
        elif isinstance(expected, np.ndarray):
            np.testing.assert_array_equal(got[name], expected, err_msg=graph.name)
            assert graph.value(name).shape in (None, expected.shape), graph.name
        else:
            assert repr(got[name]) == repr(expected)


def has_no_numpy_type(case: Case) -> bool:
    """Whether an array is of a type of ml_dtypes, which ONNX Runtime alone neither takes nor returns."""
    items = (*case.feeds.values(), *case.results.values())
    return any(isinstance(item, np.ndarray) and item.dtype.isbuiltin == 2 for item in items)
