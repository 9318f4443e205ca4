"""Speed of memory planning and of the timeline, for chains of split convolutions (time must grow linearly) and one
region.

Run: python benchmarks/bench_memory.py
"""

from __future__ import annotations

from dataclasses import dataclass

from rewrite_chain import chain, seconds, splits

from pimflow.ir import Graph, Node, Plan
from pimflow.ir.analysis.movement import movement
from pimflow.passes import ApplyPlan
from pimflow.runtime.memory import plan_memory
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
    """Gives every node the same cost, so that only the schedule's own time is measured."""

    price: Price = Price()

    def node_cost(self, graph: Graph, node: Node) -> Price:
        return self.price


def compiled(length: int) -> Graph:
    """A chain with every convolution split: 7 nodes each."""
    graph = chain(length)
    return ApplyPlan(Plan("benchmark", splits(graph, length), 0.0, 0.0)).run(graph).graph


def again(graph: Graph) -> Graph:
    """The same graph without its cached properties."""
    return graph.replace(name=graph.name)


def main() -> None:
    target, costs = load_target("pimflow"), EqualCosts()
    print(f"{'convolutions':>12} {'nodes':>7} {'verdicts s':>11} {'plan s':>8} {'check s':>8} {'timeline s':>11}")
    for length in LENGTHS:
        graph = compiled(length)
        times = [
            seconds(movement, graph),
            seconds(plan_memory, graph),
            seconds(plan_memory(graph).check),
            seconds(build_timeline, graph, target, costs),
        ]
        verdict_s, plan_s, check_s, timeline_s = times
        print(
            f"{length:>12} {len(graph.nodes):>7} {verdict_s:>11.3f} {plan_s:>8.3f} {check_s:>8.3f} {timeline_s:>11.3f}"
        )
    regions = [again(compiled(1)) for _ in range(REPEATS)]
    verdict_us = 1e6 * seconds(lambda: [movement(graph) for graph in regions]) / REPEATS
    timeline_us = 1e6 * seconds(lambda: [build_timeline(graph, target, costs) for graph in regions]) / REPEATS
    size = len(regions[0].nodes)
    print(f"one region of {size} nodes: verdicts {verdict_us:.0f} us, timeline {timeline_us:.0f} us")


if __name__ == "__main__":
    main()
