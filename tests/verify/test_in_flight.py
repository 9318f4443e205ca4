"""`verify` of a plan for throughput: several inferences at once, each compared with the original."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

import pimflow
from pimflow.compiled import CompiledModel
from pimflow.verify.in_flight import check_in_flight
from pimflow.verify.values import PartsCheck
from support.in_flight import one_copy_less


@pytest.fixture(scope="module")
def compiled() -> CompiledModel:
    return pimflow.compile("zoo:mobilenet-v3-small", objective="throughput", check=False)


def test_all_outputs_of_all_inferences_are_compared(compiled: CompiledModel) -> None:
    steady = compiled.steady_state
    assert steady is not None
    found = compiled.verify()
    assert found.passed
    assert found.in_flight is not None
    assert found.in_flight.checked == steady.in_flight + 1
    assert 0 < found.in_flight.largest_error < 1e-4
    assert f"{steady.in_flight + 1} inferences ran in flight" in found.text()


def test_it_fails_if_a_copy_is_missing(compiled: CompiledModel) -> None:
    memory = compiled.memory_in_flight
    assert memory is not None
    assert memory.most_copies > 1
    broken = replace(compiled)
    broken.__dict__["memory_in_flight"] = one_copy_less(memory)
    found = broken.verify()
    assert not found.passed
    assert found.in_flight is not None
    assert found.in_flight.wrong
    assert "FAIL  output" in found.text()


def test_inputs_with_larger_errors_have_their_own_bounds(
    compiled: CompiledModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bounds of the first inference do not apply to other inputs."""

    def with_narrow_bounds(*args: Any, rtol: Mapping[str, float], **rest: Any) -> PartsCheck:
        return check_in_flight(*args, rtol=dict.fromkeys(rtol, 1e-12), **rest)

    monkeypatch.setattr("pimflow.verify.compare.check_in_flight", with_narrow_bounds)
    assert compiled.verify().passed
    assert not compiled.verify(rtol=1e-4).passed, "given bounds apply to all"


def test_a_plan_for_one_inference_at_a_time_has_none() -> None:
    assert pimflow.compile("zoo:toy", check=False).verify().in_flight is None
