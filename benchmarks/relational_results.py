"""Makes docs/relational-results.md: relational layers with and without what Hector does, on graphs of its sizes.

    python benchmarks/relational_results.py              # some minutes
    python benchmarks/relational_results.py --most 20000 # graphs of so many edges at most, to try it out

Graphs are random, with the published numbers of vertices, edges and types: the data sets themselves are not needed.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import compress, product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import pimflow_zoo
from pimflow.compiled import Machine
from pimflow.frontend import load_with_graph
from pimflow.ir import Graph
from pimflow.options import Options
from pimflow.passes import CLEANUP, Pass, PassManager, ReorderLinear
from pimflow.passes.differentiate import Differentiate
from pimflow.runtime.costs import CostModel
from pimflow.runtime.memory import plan_memory
from pimflow.search.fastest import Fastest
from pimflow.search.relational_form import RELATIONAL, relational_form
from pimflow.sparse import Graph as Adjacency
from pimflow.sparse import generate
from pimflow_zoo.builder import Net

Ints = npt.NDArray[Any]

PAGE = Path(__file__).parent.parent / "docs" / "relational-results.md"
TARGET, COLUMNS, MOST_EDGES = "rtx3090", 64, 50_000
LAYERS = ("rgcn", "rgat", "hgt")
TRAINED = 128
"""Training steps are priced of graphs with so many types at most: each is a kernel of its own there."""


@dataclass(frozen=True)
class DataSet:
    """Published statistics: vertices, edges and types of edges."""

    name: str
    vertices: int
    edges: int
    types: int


DATA_SETS = (
    DataSet("AIFB", 7_262, 48_810, 104),
    DataSet("MUTAG", 27_163, 148_100, 50),
    DataSet("BGS", 94_806, 672_884, 96),
    DataSet("AM", 881_680, 5_668_682, 96),
    DataSet("FB15k-237", 14_541, 620_232, 474),
    DataSet("ogbl-wikikg2", 2_500_604, 16_109_182, 535),
    DataSet("ogbn-mag", 1_939_743, 21_111_007, 4),
    DataSet("ogbl-biokg", 93_773, 4_762_678, 51),
)


@dataclass(frozen=True)
class Row:
    """What one layer comes to on one graph: without the passes, and in the form that is cheapest."""

    data: DataSet
    share: int
    layer: str
    sources: float
    destinations: float
    us: tuple[float, float]
    peak: tuple[int, int]
    step_us: tuple[float, float] | None


def graph_like(data: DataSet, share: int) -> Adjacency:
    """A random graph with skewed degrees, whose types are drawn by Zipf's law, whatever an edge's ends are."""
    vertices, edges = data.vertices // share, data.edges // share
    graph = generate.power_law(vertices, edges, max(edges // 50, 8))
    types = min(data.types, edges)
    shares = 1 / np.arange(1, types + 1)
    kinds = np.searchsorted(np.cumsum(shares / shares.sum()), np.random.default_rng(0).random(edges)).clip(0, types - 1)
    return Adjacency.from_edge_index(np.stack([graph.col, graph.destinations()]), vertices, None, kinds)


def repeated(ends: Ints, kinds: Ints) -> float:
    """Pairs of a vertex and a type that occur, over edges."""
    return len(np.unique(ends.astype(np.int64) * (int(kinds.max()) + 1) + kinds)) / len(kinds)


def measure(data: DataSet, layer: str, costs: CostModel, most: int) -> Row:
    """Both forms of one layer on one graph."""
    share = -(-data.edges // most)
    edges = graph_like(data, share)
    assert edges.edge_type is not None
    model = pimflow_zoo.relational_layer(Net(layer, 1), layer, COLUMNS, data.types)
    plain = carried_out(load_with_graph(model, {}, edges).graph, CLEANUP)
    options = Options.of(target=TARGET, policy="gpu")
    fastest = Fastest.of(costs, options)
    best = carried_out(plain, relational_form(plain, costs, options).passes)
    ratios = [repeated(ends, edges.edge_type) for ends in (edges.col, edges.destinations())]
    times = (fastest.us(plain), fastest.us(best))
    peaks = (plan_memory(plain).arena_bytes, plan_memory(best).arena_bytes)
    steps = training(plain, fastest) if data.types <= TRAINED else None
    return Row(data, share, layer, ratios[0], ratios[1], times, peaks, steps)


def training(plain: Graph, fastest: Fastest) -> tuple[float, float]:
    """A training step, forward and backward: of the layer as it is, and the cheapest that the passes make of it."""
    prices = []
    for chosen in product((False, True), repeat=len(RELATIONAL)):
        kinds = compress(RELATIONAL, chosen)
        passes: list[Pass] = [ReorderLinear(fold=False) if kind is ReorderLinear else kind() for kind in kinds]
        prices.append(fastest.us(carried_out(plain, (*passes, Differentiate(), *CLEANUP))))
    return prices[0], min(prices)


def carried_out(graph: Graph, passes: tuple[Pass, ...]) -> Graph:
    """The graph behind passes."""
    return PassManager(passes).run(graph).graph


HEADER = """\
| graph | edges | types | pairs of sources | of destinations | layer | us, as exported | us, chosen | | MiB at peak | \
chosen | | training step, us | chosen | |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"""


def line(row: Row) -> str:
    """A row, in Markdown."""
    part = "" if row.share == 1 else f", 1/{row.share}"
    before, after = (peak / 2**20 for peak in row.peak)
    step = "- | - | -"
    if row.step_us is not None:
        step = f"{row.step_us[0]:,.0f} | {row.step_us[1]:,.0f} | {row.step_us[0] / row.step_us[1]:.2f}x"
    return (
        f"| {row.data.name}{part} | {row.data.edges // row.share:,} | {row.data.types} | {row.sources:.2f} | "
        f"{row.destinations:.2f} | {row.layer} | {row.us[0]:,.0f} | {row.us[1]:,.0f} | "
        f"{row.us[0] / row.us[1]:.2f}x | {before:,.1f} | {after:,.1f} | {after / before:.2f} | {step} |"
    )


TEXT = """\
# Relational layers beside what was published

Made by `python benchmarks/relational_results.py`: one layer of {columns} to {columns} features and one head, in fp32 on
the target `{target}`, on random graphs with the numbers of vertices, edges and types of the data sets of Hector (Wu et
al., ASPLOS 2024), of most a part: as many edges a vertex, and as many types. Sizes are those of DGL's and OGB's
documentation and of Hector's repository. Degrees are log-normal, types by Zipf's law and independent of an edge's
ends: "pairs" are pairs of a vertex and a type that occur, over edges.

"As exported" is what recovery makes: rows by type, a product a type, no matrix copied for an edge. "Chosen" is the form
that prices choose ([gnn.md](gnn.md#relational-layers)); peaks are of the arena that the memory planner packs. A
training step is the forward pass and the gradients of all weights, whose product changes from step to step.

{table}

| | published | here |
|---|---|---|
| compaction and reordering, up to | 3.8x | {most:.2f}x |
| inference over the best other system, up to | 9.9x | not modelled |
| training over the best other system, up to | 43.7x | not modelled |

Gains are {least:.2f}x to {most:.2f}x for inference{trained}; peaks of activations are {low:.2f} to {high:.2f} of those
without.

Why they differ: the published 3.8x is over Hector's own code without both, which fuses traversals already; here that
counts too. Graphs are whole there: on parts of them launches are most of the time, and little shows of what is saved.
In real data sets a vertex has edges of few types, so that pairs repeat more often than where types are drawn
independently of it. The other two published figures are over DGL, PyTorch Geometric, Seastar, Graphiler and HGL, with
their own time and copies of weights; no such system is modelled. Of a weight by type the gradient is a kernel for every
type in our training steps, in either form: their launches count in both, and steps of many types gain less.
"""


def page(rows: list[Row]) -> str:
    """The whole page."""
    gains = [row.us[0] / row.us[1] for row in rows]
    peaks = [row.peak[1] / row.peak[0] for row in rows]
    steps = [row.step_us[0] / row.step_us[1] for row in rows if row.step_us is not None]
    return TEXT.format(
        columns=COLUMNS,
        target=TARGET,
        table="\n".join([HEADER, *map(line, rows)]),
        least=min(gains),
        most=max(gains),
        low=min(peaks),
        high=max(peaks),
        trained=f", {min(steps):.2f}x to {max(steps):.2f}x for training steps" if steps else "",
    )


def main() -> None:
    """Measures, and writes the page."""
    parser = argparse.ArgumentParser(description="make docs/relational-results.md")
    parser.add_argument("--most", type=int, default=MOST_EDGES, metavar="N", help="edges of a graph at most")
    parser.add_argument("--output", type=Path, default=PAGE, metavar="FILE.md")
    arguments = parser.parse_args()
    costs = Machine.of(Options.of(target=TARGET, policy="gpu")).costs
    rows = []
    for data in DATA_SETS:
        for layer in LAYERS:
            rows.append(measure(data, layer, costs, arguments.most))
            print(line(rows[-1]), flush=True)
    arguments.output.write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
