"""`verify` on outputs that are no plain float tensors: exotic element types, text, sequences, inputs, constants."""

from __future__ import annotations

import numpy as np
import pytest

import pimflow
from pimflow.verify.compare import OutputCheck, compare_outputs
from support.exotic_models import MODELS


@pytest.mark.parametrize("name", MODELS)
def test_verify(name: str) -> None:
    compiled = pimflow.compile(MODELS[name](), policy="pim", use_cache=False)
    for options in ({}, {"arena": True}, {"pim": "values", "operand": "fp32"}):
        result = compiled.verify(**options, seed=1)
        assert result.passed, result
    still = {"constants": "output copy, flat is"}.get(name, "")
    assert all(still and note.startswith(still) for note in result.notes), result.notes
    assert len(result.notes) == bool(still)


def test_sequences_are_compared_by_their_elements() -> None:
    long = np.arange(10_000, dtype=np.float32)  # so long that its text leaves the middle out
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
