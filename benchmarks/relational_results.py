"""Makes docs/relational-results.md: relational layers with and without what Hector does, on graphs of its sizes.

    python benchmarks/relational_results.py              # half an hour, 2 GB
    python benchmarks/relational_results.py --most 20000 # graphs of so many edges at most, to try it out

Graphs are random, with the published numbers of vertices, edges and types: the data sets themselves are not needed.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import pimflow_zoo
from pimflow.compiled import Machine
from pimflow.frontend import load_with_graph
from pimflow.ir import Graph
from pimflow.options import Options
from pimflow.passes import CLEANUP, RELATIONAL, FuseTraversal, Pass, PassManager, ScatterProducts, SegmentGemm
from pimflow.passes.differentiate import Differentiate
from pimflow.runtime.costs import CostModel
from pimflow.runtime.memory import plan_memory
from pimflow.search.fastest import Fastest
from pimflow.search.relational_form import relational_form, training_form
from pimflow.sparse import Graph as Adjacency
from pimflow.sparse import generate
from pimflow_zoo.builder import Net

Ints = npt.NDArray[Any]

PAGE = Path(__file__).parent.parent / "docs" / "relational-results.md"
TARGET, COLUMNS = "rtx3090", 64
MOST_EDGES, MOST_TRAINED = 25_000_000, 700_000
"""Of larger graphs a part is taken; of a training step, whose forms are many more to price, a smaller one."""
LAYERS = ("rgcn", "rgat", "hgt")
FUSED = (SegmentGemm, FuseTraversal, ScatterProducts)
"""The passes of Hector's own code without compaction and reordering, which is what it is compared with."""


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
class Forms:
    """What a layer comes to: without the passes, with the best of `FUSED`, and in the form that is cheapest."""

    plain: float
    fused: float
    best: float

    @property
    def cells(self) -> str:
        """The columns of the table, in Markdown."""
        gains = f"{self.plain / self.best:.2f}x | {self.fused / self.best:.2f}x"
        return f"{self.plain:,.0f} | {self.fused:,.0f} | {self.best:,.0f} | {gains}"


@dataclass(frozen=True)
class Row:
    """One layer on one graph; the peaks are without the passes, and of the cheapest form."""

    data: DataSet
    share: int
    layer: str
    sources: float
    destinations: float
    us: Forms
    peak: tuple[int, int]
    step_us: Forms


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


def measure(data: DataSet, layer: str, costs: CostModel, edges: Adjacency, share: int, steps: Forms) -> Row:
    """The forms of one layer on one graph."""
    assert edges.edge_type is not None
    plain = as_exported(layer, data, edges)
    options = Options.of(target=TARGET, policy="gpu")
    fastest = Fastest.of(costs, options)
    kinds = (FUSED, RELATIONAL)
    fused, best = (carried_out(plain, relational_form(plain, costs, options, some).passes) for some in kinds)
    ratios = [repeated(ends, edges.edge_type) for ends in (edges.col, edges.destinations())]
    times = Forms(*map(fastest.us, (plain, fused, best)))
    peaks = (plan_memory(plain).arena_bytes, plan_memory(best).arena_bytes)
    return Row(
        data,
        share,
        layer,
        ratios[0],
        ratios[1],
        times,
        peaks,
        steps,
    )


def training(layer: str, data: DataSet, edges: Adjacency, costs: CostModel) -> Forms:
    """A training step, forward and backward: as exported, with the best set of `FUSED`, and in the cheapest form."""
    plain, fastest = as_exported(layer, data, edges), Fastest.of(costs, Options.of(target=TARGET, policy="gpu"))

    def step_us(graph: Graph) -> float:
        return fastest.us(carried_out(graph, (Differentiate(), *CLEANUP)))

    fused, best = (carried_out(plain, training_form(plain, step_us, Options(), kinds)) for kinds in (FUSED, RELATIONAL))
    return Forms(step_us(plain), step_us(fused), step_us(best))


def as_exported(layer: str, data: DataSet, edges: Adjacency) -> Graph:
    """A layer on a graph, recovered and cleaned up."""
    model = pimflow_zoo.relational_layer(Net(layer, 1), layer, COLUMNS, data.types)
    return carried_out(load_with_graph(model, {}, edges).graph, CLEANUP)


def carried_out(graph: Graph, passes: tuple[Pass, ...]) -> Graph:
    """The graph behind passes."""
    return PassManager(passes).run(graph).graph


HEADER = """\
| graph | edges | types | pairs of sources | of destinations | layer | us, as exported | fused | chosen | \
over exported | over fused | MiB at peak, as exported | chosen | | training step, us, as exported | \
fused | chosen | over exported | over fused |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"""


def line(row: Row) -> str:
    """A row, in Markdown."""
    part = "" if row.share == 1 else f", 1/{row.share}"
    before, after = (peak / 2**20 for peak in row.peak)
    return (
        f"| {row.data.name}{part} | {row.data.edges // row.share:,} | {row.data.types} | {row.sources:.2f} | "
        f"{row.destinations:.2f} | {row.layer} | {row.us.cells} | "
        f"{before:,.1f} | {after:,.1f} | {after / before:.2f} | {row.step_us.cells} |"
    )


TEXT = """\
# Relational layers beside what was published

Made by `python benchmarks/relational_results.py`: one layer of {columns} to {columns} features and one head, in fp32 on
the target `{target}`, on random graphs with the numbers of vertices, edges and types of the data sets of Hector (Wu et
al., ASPLOS 2024). Sizes are those of DGL's and OGB's documentation and of Hector's repository. Degrees are log-normal,
types by Zipf's law and independent of an edge's ends: "pairs" are pairs of a vertex and a type that occur, over edges.

"As exported" is what recovery makes: rows by type, a product a type, no matrix copied for an edge. "Fused" is the best
of `segment-gemm`, `fuse-traversal` and `scatter-products`, "chosen" the form that prices choose of all passes
([gnn.md](gnn.md#relational-layers)): over "fused" is what compaction and reordering gain. Peaks are of the arena that
the memory planner packs. A training step is the forward pass and the gradients of all weights, whose product changes
from step to step, on a graph of {most_trained:,} edges at most; its form is chosen by the price of the step.

In "fused" and "chosen" products read rows by an index themselves where that pays, as Hector's do (`fuse-traversal`):
rows pass the second-level cache as those of a gather do, and are written nowhere. Nor are results that products add up
at the vertices that edges lead to (`scatter-products`): zeros before them, and atomics in the cache, are paid for.

{table}

| | published | here |
|---|---|---|
| inference: compaction and reordering, up to | 3.8x | {most:.2f}x |
| inference over the best other system, up to | 9.9x | not modelled |
| training over the best other system, up to | 43.7x | not modelled |

| gain | over exported | over fused |
|---|---|---|
| inference | {inference} |
| training steps | {trained} |

Peaks of activations are {low:.2f} to {high:.2f} of those without.

Why they differ: the published 3.8x is over Hector's own code without both, which fuses traversals already, as "fused"
does. In real data sets a vertex has edges of few types, so that pairs repeat more often than where types are drawn
independently of it. The other two published figures are over DGL, PyTorch
Geometric, Seastar, Graphiler and HGL, with their own time and copies of weights; no such system is modelled. Of a
weight by type the gradient is a kernel for every type in our training steps, in any form: their launches count in all,
and steps of many types gain less.
"""


def page(rows: list[Row]) -> str:
    """The whole page."""
    inference, steps = [row.us for row in rows], [row.step_us for row in rows]
    peaks = [row.peak[1] / row.peak[0] for row in rows]
    return TEXT.format(
        columns=COLUMNS,
        most_trained=MOST_TRAINED,
        target=TARGET,
        table="\n".join([HEADER, *map(line, rows)]),
        most=max(forms.fused / forms.best for forms in inference),
        inference=spans(inference),
        low=min(peaks),
        high=max(peaks),
        trained=spans(steps),
    )


def spans(found: list[Forms]) -> str:
    """The least and the largest gain over each of the two forms."""
    exported, fused = [one.plain / one.best for one in found], [one.fused / one.best for one in found]
    return " | ".join(f"{min(gains):.2f}x to {max(gains):.2f}x" for gains in (exported, fused))


def main() -> None:
    """Measures, and writes the page."""
    parser = argparse.ArgumentParser(description="make docs/relational-results.md")
    parser.add_argument("--most", type=int, default=MOST_EDGES, metavar="N", help="edges of a graph at most")
    parser.add_argument("--output", type=Path, default=PAGE, metavar="FILE.md")
    arguments = parser.parse_args()
    costs = Machine.of(Options.of(target=TARGET, policy="gpu")).costs
    rows = []
    for data in DATA_SETS:
        share, trained = (-(-data.edges // min(arguments.most, most)) for most in (MOST_EDGES, MOST_TRAINED))
        edges = graph_like(data, share)
        part = edges if share == trained else graph_like(data, trained)
        for layer in LAYERS:
            steps = training(layer, data, part, costs)
            rows.append(measure(data, layer, costs, edges, share, steps))
            print(line(rows[-1]), flush=True)
    arguments.output.write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
