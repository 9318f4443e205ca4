"""Models planned for throughput, with their schedules and arenas."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from pimflow.ir import Graph
from pimflow.options import Options
from pimflow.passes import CLEANUP, PassManager
from pimflow.runtime.costs import CostModel
from pimflow.runtime.memory import plan_memory
from pimflow.runtime.memory.in_flight import MemoryInFlight, plan_in_flight
from pimflow.runtime.steady_state import SteadyState, steady_state
from pimflow.search.solver import solve
from pimflow.targets import Target, load_target, override
from support.covers import carried_out
from support.graphs import attention, fire_modules, heavy_chain, inverted_residuals, random_net, shuffled_units

NETS = {
    "inverted": inverted_residuals(2),
    "fire": fire_modules(14),
    "heavy": heavy_chain(14),
    "attention": attention(),
    "shuffled": shuffled_units(4),
    **{f"random{seed}": random_net(seed) for seed in range(4)},
}
TARGETS: dict[str, Target] = {
    "pimflow": load_target("pimflow"),
    "pimflow-cpu": load_target("pimflow-cpu"),
    "queued": override(load_target("pimflow"), {"gpu.launches": "queued"}),
}


@cache
def planned(name: str, target: str) -> tuple[Graph, CostModel, SteadyState]:
    """A net as executed by a plan for throughput, the costs of its machine, and its schedule."""
    costs = CostModel(TARGETS[target])
    graph = PassManager(CLEANUP).run(NETS[name]).graph
    options = Options(target=costs.target, policy="auto", objective="throughput", use_cache=False)
    rewritten = carried_out(graph, solve(graph, options, costs=costs).decisions, costs)
    serving = costs.serving(rewritten)
    return rewritten, serving, steady_state(rewritten, costs.target, serving)


@cache
def placed(name: str, target: str) -> MemoryInFlight:
    """The arena of its schedule."""
    graph, _, steady = planned(name, target)
    return plan_in_flight(graph, steady, plan_memory(graph))


def one_copy_less(memory: MemoryInFlight) -> MemoryInFlight:
    """An arena in which one of the buffers with several copies has one copy less."""
    return replace(memory, offsets=tuple(copies[: max(1, len(copies) - 1)] for copies in memory.offsets))
