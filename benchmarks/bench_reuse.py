"""The error of sampled reuse against an exact count of the rows that a cache fetches for a sum over edges, on twelve
graphs.

Every graph has more accesses than are counted exactly. The exact count simulates a least-recently-used cache step by
step and shares no code with the package; errors are in the number of rows fetched.

Run: python benchmarks/bench_reuse.py [--edges N]
"""

from __future__ import annotations

import argparse
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from machine import here

from pimflow.sparse import Graph, generate, like, profile_of, reordered

SHARES = (0.02, 0.1, 0.4)
"""Cache sizes, as shares of the sources."""


def graphs(edges: int) -> dict[str, Callable[[], Graph]]:
    """Twelve kinds of graph with about `edges` edges."""
    vertices = edges // 16
    side = round((edges / 4) ** 0.5)
    return {
        "uniform": lambda: generate.uniform(vertices, edges),
        "dense": lambda: generate.uniform(round((2 * edges) ** 0.5), edges),
        "power law": lambda: generate.power_law(vertices, edges, vertices // 10),
        "power law by degree": lambda: reordered(generate.power_law(vertices, edges, vertices // 10), "degree"),
        "R-MAT": lambda: generate.rmat(max(1, (vertices - 1).bit_length()), edges),
        "R-MAT by degree": lambda: reordered(generate.rmat(max(1, (vertices - 1).bit_length()), edges), "degree"),
        "streets": lambda: generate.road_grid(side, side),
        "streets in order": lambda: generate.road_grid(side, side, in_order=True),
        "blocks": lambda: generate.block_model(vertices, edges, 100, 0.1),
        "blocks in order": lambda: generate.block_model(vertices, edges, 100, 0.1, in_order=True),
        "Reddit's density": lambda: like("reddit", (edges / 114.6e6) ** 0.5, keep="density"),
        "ogbn-proteins' density": lambda: like("ogbn-proteins", (edges / 79.1e6) ** 0.5, keep="density"),
    }


def fetched(rows: Iterable[int], held: int) -> int:
    """The number of rows that a least-recently-used cache of `held` rows fetches."""
    cache: OrderedDict[int, None] = OrderedDict()
    count = 0
    for row in rows:
        if row in cache:
            cache.move_to_end(row)
            continue
        count += 1
        cache[row] = None
        if len(cache) > held:
            cache.popitem(last=False)
    return count


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edges", type=lambda text: int(float(text)), default=600_000)
    arguments = parser.parse_args(argv)
    print(here())
    print(f"{'graph':<24}{'edges':>10}" + "".join(f"{f'{100 * share:g} % held':>14}" for share in SHARES))
    for name, make in graphs(arguments.edges).items():
        graph = make()
        profile = profile_of(graph.col, graph.num_src)
        rows = graph.col.tolist()
        errors = []
        for share in SHARES:
            held = max(1, round(share * graph.num_src))
            exact = fetched(rows, held)
            errors.append(100 * (profile.misses(held) / exact - 1))
        print(f"{name:<24}{graph.num_edges:>10,}" + "".join(f"{error:>+12.2f} %" for error in errors))


if __name__ == "__main__":
    main(sys.argv[1:])
