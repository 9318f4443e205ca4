"""Shares of channel groups rebalanced by their times: by hand, and the gain from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pimflow.codegen import ConvProblem
from pimflow.codegen.newton import ChannelGroup, ChunkRun, Mapping, Share, lower
from pimflow.ir import Refusal
from pimflow.runtime.newton.autotune import race
from pimflow.runtime.newton.autotune.choose import MappingSearch
from pimflow.runtime.newton.autotune.rebalance import rebalanced
from pimflow.runtime.newton.cost import PimCost
from pimflow.runtime.newton.profiles import timing_profile
from support.newton.problems import PIM

PROBLEM = ConvProblem(1, 768, 48, 10, 12, (1, 1))
WHOLE, TAIL = ChunkRun(32, 1), ChunkRun(16, 2)


def two_groups(first: int, tail: int) -> Mapping:
    """Of 120 pixels, one group does `first` of the whole chunk and `tail` of the other."""
    groups = (
        ChannelGroup(12, (Share(0, 0, first), Share(1, 0, tail))),
        ChannelGroup(4, (Share(0, first, 120), Share(1, tail, 120))),
    )
    return Mapping("auto", (WHOLE, TAIL), groups, order="rows")


def test_the_slower_group_gets_less_of_the_longest_shared_chunk() -> None:
    """Both do 60 pixels of 48 columns; a third of all is the slower one's share, 960 less: 30 pixels of 32 columns."""
    found = rebalanced(two_groups(60, 60), [4000, 2000], 12)
    assert found == two_groups(30, 60)
    assert not isinstance(lower(PROBLEM, two_groups(30, 60), PIM), Refusal)


def test_whole_fills_move() -> None:
    alone = Mapping("auto", (replace(TAIL, pixels=7),), tuple(
        ChannelGroup(8, (Share(0, start, stop),)) for start, stop in ((0, 63), (63, 120))
    ))  # fmt: skip
    found = rebalanced(alone, [1000, 1500], 12)
    assert found is not None
    assert [group.shares[0].stop for group in found.groups] == [77, 120]


@pytest.mark.parametrize(
    ("mapping", "cycles"),
    [
        (two_groups(60, 60), [1000, 1000]),
        (two_groups(60, 60), [1000, 0]),
        (two_groups(2, 118), [100, 10_000_000]),
        (replace(two_groups(60, 60), order="latch"), [1000, 2000]),
        (Mapping("auto", (WHOLE,), (ChannelGroup(16, (Share(0, 0, 120),)),)), [1000]),
    ],
    ids=["level", "idle", "nothing left", "latch", "one group"],
)
def test_no_useless_moves(mapping: Mapping, cycles: list[int]) -> None:
    assert rebalanced(mapping, cycles, 12) is None


@pytest.mark.parametrize(("timing", "gain"), [("strict", 0.985), ("artifact", 0.975)])
def test_rebalancing_speeds_a_layer_up(timing: str, gain: float, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, profile = ConvProblem(1, 112, 672, 14, 14, (1, 1)), timing_profile(PIM, timing)
    moved = MappingSearch(profile).choose(problem, "auto")
    monkeypatch.setattr(race, "rebalanced", lambda *_: None)
    before = MappingSearch(profile).choose(problem, "auto")
    assert isinstance(moved, PimCost)
    assert isinstance(before, PimCost)
    assert moved.cycles < gain * before.cycles
