"""Speed of memory planning and of the timeline: chains of split convolutions (time must grow linearly), and one region.

Run: python benchmarks/bench_memory.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from rewrite_chain import chain, splits

from pimflow.ir import Graph, Node, Plan
from pimflow.passes import ApplyPlan
from pimflow.runtime.memory import movement, plan_memory
from pimflow.runtime.timeline import build_timeline
from pimflow.targets import load_target

LENGTHS = (1250, 2500, 5000)
REPEATS = 200


@dataclass(frozen=True)
class Price:
    time_us: float = 1.0
    energy_mj: float = 1.0


@dataclass(frozen=True)
class EqualCosts:
    """Every node costs the same, so that only the schedule's own time is measured."""

    price: Price = Price()

    def node_cost(self, graph: Graph, node: Node) -> Price:
        return self.price


def seconds(function: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def compiled(length: int) -> Graph:
    """A chain with every convolution split: 7 nodes each."""
    graph = chain(length)
    return ApplyPlan(Plan("benchmark", splits(graph, length), 0.0, 0.0)).run(graph).graph


def again(graph: Graph) -> Graph:
    """The same graph without what is remembered about it."""
    return graph.replace(name=graph.name)


def main() -> None:
    target, costs = load_target("pimflow"), EqualCosts()
    print(f"{'convolutions':>12} {'nodes':>7} {'verdicts s':>11} {'plan s':>8} {'check s':>8} {'timeline s':>11}")
    for length in LENGTHS:
        graph = compiled(length)
        times = [
            seconds(lambda graph=graph: movement(graph)),
            seconds(lambda graph=graph: plan_memory(graph)),
            seconds(plan_memory(graph).check),
            seconds(lambda graph=graph: build_timeline(graph, target, costs)),
        ]
        print(
            f"{length:>12} {len(graph.nodes):>7} {times[0]:>11.3f} {times[1]:>8.3f} {times[2]:>8.3f} {times[3]:>11.3f}"
        )
    regions = [again(compiled(1)) for _ in range(REPEATS)]
    verdicts = seconds(lambda: [movement(graph) for graph in regions]) / REPEATS
    timeline = seconds(lambda: [build_timeline(graph, target, costs) for graph in regions]) / REPEATS
    print(
        f"one region of {len(regions[0].nodes)} nodes: verdicts {verdicts * 1e6:.0f} us, timeline {timeline * 1e6:.0f} us"
    )


if __name__ == "__main__":
    main()
