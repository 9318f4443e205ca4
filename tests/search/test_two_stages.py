"""The shortest schedule of two chains of parts, against all orders in which their parts may begin."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimflow.search.two_stages import Schedules, Step

Chain = list[tuple[int, str]]
"""The parts of a chain: how long each takes, and on which device."""

chains = st.lists(st.tuples(st.integers(1, 9), st.sampled_from(("gpu", "pim", "dpu"))), max_size=6)


def linked(chain: Chain) -> Step | None:
    step = None
    for us, device in reversed(chain):
        step = Step(us, device, step)
    return step


def best_of_all_orders(one: Chain, other: Chain) -> int:
    """Parts begin in a given order, as soon as the part before them is done and their device is free."""
    best = sum(us for us, _ in one + other)
    for places in combinations(range(len(one) + len(other)), len(one)):
        left = {True: iter(one), False: iter(other)}
        done, free = {True: 0, False: 0}, {"gpu": 0, "pim": 0, "dpu": 0}
        for place in range(len(one) + len(other)):
            us, device = next(left[place in places])
            done[place in places] = free[device] = max(done[place in places], free[device]) + us
        best = min(best, max(done.values()))
    return best


@given(chains, chains)
def test_no_order_of_parts_is_shorter_and_one_is_as_short(one: Chain, other: Chain) -> None:
    assert Schedules().shortest_us(linked(one), linked(other)) == pytest.approx(best_of_all_orders(one, other))


@given(chains, chains)
def test_chains_with_the_same_end_share_what_is_known(one: Chain, other: Chain) -> None:
    schedules, first, second = Schedules(), None, None
    for (us, device), (other_us, other_device) in zip(reversed(one), reversed(other), strict=False):
        first, second = Step(us, device, first), Step(other_us, other_device, second)
        assert schedules.shortest_us(first, second) == Schedules().shortest_us(first, second)


def test_a_part_may_have_to_wait_though_its_device_is_free() -> None:
    """If the first chain began on PIM at 1, the second would wait for it until 10, and both would end at 21."""
    one, other = [(1, "gpu"), (9, "pim"), (1, "gpu")], [(2, "dpu"), (1, "pim"), (10, "gpu")]
    assert Schedules().shortest_us(linked(one), linked(other)) == 14
