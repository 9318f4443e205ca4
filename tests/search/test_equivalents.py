"""Repeated stretches: the candidates of the first one, shifted to the others, are those listed at each place."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from pimflow.ir import Conv2d, Decision, Graph, OnDevice
from pimflow.search.candidates import Candidate, Candidates
from pimflow.search.candidates.base import Varied
from pimflow.search.chain import Interval, solve_chain
from pimflow.search.equivalents import Equivalents
from pimflow.search.order import execution_order, units_of
from pimflow.search.policy import Policy, Space
from pimflow.search.price_cache import PriceCache
from pimflow.search.priced_space import price_space
from pimflow.search.pricing import Pricer, content_text
from support.costs import FakeCosts
from support.graphs import ConvNet, inverted_residuals


def repeating_net(seed: int, times: int) -> Graph:
    """Five blocks repeated: chains, residuals, forks, gates, shared weights and values; one of the blocks differs."""
    rng = random.Random(seed)
    net = ConvNet(f"repeating{seed}")
    x = far = net.input(1, 32, 14, 14)
    weights = net.weights(32, 32, 1, 1)
    kinds = [rng.choice(("pointwise", "inverted", "fork", "shared", "far", "gate")) for _ in range(5)] * times
    kinds[len(kinds) // 3] = "odd"
    for kind in kinds:
        if kind == "pointwise":
            x = net.fused_relu(net.layer(x, 32))
        elif kind == "inverted":
            x = net.add(x, net.layer(net.fused_relu(net.wise(net.fused_relu(net.layer(x, 96)))), 32))
        elif kind == "fork":
            x = net.add(net.fused_relu(net.layer(x, 32)), net.layer(x, 32, 3))
        elif kind == "shared":
            x = net.fused_relu(net.op(Conv2d((1, 1)), x, weights))
        elif kind == "far":
            x = net.add(net.layer(x, 32), far)
        elif kind == "odd":
            far = x = net.layer(x, 32, 5)
        else:
            x = net.mul(x, net.layer(net.global_average(x), 32))
    return net.graph(x)


def weights_by_turns() -> Graph:
    """Layers that read the previous one's weights or others: their stretches differ in which operands are equal."""
    net = ConvNet("turns")
    x = net.input(1, 32, 14, 14)
    one, other = net.weights(32, 32, 1, 1), net.weights(32, 32, 1, 1)
    for _ in range(16):
        for weights in (one, one, other):
            x = net.op(Conv2d((1, 1)), x, weights)
    return net.graph(x)


def read_again_at_the_end() -> Graph:
    """Equal layers; the result of one of them is read again after all others."""
    net = ConvNet("again")
    x = kept = net.input(1, 32, 14, 14)
    for index in range(80):
        x = net.layer(x, 32)
        kept = x if index == 30 else kept
    return net.graph(net.add(x, kept))


def forks_and_one_that_is_none() -> Graph:
    """Three branches each; the first branch of one fork reads something else, so its others may not run at once."""
    net = ConvNet("forks")
    x = far = net.input(1, 32, 14, 14)
    for index in range(14):
        first = net.layer(far if index == 5 else x, 32)
        branches = net.add(x, first), net.layer(x, 32, 3), net.layer(x, 32, 5)
        x = net.add(net.add(*branches[:2]), branches[2])
    return net.graph(x)


GRAPHS = {
    "inverted": inverted_residuals(12),
    "turns": weights_by_turns(),
    "again": read_again_at_the_end(),
    "forks": forks_and_one_that_is_none(),
    **{f"repeating{seed}": repeating_net(seed, 14) for seed in (0, 1, 2, 5)},
}
SHORT = Policy("short", "", (Space(runs="any", stages=(2,), max_run=3, concurrent=True),))


def candidates_of(graph: Graph, *, once: bool) -> Candidates:
    return Candidates(graph, SHORT, Pricer(graph, FakeCosts(), PriceCache(None, "")), once=once)


@pytest.mark.parametrize("name", GRAPHS)
def test_candidates_of_repeats_match_a_full_enumeration(name: str) -> None:
    graph = GRAPHS[name]
    everywhere, once = candidates_of(graph, once=False), candidates_of(graph, once=True)
    listed = list(once)
    moved = [
        Candidate(one.start + shift, one.stop + shift, once.scene.moved(one.decisions, shift), one.certain)
        for one in listed
        for shift in once.shifts(one)
    ]
    assert Counter(moved) == Counter(everywhere)
    assert len(listed) < len(moved)
    assert {once.first_equivalent(one) for one in moved} == set(listed)


@pytest.mark.parametrize("name", ["forks", "repeating1"])
def test_repeats_are_joined_once(name: str) -> None:
    everywhere, once = candidates_of(GRAPHS[name], once=False), candidates_of(GRAPHS[name], once=True)
    decided: list[tuple[Decision, ...]] = [
        tuple([OnDevice(node.name, "gpu" if at % 2 else "pim") for at, node in enumerate(unit.nodes)])
        for unit in once.scene.units
    ]
    chosen = [
        Interval(unit.start, unit.stop, 1.0, payload) for unit, payload in zip(once.scene.units, decided, strict=True)
    ]
    found = list(once.joins(chosen))
    joined = [one for one, _ in found]
    assert set(joined) == {once.first_equivalent(one) for one, _ in everywhere.joins(chosen)}
    assert len(set(joined)) == len(joined) < len(list(candidates_of(GRAPHS[name], once=False).joins(chosen)))
    assert all(once.scene.equivalents.shift(one.start, one.stop) == 0 for one in joined)
    later = [(one, shift) for one in joined for shift in once.shifts(one) if shift and isinstance(one, Varied)]
    assert later
    for one, shift in later:
        moved = once.scene.moved_variation(one, shift)
        assert moved == Candidate(one.start + shift, one.stop + shift, once.scene.moved(one.decisions, shift))
        assert once.first_equivalent(moved) == one
    assert all(
        parts_cost == sum(some.start < one.stop and some.stop > one.start for some in chosen)
        for one, parts_cost in found
    )


@pytest.mark.parametrize("name", GRAPHS)
def test_repeats_have_the_same_prices(name: str) -> None:
    """Prices are cached as text, by what they depend on."""
    graph, once = GRAPHS[name], candidates_of(GRAPHS[name], once=True)
    outputs = frozenset(graph.outputs)
    for one in once:
        first = content_text(graph, outputs, one.decisions)
        for shift in once.shifts(one)[1:]:
            assert content_text(graph, outputs, once.scene.moved(one.decisions, shift)) == first


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name == "forks" else ()) for name in GRAPHS]
)
def test_no_plan_is_lost(name: str) -> None:
    once, everywhere = (
        price_space(GRAPHS[name], SHORT, FakeCosts(), PriceCache(None, ""), prune=prune) for prune in (True, False)
    )
    best, all_of_them = (solve_chain(space.positions, space.intervals)[0] for space in (once, everywhere))
    assert best == pytest.approx(all_of_them, rel=1e-12)
    assert once.search.pool.cheapest_priced()[0] == pytest.approx(best, rel=1e-12)


def test_a_chain_of_equal_layers_has_few_distinct_stretches() -> None:
    net = ConvNet("chain")
    x = net.input(1, 16, 14, 14)
    for _ in range(200):
        x = net.layer(x, 16)
    graph = net.graph(x)
    order = execution_order(graph)
    equivalents = Equivalents(graph, order, units_of(order), (), 25)
    ends = {unit.start for unit in equivalents.firsts}
    assert ends == {0, 1, *range(175, 200)}, "the first reads the input, and the last 25 are near the end"
    assert equivalents.shifts(1, 26) == tuple(range(174))
    assert equivalents.shift(100, 125) == 99
    assert equivalents.shift(100, 126) == 0, "longer than the compared stretch"
    assert equivalents.shifts(1, 27) == (0,)
