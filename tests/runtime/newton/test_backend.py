"""Newton's backend: a priced program is lowered once, wherever its weights are."""

from __future__ import annotations

import json

import pytest

from pimflow.codegen.newton import PimProgram
from pimflow.codegen.newton.archive import archive_program, archive_text
from pimflow.codegen.newton.lowering import lower
from pimflow.codegen.work import ConvProblem, MatmulProblem, MatrixProblem, NarrowProblem
from pimflow.ir import Refusal
from pimflow.runtime.newton.autotune import race
from pimflow.runtime.newton.autotune.space import candidates
from pimflow.runtime.newton.backend import NewtonBackend
from pimflow.runtime.newton.profiles import timing_profile
from pimflow.targets import load_target
from support.calls import count_calls
from support.int8 import with_int8

PROBLEM = ConvProblem(1, 32, 64, 14, 14, (1, 1))


def test_a_program_is_lowered_when_it_is_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_calls(monkeypatch, race, "outline")
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
        assert backend.lower_bound_us(problem, "auto") >= roof_us
        comp_us = backend.time_parts_us(problem, "auto")["COMP"]
        assert comp_us >= roof_us * (1 - 1e-9)
    assert comp_us == pytest.approx(roof_us, rel=0.03), "of a large product that fills all banks"
    assert backend.roof.bytes_per_us == 2 * backend.roof.macs_per_us, "a weight of two bytes for every multiplication"


def test_programs_at_other_addresses_share_streams_and_archives() -> None:
    backend = NewtonBackend("pim", load_target("pimflow").pim)
    program = backend.program(PROBLEM, "newton++")
    assert isinstance(program, PimProgram)
    here, there = (backend.placed_at(program, row) for row in (0, 40))
    assert isinstance(here, PimProgram)
    assert isinstance(there, PimProgram)
    assert here.streams is there.streams
    assert [backend.data_start(here), backend.data_start(there)] == [0, 40]
    assert backend.identity_key(here) == backend.identity_key(there) == backend.identity_key(program)
    assert backend.encode(here) == backend.encode(there)
    restored = backend.decode(backend.encode(there))
    assert isinstance(restored, PimProgram)
    assert (restored.streams, restored.first_row) == (program.streams, 0)
    changed = there.with_streams(program.streams[:1] + program.streams[:1] + program.streams[2:])
    assert backend.identity_key(changed) != backend.identity_key(there)
    moved = backend.placed_at(changed, 7)
    assert backend.encode(moved)["streams"] != backend.encode(there)["streams"], "changed streams are written unchanged"
    assert backend.content_key(there) is not None
    assert backend.content_key(moved) is None


@pytest.mark.parametrize("operand", ["fp16", "int8"])
@pytest.mark.parametrize("choice", ["newton++", "auto"])
def test_programs_are_archived_as_the_text_of_their_values(operand: str, choice: str) -> None:
    backend = NewtonBackend("pim", with_int8().pim)
    program = backend.program(PROBLEM if operand == "fp16" else NarrowProblem(PROBLEM, operand), choice)
    assert isinstance(program, PimProgram)
    text = backend.encode_text(program)
    assert json.loads(text).get("operand") == (None if operand == "fp16" else operand)
    assert text == json.dumps(backend.encode(program), separators=(",", ":"))


@pytest.mark.parametrize(
    ("problem", "target"),
    [
        (PROBLEM, "pimflow"),
        (ConvProblem(1, 48, 40, 9, 7, (3, 3), pads=(1, 1, 1, 1)), "pimflow"),
        (ConvProblem(1, 64, 64, 6, 6, (3, 3), groups=2), "pimflow"),
        (MatmulProblem(5, 3000, 70), "aim-gddr6"),
    ],
    ids=["pointwise", "windows", "groups", "product"],
)
def test_streams_of_every_kind_are_archived_as_the_text_of_their_values(problem: MatrixProblem, target: str) -> None:
    profile = timing_profile(load_target(target).pim)
    orders, lines = set(), 0
    for entry in candidates(problem, profile):
        program = lower(problem, entry.mapping, profile.pim)
        if isinstance(program, Refusal):
            continue
        assert archive_text(program) == json.dumps(archive_program(program), separators=(",", ":"))
        orders.add((entry.mapping.order, bool(entry.mapping.window_block)))
        lines += 1
    assert lines > 5
    assert len(orders) > 1


def test_changed_streams_are_archived() -> None:
    program = NewtonBackend("pim", load_target("pimflow").pim).program(PROBLEM, "auto")
    assert isinstance(program, PimProgram)
    changed = program.with_streams(program.streams[1:] + program.streams[:1])
    assert archive_text(changed) == json.dumps(archive_program(changed), separators=(",", ":")) != archive_text(program)
