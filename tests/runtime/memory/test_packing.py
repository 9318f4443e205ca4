"""Packing blocks: without overlap, near the bound, near the optimum."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.runtime.memory.packing import Block, live_peak, pack, pack_within

blocks = st.lists(
    st.builds(lambda size, first, span: Block(64 * size, first, first + span),
              st.integers(0, 9), st.integers(0, 12), st.integers(0, 6)),
    max_size=30,
)  # fmt: skip


def assert_apart(items: Sequence[Block], offsets: Sequence[int]) -> None:
    for (one, at), (other, there) in combinations(zip(items, offsets, strict=True), 2):
        if one.first <= other.last and other.first <= one.last and one.size and other.size:
            assert at + one.size <= there or there + other.size <= at


def assert_packed(items: Sequence[Block]) -> int:
    offsets, total = pack(items)
    assert_apart(items, offsets)
    assert total == max((at + block.size for block, at in zip(items, offsets, strict=True)), default=0)
    return total


@given(blocks)
@settings(max_examples=300)
def test_packing_keeps_blocks_apart_and_stays_near_the_bound(items: list[Block]) -> None:
    steps = range(30)
    bound = max((sum(b.size for b in items if b.first <= step <= b.last) for step in steps), default=0)
    assert live_peak(items) == bound
    assert bound <= assert_packed(items) <= max(2 * bound, 0)


@given(blocks.map(lambda items: items[:5]))
@settings(max_examples=60)
def test_packing_of_few_blocks_is_near_the_optimum(items: list[Block]) -> None:
    """Placing the blocks in some order, each at the lowest offset, gives an optimal packing."""
    best = min(lowest_first(order) for order in permutations(items))
    assert best <= assert_packed(items) <= 1.35 * best


def lowest_first(order: Sequence[Block]) -> int:
    placed: list[tuple[int, Block]] = []
    for block in order:
        if not block.size:
            continue
        taken = [(at, b) for at, b in placed if b.first <= block.last and block.first <= b.last]
        at = min(
            start
            for start in [0, *(at + b.size for at, b in taken)]
            if all(start + block.size <= at or at + b.size <= start for at, b in taken)
        )
        placed.append((at, block))
    return max((at + block.size for at, block in placed), default=0)


@given(blocks, st.integers(0, 9))
@settings(max_examples=60)
def test_a_limit_does_not_increase_the_size(items: list[Block], spare: int) -> None:
    room = live_peak(items) + 64 * spare
    offsets, total = pack_within(items, room)
    assert_apart(items, offsets)
    assert total <= pack(items)[1]
    assert pack_within(items, live_peak(items) - 64) == pack(items)


def test_blocks_beyond_the_limit_are_placed_earlier() -> None:
    """Five blocks for which the first try leaves a gap."""
    items = [Block(256, 4, 9), Block(192, 2, 6), Block(384, 10, 16), Block(320, 1, 3), Block(192, 4, 10)]
    assert pack(items)[1] == 704
    offsets, total = pack_within(items, 640)
    assert_apart(items, offsets)
    assert total == live_peak(items) == 640


def test_blocks_beyond_the_room_trade_places_until_all_fit() -> None:
    """Moving forward whatever is beyond the room finds no packing here; the room is the most that is ever alive."""
    spans = [(3, 8, 13), (3, 10, 18), (5, 10, 15), (9, 14, 20), (6, 13, 17), (2, 1, 4), (2, 1, 3)]
    spans += [(1, 9, 10), (7, 5, 5), (2, 7, 7), (8, 9, 10), (9, 4, 9), (1, 4, 8), (6, 3, 4)]
    items = [Block(*span) for span in spans]
    offsets, total = pack_within(items, live_peak(items))
    assert_apart(items, offsets)
    assert total == live_peak(items)
