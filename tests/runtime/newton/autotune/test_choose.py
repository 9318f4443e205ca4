"""What a search of mappings says of the time alone, against the price of the chosen program."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pimflow.codegen import ConvProblem, MatmulProblem
from pimflow.ir import Refusal
from pimflow.runtime.newton.autotune.choose import POLICIES, MappingSearch
from pimflow.runtime.newton.profiles import timing_profile
from pimflow.targets import load_target

PROBLEMS = (
    ConvProblem(1, 24, 40, 7, 7, (1, 1)),
    ConvProblem(1, 64, 64, 9, 9, (3, 3), (1, 1), (1, 1, 1, 1)),
    MatmulProblem(12, 96, 80, constant_rhs=False),
)


@pytest.mark.parametrize("timing", ["artifact", "strict"])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_time_alone_is_that_of_the_price(policy: str, timing: str) -> None:
    pim = load_target("pimflow").pim
    search = MappingSearch(timing_profile(replace(pim, launch_us=1.5), timing))
    for problem in PROBLEMS:
        told = search.time_us(problem, policy)
        cost = search.choose(problem, policy)
        assert not isinstance(cost, Refusal)
        assert told == cost.time_us
    again = MappingSearch(search.profile)
    again.recall(search.learnt())
    assert [again.time_us(problem, policy) for problem in PROBLEMS] == [
        search.time_us(problem, policy) for problem in PROBLEMS
    ]
    assert not again.learnt(), "all of it was known"
