"""How rewriting scales: chains of convolutions are cleaned up, split, pipelined and verified; time must grow linearly.

Run: python benchmarks/rewrite_chain.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from pimflow.ir import Builder, Conv2d, Decision, Graph, Pipeline, Plan, SplitRows
from pimflow.ir.verify import verify_graph
from pimflow.passes import CLEANUP, ApplyPlan, PassManager

LENGTHS = (1250, 2500, 5000)


def chain(length: int) -> Graph:
    """`length` 3x3 convolutions, each followed by a ReLU, over [1, 4, 16, 16]; all share their weights."""
    build = Builder("chain")
    x = build.input(1, 4, 16, 16)
    weights = build.constant(np.full((4, 4, 3, 3), 0.1, np.float32))
    for index in range(length):
        x = build.op(Conv2d((3, 3), pads=(1, 1, 1, 1)), x, weights, name=f"conv{index}")
        x = build.relu(x, name=f"relu{index}")
    return build.graph(x)


def splits(graph: Graph, length: int) -> tuple[Decision, ...]:
    """Every convolution split in halves, with its ReLU."""
    return tuple(SplitRows(f"conv{index}", 8, "newton++", (f"relu{index}",)) for index in range(length))


def pipelines(graph: Graph, length: int) -> tuple[Decision, ...]:
    """Pipelines of two convolutions and their ReLUs, in two stages."""
    runs = [(f"conv{i}", f"relu{i}", f"conv{i + 1}", f"relu{i + 1}") for i in range(0, length, 2)]
    return tuple(Pipeline(run, ("pim", "gpu", "gpu", "gpu"), (8, 8), "newton++") for run in runs)


def seconds(function: Callable[..., object], *arguments: object) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def applied(graph: Graph, decide: Callable[[Graph, int], tuple[Decision, ...]], length: int) -> None:
    """Make the decisions, apply them and verify the result."""
    verify_graph(ApplyPlan(Plan("benchmark", decide(graph, length), 0.0, 0.0)).run(graph).graph)


def main() -> None:
    """Print one line for each length."""
    print("convolutions  clean-ups [s]  split + verify [s]  pipeline + verify [s]")
    for length in LENGTHS:
        graph = chain(length)
        clean = seconds(PassManager(CLEANUP).run, graph)
        split = seconds(applied, graph, splits, length)
        piped = seconds(applied, graph, pipelines, length)
        print(f"{length:12d}  {clean:13.2f}  {split:18.2f}  {piped:21.2f}")


if __name__ == "__main__":
    main()
