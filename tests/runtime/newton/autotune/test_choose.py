"""A mapping search for the time alone, against the price of the chosen program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pimflow.codegen import ConvProblem, MatmulProblem, MatrixProblem
from pimflow.codegen.newton.lowering import Outline
from pimflow.ir import Refusal
from pimflow.runtime.newton.autotune import choose
from pimflow.runtime.newton.autotune.choose import POLICIES, MappingSearch
from pimflow.runtime.newton.cost import price
from pimflow.runtime.newton.profiles import timing_profile
from pimflow.runtime.newton.timing.streams import StreamTimer
from pimflow.targets import load_target
from support.calls import count_calls
from support.newton.timing import time_classes

PROBLEMS: tuple[MatrixProblem, ...] = (
    ConvProblem(1, 24, 40, 7, 7, (1, 1)),
    ConvProblem(1, 64, 64, 9, 9, (3, 3), (1, 1), (1, 1, 1, 1)),
    MatmulProblem(12, 96, 80, constant_rhs=False),
)


@pytest.mark.parametrize("timing", ["artifact", "strict"])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_time_search_agrees_with_the_price(policy: str, timing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither makes streams; both predict the time of the streams."""
    pim = load_target("pimflow").pim
    search = MappingSearch(timing_profile(replace(pim, launch_us=1.5), timing))
    for problem in PROBLEMS:
        told = search.time_us(problem, policy)
        with monkeypatch.context() as patch:
            patch.setattr(Outline, "program", None)
            cost = search.choose(problem, policy)
        assert not isinstance(cost, Refusal)
        assert told == cost.time_us
        program = search.program(problem, policy)
        assert not isinstance(program, Refusal)
        assert cost == price(program, time_classes(program, search.timer), search.profile)
    again = MappingSearch(search.profile)
    again.load_records(search.new_records())
    assert [again.time_us(problem, policy) for problem in PROBLEMS] == [
        search.time_us(problem, policy) for problem in PROBLEMS
    ]
    assert not again.new_records(), "all of it was known"


def test_a_new_launch_times_no_mapping_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pim = load_target("pimflow").pim
    search = MappingSearch(timing_profile(pim))
    before = [search.time_us(problem, "auto") for problem in PROBLEMS]
    again = MappingSearch(timing_profile(replace(pim, launch_us=2.5)))
    again.load_records(search.new_records())
    with monkeypatch.context() as patch:
        patch.setattr(StreamTimer, "cycles_of", None)
        told = [again.time_us(problem, "auto") for problem in PROBLEMS]
    for problem, us, old in zip(PROBLEMS, told, before, strict=True):
        assert not isinstance(us, Refusal)
        assert not isinstance(old, Refusal)
        assert us == pytest.approx(old - pim.launch_us + 2.5)
        cost = again.choose(problem, "auto")
        assert not isinstance(cost, Refusal)
        assert us == cost.time_us


def test_priced_mappings_are_not_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    search = MappingSearch(timing_profile(load_target("pimflow").pim))
    problems = (*PROBLEMS, ConvProblem(1, 64, 64, 8, 9, (3, 3), (1, 1), (1, 1, 1, 1)))
    assert [search.time_us(problem, "auto") for problem in problems]
    chosen = search.new_records()
    told = [search.choose(problem, "auto") for problem in problems]
    again, timed = MappingSearch(search.profile), search.new_records()
    again.load_records({**chosen, **timed})
    with monkeypatch.context() as patch:
        patch.setattr(StreamTimer, "cycles_of", None)
        patch.setattr(StreamTimer, "timing", None)
        assert [again.choose(problem, "auto") for problem in problems] == told
    assert not again.new_records()


@pytest.mark.parametrize("damage", [lambda text: text[:-1], lambda _: "[]"])
def test_damaged_timings_are_computed_again(damage: Callable[[str], str]) -> None:
    search = MappingSearch(timing_profile(load_target("pimflow").pim))
    told = search.choose(PROBLEMS[0], "auto")
    again = MappingSearch(search.profile)
    again.load_records(
        {key: damage(text) if text.startswith("[") else text for key, text in search.new_records().items()}
    )
    assert again.choose(PROBLEMS[0], "auto") == told
    assert len(again.new_records()) == 1, "the mapping was known"


@pytest.mark.parametrize("damage", ['"cycles":-', '"cycle":', ""])
def test_a_malformed_record_is_searched_for_again(damage: str) -> None:
    search = MappingSearch(timing_profile(load_target("pimflow").pim))
    told = search.time_us(PROBLEMS[0], "auto")
    again = MappingSearch(search.profile)
    again.load_records({key: text.replace('"cycles":', damage) for key, text in search.new_records().items()})
    assert again.time_us(PROBLEMS[0], "auto") == told
    assert again.new_records(), "nothing of it was known"


def test_layers_with_equal_streams_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    top = ConvProblem(1, 16, 48, 9, 14, (3, 3), (1, 1), (1, 1, 0, 1))
    both = (top, replace(top, pads=(0, 1, 1, 1)))
    with monkeypatch.context() as patch:
        patch.setattr(choose, "_unpadded", lambda problem: problem)
        apart = MappingSearch(timing_profile(load_target("pimflow").pim))
        told = [(apart.time_us(problem, "auto"), apart.program(problem, "auto")) for problem in both]
    searched = count_calls(monkeypatch, choose, "candidates")
    search = MappingSearch(timing_profile(load_target("pimflow").pim))
    assert [(search.time_us(problem, "auto"), search.program(problem, "auto")) for problem in both] == told
    assert len(searched) == 1


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("rows", [1, 5, 400])
def test_whether_a_mapping_fits_is_known_without_timing(
    rows: int, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = MappingSearch(timing_profile(replace(load_target("pimflow").pim, rows=rows)))
    problem = ConvProblem(1, 256, 512, 9, 9, (3, 3), (1, 1), (1, 1, 1, 1))
    with monkeypatch.context() as patch:
        patch.setattr(StreamTimer, "cycles_of", None)
        told = search.refusal(problem, policy)
    assert (told is None) == (rows == 400)
    cost = search.choose(problem, policy)
    assert told == (cost if isinstance(cost, Refusal) else None)
