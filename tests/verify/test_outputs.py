"""Outputs of two runs compared: numbers, text, sequences."""

from __future__ import annotations

import numpy as np

from pimflow.verify.outputs import OutputCheck, compare_outputs


def test_sequences_are_compared_by_their_elements() -> None:
    long = np.arange(10_000, dtype=np.float32)  # so long that its text omits the middle
    other = long.copy()
    other[5000] += 100

    def check(expected: object, actual: object) -> OutputCheck:
        return compare_outputs({"s": expected}, {"s": actual}, 1e-4)[0]

    assert check([long, long], [long, long * (1 + 1e-6)]).passed
    assert not check([long, long], [long, other]).passed
    assert "s[1]" in check([long, long], [long, other]).problem
    assert not check([long, long], [long]).passed
    assert not check([long], long).passed
    assert not check([long], None).passed


def test_a_measured_bound_is_of_one_output_whatever_its_type() -> None:
    expected = {"y": np.array([1.0, 4.0]), "label": np.array([3, 4]), "mask": np.array([True, False])}
    actual = {"y": np.array([1.0, 4.1]), "label": np.array([3, 5]), "mask": np.array([True, True])}
    assert [check.passed for check in compare_outputs(expected, actual, 1e-1)] == [True, False, False]
    checks = compare_outputs(expected, actual, 1e-4, {"y": 0.03, "label": 0.3, "mask": 0.5})
    assert [check.passed for check in checks] == [True, True, True]
    assert [check.rtol for check in checks] == [0.03, 0.3, 0.5]
    assert not any(check.passed for check in compare_outputs(expected, actual, 1e-4, {"y": 0.02, "label": 0.2}))


def test_maps_are_compared_number_by_number() -> None:
    expected = {"y": [{1: 0.25, 2: 0.75}, {1: 0.5, 2: 0.5}]}
    near = {"y": [{1: 0.25 + 1e-6, 2: 0.75}, {1: 0.5, 2: 0.5}]}
    far = {"y": [{1: 0.25, 2: 0.75}, {1: 0.5, 2: 0.51}]}
    other = {"y": [{1: 0.25, 3: 0.75}, {1: 0.5, 2: 0.5}]}
    assert [compare_outputs(expected, actual, 1e-4)[0].passed for actual in (near, far, other)] == [True, False, False]
