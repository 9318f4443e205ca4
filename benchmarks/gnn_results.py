"""Makes docs/gnn-results.md: aggregations on UPMEM modules next to PyGim's published figures, graph by graph.

    python benchmarks/gnn_results.py            # all graphs, about three minutes and 8 GiB
    python benchmarks/gnn_results.py --share 16 # a sixteenth of every graph, to try it out

Graphs are generated with the sizes and degrees of the data sets; the data sets themselves are not needed.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from pimflow import gnn
from pimflow.ir import Refusal
from pimflow.runtime.upmem.baselines import grande, published_tuner, sparsep
from pimflow.runtime.upmem.edge_parts import EdgeParts
from pimflow.runtime.upmem.pricing import Aggregation, AggregationCost, Pricing
from pimflow.runtime.upmem.tuner import Ranking, Tuner
from pimflow.sparse import Graph, generate
from pimflow.targets import load_target
from pimflow.targets.schema.upmem import ElementType, UpmemSpec

PAGE = Path(__file__).parent.parent / "docs" / "gnn-results.md"
FEATURES = 256
PEAKS = {"int32": 0.12e12, "fp32": 0.025e12}
"""Operations per second of all cores, from PyGim's slides."""
AT_REST = "a module at rest, all the time"
FASTER, SAVED = 3.04, 1.55
"""Speed and energy over the CPU in int32, from PyGim's abstract."""
LAUNCHES_US = (0.0, 100.0, 1000.0)
"""Assumed times to launch the cores."""
PUBLISHED = {"int32": 13.86, "fp32": 9.13}
"""Utilisation on Reddit in percent, from the same slides."""


@dataclass(frozen=True)
class Case:
    """A graph to evaluate."""

    name: str
    make: Callable[[int], Graph]


def like(name: str) -> Case:
    return Case(name, lambda share: generate.like(name, 1 / share))


DATA_SETS = [like("pubmed"), like("ogbn-proteins"), like("reddit")]
OTHERS = [
    Case("amazon-products, a quarter", lambda share: generate.like("amazon-products", 1 / (4 * share))),
    Case("R-MAT 2^17", lambda share: generate.rmat(17, 4_000_000 // share)),
    Case("R-MAT 2^20", lambda share: generate.rmat(20, 16_000_000 // share)),
    Case("power law", lambda share: generate.power_law(100_000, 5_000_000 // share, 20_000)),
    Case("road grid", lambda share: generate.road_grid(1000 // math.isqrt(share), 1000)),
    Case("road grid, in order", lambda share: generate.road_grid(1000 // math.isqrt(share), 1000, in_order=True)),
    Case("uniform, sparse", lambda share: generate.uniform(500_000 // share, 1_000_000 // share)),
    Case("uniform, dense", lambda share: generate.uniform(10_000, 8_000_000 // share)),
    Case("uniform, small", lambda share: generate.uniform(500, 2_000)),
]


@dataclass(frozen=True)
class Row:
    """The figures of one graph."""

    name: str
    graph: str
    best: dict[str, Ranking]
    others: dict[str, dict[str, AggregationCost | Refusal]]
    host_us: float
    published: str
    within: float
    tuned_s: float
    exhaustive_s: float
    scaling: tuple[float, ...]
    edges: int


def measure(case: Case, share: int, spec: UpmemSpec) -> Row:
    """All figures of one graph."""
    graph = case.make(share)
    best: dict[str, Ranking] = {}
    others: dict[str, dict[str, AggregationCost | Refusal]] = {}
    elements: tuple[ElementType, ...] = ("int32", "fp32")
    for element in elements:
        aggregation = Aggregation(FEATURES, element)
        best[element] = Tuner(spec, graph, aggregation).rank()
        others[element] = {"SparseP": sparsep(spec, graph, aggregation), "GraNDe": grande(spec, graph, aggregation)}
    aggregation = Aggregation(FEATURES, "int32")
    ranking, tuned_s = timed(lambda: Tuner(spec, graph, aggregation).rank())
    exhaustive, exhaustive_s = timed(lambda: Tuner(spec, graph, aggregation).exhaustive())
    choice = published_tuner(spec, graph, aggregation)
    published = "-"
    if not isinstance(choice, Refusal):
        cost = Pricing(spec, aggregation, EdgeParts(graph)).cost(choice.strategy)
        if not isinstance(cost, Refusal):
            published = f"{choice.strategy} ({cost.time_us / ranking.best.cost.time_us:.2f})"
    return Row(
        case.name,
        f"{graph.num_dst:,} | {graph.num_edges:,}",
        best,
        others,
        gnn.other_devices_us(load_target("upmem"), graph, FEATURES)["cpu"],
        published,
        ranking.best.cost.time_us / exhaustive.best.cost.time_us,
        tuned_s,
        exhaustive_s,
        tuple(scaled(spec, graph, aggregation)),
        graph.num_edges,
    )


def timed(search: Callable[[], Ranking]) -> tuple[Ranking, float]:
    """The result of a search, and its seconds, including passes over the edges."""
    begun = time.process_time()
    return search(), time.process_time() - begun


def scaled(spec: UpmemSpec, graph: Graph, aggregation: Aggregation) -> Iterator[float]:
    """Times with 4, 8, 16 and 32 ranks, with one edge part on each."""
    for ranks in (4, 8, 16, 32):
        fewer = replace(spec, ranks=ranks, cores=spec.cores * ranks // spec.ranks, dimms=max(1, ranks // 2))
        strategy = gnn.Strategy(1, ranks, "csr", "nnz", "nnz")
        cost = Pricing(fewer, aggregation, EdgeParts(graph)).cost(strategy)
        yield math.nan if isinstance(cost, Refusal) else cost.time_us


def page(rows: list[Row], spec: UpmemSpec) -> str:
    """The page, with its tables filled in."""
    reddit = next(row for row in rows if row.name == "reddit")
    sets = [row for row in rows if row.name in {case.name for case in DATA_SETS}]
    return TEMPLATE.format(
        features=FEATURES,
        times="\n".join(_times(row) for row in rows),
        utilisation="\n".join(_utilisation(reddit, element) for element in PEAKS),
        prior="\n".join(_prior(row) for row in rows),
        prior_mean=_mean([_ratio(row, "int32", name) for row in sets for name in ("SparseP", "GraNDe")]),
        prior_most=max(_ratio(row, "int32", name) for row in sets for name in ("SparseP", "GraNDe")),
        host="\n".join(_host(row, spec) for row in rows),
        energy="\n".join(_energy(reddit, spec)),
        gap=_gap(reddit, spec),
        launch="\n".join(_launch(row) for row in rows),
        host_mean=_mean([row.host_us / row.best["int32"].best.cost.time_us for row in sets]),
        scaling="\n".join(_scaling(row) for row in rows),
        scaling_mean=_mean([step for row in rows for step in _steps(row)]),
        tuner="\n".join(_tuner(row) for row in rows),
        different=len({row.best["int32"].best.strategy for row in rows}),
        graphs=len(rows),
    )


def _times(row: Row) -> str:
    cells = []
    for element in PEAKS:
        best = row.best[element].best
        stages = " / ".join(f"{time / 1e3:,.1f}" for time in best.cost.time_parts_us.values())
        cells.append(f"{best.strategy} | {stages} | {best.cost.time_us / 1e3:,.1f}")
    return f"| {row.name} | {row.graph} | {' | '.join(cells)} |"


def _utilisation(row: Row, element: str) -> str:
    cost = row.best[element].best.cost
    rate = row.edges * FEATURES / cost.time_us * 1e6
    percent = 100 * rate / PEAKS[element]
    off = 100 * (percent / PUBLISHED[element] - 1)
    return f"| {element} | {PUBLISHED[element]} % | {percent:.2f} % | {off:+.0f} % | {rate / 1e9:.1f} G/s |"


def _ratio(row: Row, element: str, name: str) -> float:
    cost = row.others[element][name]
    return math.nan if isinstance(cost, Refusal) else cost.time_us / row.best[element].best.cost.time_us


def _energy_ratio(row: Row, element: str, name: str) -> float:
    """Energy of the modules and the link, relative to that of the fastest strategy."""
    cost, best = row.others[element][name], row.best[element].best.cost
    if isinstance(cost, Refusal):
        return math.nan
    return (cost.energy_mj - cost.host_mj) / (best.energy_mj - best.host_mj)


def _prior(row: Row) -> str:
    cells = [
        f"{_ratio(row, element, name):.2f} ({_energy_ratio(row, element, name):.2f})"
        for element in PEAKS
        for name in ("SparseP", "GraNDe")
    ]
    return f"| {row.name} | {' | '.join(cells)} | {row.published} |"


def _host(row: Row, spec: UpmemSpec) -> str:
    cells = []
    for element in PEAKS:
        cost, spent = row.best[element].best.cost, _spent(row, element, spec)
        pim_mj, beside_mj = (sum(part[place] for part in spent.values()) for place in (0, 1))
        alone_mj = beside_mj - spent[AT_REST][1]
        drawn = pim_mj / cost.time_us / (beside_mj / row.host_us)
        cells.append(
            f"{row.host_us / cost.time_us:.2f} | {beside_mj / pim_mj:.2f} ({alone_mj / pim_mj:.2f}) | {drawn:.2f}"
        )
    return f"| {row.name} | {row.host_us / 1e3:,.1f} | {' | '.join(cells)} |"


def _spent(row: Row, element: str, spec: UpmemSpec) -> dict[str, tuple[float, float]]:
    """Millijoules on PIM and with the CPU alone, by the constant that they are proportional to."""
    cost, power = row.best[element].best.cost, load_target("upmem").units["cpu"].energy  # type: ignore[attr-defined]
    return {
        "a module while its cores run, beyond rest": (cost.kernel_mj, 0.0),
        AT_REST: (cost.idle_mj, spec.static_w * row.host_us * 1e-3),
        "the CPU and its board, all the time": (
            power.static_w * cost.time_us * 1e-3,
            power.static_w * row.host_us * 1e-3,
        ),
        "the CPU at work": (cost.host_mj, power.busy_w * row.host_us * 1e-3),
        "bytes over the memory bus": (cost.link_mj, 0.0),
    }


def _energy(row: Row, spec: UpmemSpec) -> Iterator[str]:
    """For each constant: its shares of both energies, and the ratio of energies if it were half or twice as large."""
    spent = _spent(row, "int32", spec)
    pim_mj, alone_mj = (sum(part[place] for part in spent.values()) for place in (0, 1))
    for name, (on_pim, alone) in spent.items():
        half, double = ((alone_mj + more * alone) / (pim_mj + more * on_pim) for more in (-0.5, 1.0))
        shares = f"{100 * on_pim / pim_mj:.0f} % | {100 * alone / alone_mj:.0f} %"
        yield f"| {name} | {shares} | {half:.2f} | {double:.2f} |"


def _gap(row: Row, spec: UpmemSpec) -> str:
    """The gap to the published ratio of energies, as a product of speed and power."""
    spent, cost = _spent(row, "int32", spec), row.best["int32"].best.cost
    pim_mj, alone_mj = (sum(part[place] for part in spent.values()) for place in (0, 1))
    speed, energy = row.host_us / cost.time_us, alone_mj / pim_mj
    power, published = speed / energy, FASTER / SAVED
    return (
        f"{energy:.2f} / {SAVED} = {energy / SAVED:.2f} is {speed:.2f} / {FASTER} = {speed / FASTER:.2f} by speed "
        f"times {published:.2f} / {power:.2f} = {published / power:.2f} by power"
    )


def _launch(row: Row) -> str:
    """The fastest strategy's time for each launch time of the cores; every strategy launches them once."""
    cost = row.best["int32"].best.cost
    times = [cost.time_us - cost.launch_us + launch_us for launch_us in LAUNCHES_US]
    cells = [f"{time / 1e3:,.2f} ({row.host_us / time:.2f})" for time in times]
    return f"| {row.name} | {' | '.join(cells)} | {100 * cost.launch_us / cost.time_us:.2f} % |"


def _steps(row: Row) -> list[float]:
    known = [time for time in row.scaling if not math.isnan(time)]
    return [before / after for before, after in pairwise(known)]


def _scaling(row: Row) -> str:
    times = " | ".join("does not fit" if math.isnan(time) else f"{time / 1e3:,.1f}" for time in row.scaling)
    return f"| {row.name} | {times} | {', '.join(f'{step:.2f}' for step in _steps(row))} |"


def _tuner(row: Row) -> str:
    exact = sum(ranked.exact for ranked in row.best["int32"].rows)
    share = 100 * row.tuned_s / row.exhaustive_s
    counted = f"{exact} of {len(row.best['int32'].rows)}"
    seconds = f"{row.tuned_s:.3f} | {row.exhaustive_s:.2f}"
    return f"| {row.name} | {row.edges:,} | {row.within:.3f} | {counted} | {seconds} | {share:.1f} % |"


def _mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


TEMPLATE = """# UPMEM compared with published results

Made by `python benchmarks/gnn_results.py` on generated graphs with the sizes, degrees and communities of the data
sets (`pimflow.sparse.generate`), with {features} features. PyGim (Giannoula et al., SIGMETRICS 2025) measured real
modules; here they are modelled ([upmem.md](upmem.md)). Two things are fitted: the cost of a non-zero, to PyGim's
rates of one core, and the copies and merges, which are PyGim's tables. Everything else is predicted. int32 sums are
as narrow as PyGim's; `pimflow compile` refuses them where they could overflow.

## Times

Milliseconds for the stages load, run, retrieve and merge, and in total.

| graph | vertices | edges | int32: best | stages | ms | fp32: best | stages | ms |
|---|---|---|---|---|---|---|---|---|
{times}

{different} different strategies are best on {graphs} graphs.

## Utilisation on Reddit

The table shows the share of the peak, 0.12 Top/s (int32) or 0.025 Top/s (fp32), over all four stages, with a
multiply-add counted as one operation. Counted as two operations, the published figures would imply half the time,
which the published rates of one core rule out.

| | published | here | difference | |
|---|---|---|---|---|
{utilisation}

fp32 is multiplied in software, at 1.375 M multiply-adds per second and core: the rates of additions and
multiplications in PyGim's code. Its other constant, 6.24 M operations per second, would make the modules twice as
fast as they were.

## Over prior work on the same modules

Published: a speedup over SparseP and GraNDe of 4.38 in the mean and 7.20 at most. Here it is {prior_mean:.2f} in the
mean of the data sets, and {prior_most:.2f} at most: in SparseP every column is a product of its own, and in GraNDe
the host adds up one partial result per rank. The numbers in brackets are energy ratios, published as 2.86 in the mean
and 3.68 at most; here they are those of the modules and their link alone, from the power values
[below](#over-the-host).

| graph | int32: SparseP | GraNDe | fp32: SparseP | GraNDe | PyGim's tuner picks (times the best) |
|---|---|---|---|---|---|
{prior}

## Over the host

Published: 3.04 in the mean and 3.44 at most for inference in int32. Here it is {host_mean:.2f} in the mean of the
data sets for the aggregation alone, relative to one Xeon Silver 4215 as modelled in the target (a roofline over its
bytes, with its cache). PyTorch's own int32 kernels are slower than that roofline: the published utilisation of the
CPU, 0.63 % of 0.64 Top/s on Reddit, is 4.0 G/s.

The published energy gain over the same CPU is 1.55 in the abstract and 2.7 on a slide. Neither says how it was
measured, nor whether the modules' own power counts while the CPU works alone. Here it does: modules are part of the
machine's memory, and draw 5 W each at all times. The numbers in brackets leave this power out of the CPU's energy, as
if the CPU stood in a machine without modules. The column "power" is the power on PIM divided by the power of the CPU
alone, with the modules at rest counted in both. The two figures of the abstract imply 3.04 / 1.55 = 1.96.

| what | W | |
|---|---|---|
| a module while its cores run | 23.22 | published: Falevoz and Legriel, Euro-Par 2023 |
| a module otherwise, all the time | 5 | assumed: refresh and standby of 16 GiB |
| the CPU and its board, all the time | 25 | assumed, of the 85 W of its data sheet |
| the CPU, while it computes, loads, retrieves or merges | 60 more | assumed: the rest of these |
| a byte over the memory bus | 160 pJ | published by order of magnitude: Keckler et al., IEEE Micro 2011 |

None of these values is fitted to PyGim's energies. On Reddit {gap}: the shortfall is in the speed, because the
modelled CPU is faster than PyTorch was. The next table shows the share of each constant in both energies there, in
int32, and the ratio of the energies if the constant were half or twice as large:

| constant | on PIM | CPU alone | ratio, if half | if twice |
|---|---|---|---|---|
{energy}

| graph | CPU ms | int32: speedup | energy | power | fp32: speedup | energy | power |
|---|---|---|---|---|---|---|---|
{host}

Where the number is below 1, PIM loses: in fp32, and on graphs with few edges per vertex, whose features take longer
to load than to add up. Any GPU that holds the features is even faster: an RTX 3090 aggregates Reddit about 17 times
as fast as PyGim, according to PyGim's own table.

## Starting the cores

`dpu.launch_us` is assumed: we found no published measurement of it. The table shows the milliseconds of the best
strategy in int32 if it were 0, 100 us or a millisecond, with the CPU's time divided by it in brackets, and its actual
share. Every strategy starts the cores once, so the ranking of strategies does not depend on it.

| graph | 0 | 100 us | 1 ms | share |
|---|---|---|---|---|
{launch}

## Doubling the modules

Published: 1.4 in the mean, with a fixed strategy. The table shows milliseconds with 4, 8, 16 and 32 ranks, one edge
part, one feature part per rank, and `csr nnz nnz`: {scaling_mean:.2f} in the mean. The time to load does not depend
on the number of ranks, as every core gets its columns; neither does the time to merge.

| graph | 4 | 8 | 16 | 32 | gain per doubling |
|---|---|---|---|---|---|
{scaling}

## The tuner

The table shows the time of the tuner's pick divided by that of the best of all strategies; how many strategies the
tuner timed exactly; its seconds on one core and the seconds to time all strategies, both including passes over the
edges; and the ratio of the two.

| graph | edges | pick / best | timed exactly | s | all: s | cost |
|---|---|---|---|---|---|---|
{tuner}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes docs/gnn-results.md.")
    parser.add_argument("--share", type=int, default=1, help="factor by which to shrink the graphs")
    parser.add_argument("-o", "--output", type=Path, default=PAGE)
    arguments = parser.parse_args()
    _, spec = gnn.modules_of("upmem")
    rows = []
    for case in [*DATA_SETS, *OTHERS]:
        begun = time.perf_counter()
        rows.append(measure(case, arguments.share, spec))
        print(f"{case.name}: {time.perf_counter() - begun:.0f} s", flush=True)
    arguments.output.write_text(page(rows, spec))


if __name__ == "__main__":
    main()
