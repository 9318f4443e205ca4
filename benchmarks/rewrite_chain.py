"""How rewriting scales: chains of convolutions are cleaned up, split, pipelined and verified; time must grow linearly.

Run: python benchmarks/rewrite_chain.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from pimflow.ir import Conv2d, Decision, Elementwise, Graph, Node, Pipeline, Plan, SplitRows, Value
from pimflow.ir.analysis.regions import followers_of
from pimflow.ir.verify import verify_graph
from pimflow.passes import CLEANUP, ApplyPlan, PassManager

LENGTHS = (1250, 2500, 5000)


def chain(length: int) -> Graph:
    """`length` 3x3 convolutions, a ReLU behind each, over [1, 4, 16, 16]; all share their weights."""
    values = {"x": Value("x", (1, 4, 16, 16)), "w": Value("w", (4, 4, 3, 3))}
    nodes, last = [], "x"
    for index in range(length):
        for name, op, inputs in (
            (f"conv{index}", Conv2d((3, 3), pads=(1, 1, 1, 1)), (last, "w")),
            (f"relu{index}", Elementwise("Relu"), (f"conv{index}_out",)),
        ):
            last = f"{name}_out"
            values[last] = Value(last, (1, 4, 16, 16))
            nodes.append(Node(op, inputs, (last,), name))
    weights = np.full((4, 4, 3, 3), 0.1, np.float32)
    return Graph("chain", ("x",), (last,), tuple(nodes), values, {"w": weights})


def splits(graph: Graph, length: int) -> tuple[Decision, ...]:
    """Every convolution split in halves, its ReLU following."""
    names = [f"conv{index}" for index in range(length)]
    return tuple(SplitRows(name, 8, "newton++", followers_of(graph, graph.node(name))) for name in names)


def pipelines(graph: Graph, length: int) -> tuple[Decision, ...]:
    """Pipelines of two convolutions and their ReLUs, in two stages."""
    runs = [(f"conv{i}", f"relu{i}", f"conv{i + 1}", f"relu{i + 1}") for i in range(0, length, 2)]
    return tuple(Pipeline(run, ("pim", "gpu", "gpu", "gpu"), (8, 8), "newton++") for run in runs)


def seconds(function: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def applied(graph: Graph, decisions: tuple[Decision, ...]) -> None:
    """Carries out the decisions and verifies the result."""
    verify_graph(ApplyPlan(Plan("benchmark", decisions, 0.0, 0.0)).run(graph).graph)


def main() -> None:
    """Prints one line for each length."""
    print("convolutions  clean-ups [s]  split + verify [s]  pipeline + verify [s]")
    for length in LENGTHS:
        graph = chain(length)
        clean = seconds(lambda graph=graph: PassManager(CLEANUP).run(graph))
        split = seconds(lambda graph=graph, length=length: applied(graph, splits(graph, length)))
        piped = seconds(lambda graph=graph, length=length: applied(graph, pipelines(graph, length)))
        print(f"{length:12d}  {clean:13.2f}  {split:18.2f}  {piped:21.2f}")


if __name__ == "__main__":
    main()
