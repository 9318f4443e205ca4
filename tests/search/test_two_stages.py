"""The shortest schedule of two chains of parts, against all orders in which their parts may begin."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimflow.search.two_stages import Schedules, Step

Chain = list[tuple[int, str]]
"""The parts of a chain: how long each takes, and on which device."""

chains = st.lists(st.tuples(st.integers(1, 9), st.sampled_from(("gpu", "pim", "dpu"))), max_size=6)


def linked(chain: Chain, held: Sequence[int] = ()) -> Step | None:
    step = None
    counts = [*held, *[0] * (len(chain) - len(held))]
    for (us, device), count in zip(reversed(chain), reversed(counts), strict=True):
        step = Step(us, device, step, count)
    return step


def best_of_all_orders(one: Chain, other: Chain, held: Sequence[int] = ()) -> int:
    """Parts begin in a given order, as soon as the part before them is done, their device is free, and the parts that
    hold them are done. An order in which one of these comes later does not count."""
    holders = [sum(count >= len(other) - at for count in held) for at in range(len(other))]
    best = sum(us for us, _ in one + other)
    for places in combinations(range(len(one) + len(other)), len(one)):
        ends: dict[bool, list[int]] = {True: [0], False: [0]}
        free = {"gpu": 0, "pim": 0, "dpu": 0}
        for place in range(len(one) + len(other)):
            is_one = place in places
            at = len(ends[is_one]) - 1
            us, device = (one if is_one else other)[at]
            awaited = 0 if is_one else holders[at]
            if awaited >= len(ends[True]):
                break
            free[device] = max(ends[is_one][-1], free[device], ends[True][awaited]) + us
            ends[is_one].append(free[device])
        else:
            best = min(best, max(ends[True][-1], ends[False][-1]))
    return best


@given(chains, chains)
def test_no_order_of_parts_is_shorter_and_one_is_as_short(one: Chain, other: Chain) -> None:
    assert Schedules().shortest_us(linked(one), linked(other)) == pytest.approx(best_of_all_orders(one, other))


@given(chains, chains, st.lists(st.integers(0, 6), max_size=6))
def test_parts_of_the_second_chain_wait_for_those_that_hold_them(one: Chain, other: Chain, counts: list[int]) -> None:
    held = sorted((min(count, len(other)) for count in counts[: len(one)]), reverse=True)
    least = best_of_all_orders(one, other, held)
    assert Schedules().shortest_us(linked(one, held), linked(other)) == pytest.approx(least)
    assert least >= best_of_all_orders(one, other)


def test_a_held_part_waits_for_the_first_chain() -> None:
    """Without the wait, the second chain's part on PIM would begin at once."""
    one, other = [(4, "gpu"), (1, "gpu")], [(3, "pim"), (2, "pim")]
    assert Schedules().shortest_us(linked(one), linked(other)) == 5
    assert Schedules().shortest_us(linked(one, [1]), linked(other)) == 6
    assert Schedules().shortest_us(linked(one, [2]), linked(other)) == 9
    assert Schedules().shortest_us(linked(one, [2, 1]), linked(other)) == 9


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
