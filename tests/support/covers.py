"""Every plan of a policy for a small graph, applied and measured as a whole: a reference for searches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pimflow.ir import Decision, Graph, OnDevice, Plan
from pimflow.passes import PassManager
from pimflow.runtime.timeline import Timeline, build_timeline
from pimflow.search.candidates import Candidates
from pimflow.search.policy import Policy
from pimflow.search.price_cache import PriceCache
from pimflow.search.pricing import Costs, Pricer, rewrites


def covers(graph: Graph, policy: Policy, costs: Costs) -> Iterator[tuple[Decision, ...]]:
    """The decisions of every plan that combines candidates, including those of the host alone.

    If memory channels can be reassigned, each candidate on the host is tried with all of them and without.
    """
    pricer = Pricer(graph, costs, PriceCache(None, ""))
    found = Candidates(graph, policy, pricer)
    starting: dict[int, list[tuple[int, tuple[Decision, ...]]]] = {}
    for candidate in found:
        if pricer.cost(candidate.decisions) is not None:
            starting.setdefault(candidate.start, []).append((candidate.stop, candidate.decisions))
            alone = [OnDevice(name, "gpu") for decision in candidate.decisions for name in decision.nodes]
            if costs.channel_switch_us is not None and candidate.decisions == tuple(alone):
                marked = tuple(replace(decision, choice="all-channels") for decision in alone)
                starting[candidate.start].append((candidate.stop, marked))

    def behind(start: int) -> Iterator[tuple[Decision, ...]]:
        if start == len(found.order):
            yield ()
        for stop, decisions in starting.get(start, ()):
            for others in behind(stop):
                yield (*decisions, *others)

    yield from behind(0)


def carried_out(graph: Graph, decisions: tuple[Decision, ...], costs: Costs) -> Graph:
    """The graph after the decisions are applied."""
    plan = Plan("cover", decisions, 0.0, 0.0, host=costs.target.host)
    return PassManager(rewrites(plan, costs)).run(graph).graph


def whole_run(graph: Graph, decisions: tuple[Decision, ...], costs: Costs) -> Timeline:
    """The schedule of the whole graph under decisions; the host has all memory channels if no node leaves it."""
    rewritten = carried_out(graph, decisions, costs)
    leaves = any(node.device in costs.units for node in rewritten.nodes)
    return build_timeline(rewritten, costs.target, costs if leaves else costs.host_only())
