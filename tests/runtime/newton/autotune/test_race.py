"""The fastest of some mappings, against timing all of them."""

from __future__ import annotations

import pytest

from pimflow.codegen import ConvProblem, MatmulProblem, MatrixProblem
from pimflow.codegen.newton import Mapping
from pimflow.codegen.newton.lowering import outline
from pimflow.ir import Refusal
from pimflow.runtime.newton.autotune import race
from pimflow.runtime.newton.autotune.race import Race
from pimflow.runtime.newton.autotune.space import candidates
from pimflow.runtime.newton.cost import placement_cycles
from pimflow.runtime.newton.profiles import timing_profile
from pimflow.runtime.newton.timing.streams import StreamTimer
from pimflow.targets import load_target
from support.calls import count_calls

PIM = load_target("pimflow").pim
PROFILE = timing_profile(PIM, "strict")
PROBLEMS: tuple[MatrixProblem, ...] = (
    ConvProblem(1, 96, 24, 29, 56, (1, 1)),
    ConvProblem(1, 32, 192, 16, 28, (1, 1)),
    ConvProblem(1, 16, 48, 9, 14, (3, 3), (1, 1), (1, 1, 1, 1)),
    MatmulProblem(12, 96, 80, constant_rhs=False),
)


def mappings_of(problem: MatrixProblem) -> list[Mapping]:
    return list(dict.fromkeys(entry.mapping for entry in candidates(problem, PROFILE)))


def timed(problem: MatrixProblem, mapping: Mapping) -> int | None:
    """The cycles of the slowest channel, with placement; None for a mapping that does not fit."""
    outlined = outline(problem, mapping, PIM)
    if isinstance(outlined, Refusal):
        return None
    timer = StreamTimer(PROFILE)
    slowest = max(timer.cycles_of(outlined, channels[0]).cycles for channels in outlined.channel_classes)
    return slowest + int(placement_cycles(outlined, PROFILE))


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("step", [1, -1])
@pytest.mark.parametrize("at_once", [3, 1000])
@pytest.mark.parametrize("loose", [False, True])
def test_the_first_of_the_fastest_wins(
    problem: MatrixProblem, step: int, at_once: int, loose: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whatever order their lower bounds are, which the loose ones reverse."""
    given = mappings_of(problem)[::step]
    if loose:
        monkeypatch.setattr(race, "least_cycles", lambda mapping, *_: len(given) - given.index(mapping))
    cycles = [timed(problem, mapping) for mapping in given]
    found = Race(problem, PROFILE, StreamTimer(PROFILE))
    for start in range(0, len(given), at_once):
        found.try_mappings(given[start : start + at_once])
        assert found.fastest is not None
    least = min(known for known in cycles if known is not None)
    assert found.fastest is not None
    assert found.fastest.cycles == least < max(filter(None, cycles))
    assert found.fastest.outline.mapping == given[cycles.index(least)]
    for mapping, exact in zip(given, cycles, strict=True):
        known = found.known(mapping)
        assert known.cycles == exact if known.is_timed or exact is None else least <= (known.cycles or 0) <= exact
        assert known.is_timed or found.time(mapping).cycles == exact


def test_some_are_equally_fast() -> None:
    """Otherwise the test above would show nothing about which of them wins."""
    cycles = [[timed(problem, mapping) for mapping in mappings_of(problem)] for problem in PROBLEMS]
    assert any(found.count(min(filter(None, found))) > 1 for found in cycles)


def test_most_mappings_are_neither_lowered_nor_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = count_calls(monkeypatch, race, "outline")
    for problem in PROBLEMS[:2]:
        given = mappings_of(problem)[::-1]
        found = Race(problem, PROFILE, StreamTimer(PROFILE))
        found.try_mappings(given)
        assert not lowered, "no result has been asked for"
        assert found.fastest is not None
        assert 0 < len(lowered) <= len(given) // 4
        lowered.clear()


def test_a_race_without_mappings_has_no_winner() -> None:
    found = Race(PROBLEMS[0], PROFILE, StreamTimer(PROFILE))
    assert found.fastest is None
    assert found.refusal == Refusal("no mapping of the policy fits the machine")
