"""Newton's backend: what is priced is lowered, and what is lowered is archived, once."""

from __future__ import annotations

import pytest

from pimflow.codegen.newton import PimProgram
from pimflow.codegen.work import ConvProblem
from pimflow.ir import Refusal
from pimflow.runtime.newton import backend as module
from pimflow.runtime.newton.autotune import choose
from pimflow.runtime.newton.backend import NewtonBackend
from pimflow.targets import load_target

PROBLEM = ConvProblem(1, 32, 64, 14, 14, (1, 1))


def count_calls(monkeypatch: pytest.MonkeyPatch, where: object, name: str) -> list[object]:
    """Receives the first argument of every call of a function."""
    calls: list[object] = []
    function = getattr(where, name)

    def counted(*arguments: object) -> object:
        calls.append(arguments[0])
        return function(*arguments)

    monkeypatch.setattr(where, name, counted)
    return calls


def test_a_program_is_lowered_when_it_is_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_calls(monkeypatch, choose, "outline")
    backend = NewtonBackend("pim", load_target("pimflow").pim)
    cost = backend.cost(PROBLEM, "auto")
    assert not isinstance(cost, Refusal)
    lowered = len(calls)
    program = backend.program(PROBLEM, "auto")
    assert isinstance(program, PimProgram)
    assert program is backend.program(PROBLEM, "auto")
    assert len(calls) == lowered > 0


def test_nothing_is_above_the_roof() -> None:
    backend = NewtonBackend("pim", load_target("pimflow").pim)
    for channels, size in ((32, 14), (64, 28), (256, 56)):
        problem = ConvProblem(1, channels, channels, size, size, (1, 1))
        roof_us = size * size * channels * channels / backend.roof.macs_per_us
        assert backend.least_us(problem, "auto") >= roof_us
        comp_us = backend.time_parts_us(problem, "auto")["COMP"]
        assert comp_us >= roof_us * (1 - 1e-9)
    assert comp_us == pytest.approx(roof_us, rel=0.03), "of a large product that fills all banks"
    assert backend.roof.bytes_per_us == 2 * backend.roof.macs_per_us, "a weight of two bytes for every multiplication"


def test_programs_that_lie_elsewhere_are_archived_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_calls(monkeypatch, module, "archive_program")
    backend = NewtonBackend("pim", load_target("pimflow").pim)
    program = backend.program(PROBLEM, "newton++")
    assert isinstance(program, PimProgram)
    first, second = (backend.encode(backend.at(program, row)) for row in (0, 40))
    assert [first["first_row"], second["first_row"]] == [0, 40]
    assert {**first, "first_row": 40} == second
    assert len(calls) == 1
    restored = backend.decode(second)
    assert isinstance(restored, PimProgram)
    assert (restored.streams, restored.first_row) == (program.streams, 40)
    changed = program.with_streams(program.streams[:1] + program.streams[:1] + program.streams[2:])
    assert backend.encode(changed)["streams"] != first["streams"], "what was changed by hand is written as it is"
