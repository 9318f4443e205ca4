"""Arenas of steady states, replayed: values alive at the same time do not overlap, and no copy is superfluous."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from pimflow.runtime.memory.in_flight import Life, MemoryInFlight, least_rest_us, plan_in_flight
from pimflow.runtime.steady_state import SteadyState, steady_state
from support.in_flight import NETS, TARGETS, one_copy_less, placed, planned


def clashes(memory: MemoryInFlight, steady: SteadyState, count: int) -> int:
    """The number of pairs of regions, in any of `count` inferences, that are alive at once and overlap in the arena."""
    held = [
        (life.first + number * steady.interval, life.last + number * steady.interval, region.offset, region.bytes)
        for number in range(count)
        for life, region in zip(memory.lives, memory.plan_of(number).regions, strict=True)
        if region.bytes
    ]
    return sum(
        max(a[0], b[0]) < min(a[1], b[1]) and max(a[2], b[2]) < min(a[2] + a[3], b[2] + b[3])
        for a, b in combinations(held, 2)
    )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NETS)
def test_live_values_do_not_overlap(name: str, target: str) -> None:
    steady, memory = planned(name, target)[2], placed(name, target)
    assert clashes(memory, steady, steady.in_flight + 1) == 0
    for number in range(3):
        assert memory.plan_of(number).arena_bytes == memory.arena_bytes
        assert all(region.offset + region.bytes <= memory.arena_bytes for region in memory.plan_of(number).regions)
    assert memory.most_copies <= steady.in_flight + 1
    for copies, life in zip(memory.offsets, memory.lives, strict=True):
        if len(copies) > 1:
            assert (len(copies) - 1) * steady.interval < life.last - life.first <= len(copies) * steady.interval


def test_some_regions_have_copies_and_some_share_space() -> None:
    memories = [placed(name, "pimflow") for name in NETS]
    assert any(memory.most_copies > 1 for memory in memories)
    assert any(
        memory.arena_bytes < sum(len(c) * r.bytes for c, r in zip(memory.offsets, memory.alone.regions, strict=True))
        for memory in memories
    )


@pytest.mark.parametrize("name", NETS)
def test_with_fewer_copies_values_collide(name: str) -> None:
    steady, memory = planned(name, "pimflow")[2], placed(name, "pimflow")
    if memory.most_copies > 1:
        assert clashes(one_copy_less(memory), steady, steady.in_flight + 1) > 0


def test_values_live_as_long_as_they_are_read() -> None:
    graph, _, steady = planned("inverted", "pimflow")
    memory = placed("inverted", "pimflow")
    ends = {slot.node: slot.end for slot in steady.slots}
    for name, spot in memory.alone.places.items():
        life = memory.lives[spot.region]
        assert all(ends[user.name] <= life.last for user in graph.users(name))
    assert {memory.lives[memory.alone.places[name].region].last for name in graph.outputs} == {steady.latency}
    assert memory.lives[memory.alone.places[graph.inputs[0]].region].first == -1, "inputs are there before the start"
    assert replace(Life(1, 2), last=3) == Life(1, 3)


@pytest.mark.parametrize("name", ["inverted", "fire", "attention"])
def test_a_longer_interval_needs_less_memory(name: str) -> None:
    """The free space of the arena determines how long the busiest device idles; it idles no longer than necessary."""
    graph, costs, steady = planned(name, "pimflow")
    memory = placed(name, "pimflow")
    assert least_rest_us(graph, costs.target, costs, memory.alone, memory.arena_bytes) == 0.0
    slowest = steady_state(graph, costs.target, costs, sum(steady.busy_us.values()))
    least = plan_in_flight(graph, slowest, memory.alone).arena_bytes
    assert least_rest_us(graph, costs.target, costs, memory.alone, memory.alone.arena_bytes // 2) is None
    if least >= memory.arena_bytes:
        return
    most_bytes = (least + memory.arena_bytes) // 2
    rest_us = least_rest_us(graph, costs.target, costs, memory.alone, most_bytes)
    assert rest_us is not None
    assert rest_us > 0
    resting = steady_state(graph, costs.target, costs, rest_us)
    assert resting.interval_us == pytest.approx(steady.interval_us + rest_us, abs=1e-6)
    arena = plan_in_flight(graph, resting, memory.alone)
    assert arena.arena_bytes <= most_bytes
    assert clashes(arena, resting, resting.in_flight + 1) == 0


def test_some_arenas_shrink() -> None:
    shrinking = 0
    for name in ("inverted", "fire", "attention"):
        graph, costs, steady = planned(name, "pimflow")
        slowest = steady_state(graph, costs.target, costs, sum(steady.busy_us.values()))
        memory = placed(name, "pimflow")
        shrinking += plan_in_flight(graph, slowest, memory.alone).arena_bytes < memory.arena_bytes
    assert shrinking > 1
