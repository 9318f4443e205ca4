"""A sample of ONNX's own operator tests through the whole compiler; `python -m support.onnx_cases` runs them all."""

from __future__ import annotations

from support.onnx_cases import cases, passed_by_ort, through_the_compiler

STRIDE = 23  # of about 1900; chosen so that the first ones of each operator are not favoured


def test_a_sample_of_onnx_operator_tests_survives_the_compiler() -> None:
    sample = list(passed_by_ort(cases(STRIDE)))
    assert len(sample) > 40
    outcomes = {case.name: through_the_compiler(case) for case in sample}
    assert {name: outcome for name, outcome in outcomes.items() if outcome.failed} == {}
