"""A sample of ONNX's own operator tests through the whole compiler; `python -m support.onnx_cases` runs them all."""

from __future__ import annotations

import numpy as np
import onnx

from pimflow.frontend import load_model
from pimflow.onnxio import to_onnx
from pimflow.onnxio.session import GraphSession
from pimflow.runtime.execute.ort import operands
from support.onnx_cases import Case, cases, passed_by_ort, shapes_of, through_the_compiler

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
    for name, expected in case.results.items():
        if isinstance(expected, np.ndarray) and expected.dtype.kind == "V":  # of ml_dtypes, where no NaN equals another
            assert got[name].tobytes() == expected.tobytes(), graph.name
        elif isinstance(expected, np.ndarray):
            np.testing.assert_array_equal(got[name], expected, err_msg=graph.name)
            assert graph.value(name).shape in (None, expected.shape), graph.name
        else:
            assert repr(got[name]) == repr(expected)
