"""How good the mappings are, layer by layer, and how fast they are found.

    python benchmarks/bench_mapping.py [--timing artifact|strict] [--others] [--knobs] [--times]

Without a choice of parts, all are printed:

- layers of MobileNetV2, EfficientNet-B0 and VGG-16 with the cycles of the published code generator (four buffers,
  GWRITE hidden; "*": its stream has too few COMPs), Newton+, Newton++ and `auto`, and a breakdown of `auto`'s cycles;
- --others: the same for layers that no published table has (ResNet-50, BERT-base, attention, grouped convolutions);
- --knobs: the gain from a second buffer per channel, free pairing of slots and columns, or more buffers;
- --times: seconds to price a model's convolutions at 10 split ratios (x 3 buffer counts for Newton++).
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pimflow_zoo
from pimflow.codegen import ConvProblem, MatmulProblem, MatrixProblem, matrix_problem
from pimflow.frontend import load_model
from pimflow.runtime.newton.autotune.choose import MappingSearch
from pimflow.runtime.newton.breakdown import cycle_breakdown
from pimflow.runtime.newton.cost import PimCost
from pimflow.runtime.newton.profiles import timing_profile
from pimflow.targets import PimSpec, Target, load_target

TABLE = Path(__file__).parents[1] / "tests" / "data" / "published_layers.csv"
HEADER = (
    f"{'layer':34}{'published':>10}{'newton+':>10}{'newton++':>10}{'auto':>10}{'limit':>10}{'util':>7}"
    f"  {'idle':>6}{'act':>6}{'fill':>7}{'ref':>6}{'read':>6}   (of auto's cycles, in %)"
)


def published_layers() -> Iterator[tuple[ConvProblem, int, bool]]:
    """(layer, published cycles, whether the published stream has enough COMPs)."""
    with TABLE.open() as file:
        for row in csv.DictReader(file):
            if (row["global_buffers"], row["gwrite_latency"]) != ("4", "hidden"):
                continue
            value = {key: int(text) for key, text in row.items() if text.isdigit()}
            problem = ConvProblem(
                1, value["in_channels"], value["out_channels"], value["height"], value["width"],
                (value["kernel_h"], value["kernel_w"]), (value["stride"],) * 2, (value["pad_h"], value["pad_w"]) * 2,
            )  # fmt: skip
            least = -(-problem.depth // 16) * -(-problem.columns // 16) * problem.pixels
            yield problem, value["cycles"], 16 * value["comp"] >= least


def other_layers() -> Iterator[MatrixProblem]:
    """Layers of ResNet-50, BERT-base, a vision transformer, ResNeXt-50, and a classifier."""
    for channels, size in ((64, 56), (128, 28), (256, 14), (512, 7)):
        yield ConvProblem(1, channels, channels, size, size, (3, 3), (1, 1), (1, 1, 1, 1))
        yield ConvProblem(1, channels, 4 * channels, size, size, (1, 1))
        yield ConvProblem(1, 4 * channels, channels, size, size, (1, 1))
    yield ConvProblem(1, 3, 64, 224, 224, (7, 7), (2, 2), (3, 3, 3, 3))
    yield ConvProblem(1, 128, 128, 56, 56, (3, 3), (1, 1), (1, 1, 1, 1), groups=32)
    yield ConvProblem(1, 96, 96, 28, 28, (5, 5), (1, 1), (4, 4, 4, 4), dilations=(2, 2))
    yield MatmulProblem(128, 768, 768)
    yield MatmulProblem(128, 768, 3072)
    yield MatmulProblem(1, 2048, 1000)
    yield MatmulProblem(1, 4096, 11008)
    yield MatmulProblem(197, 64, 197, 12, batched_rhs=True, constant_rhs=False)


def name_of(problem: MatrixProblem) -> str:
    if isinstance(problem, ConvProblem):
        height, width = problem.kernel
        extra = f" g{problem.groups}" if problem.groups > 1 else ""
        size = f"{problem.in_h}x{problem.in_w}"
        return f"{problem.in_channels}>{problem.out_channels} {height}x{width}/{problem.strides[0]} on {size}{extra}"
    return f"[{problem.batch}x]{problem.m}x{problem.k}x{problem.n}{'' if problem.constant_rhs else ' computed'}"


def cost_of(problem: MatrixProblem, search: MappingSearch, policy: str) -> PimCost:
    cost = search.choose(problem, policy)
    if not isinstance(cost, PimCost):
        raise SystemExit(f"{name_of(problem)}: {cost.reason}")
    return cost


def searching(pim: PimSpec, timing: str) -> MappingSearch:
    return MappingSearch(timing_profile(pim, timing))


def print_layer(problem: MatrixProblem, search: MappingSearch, published: str = "") -> tuple[int, int]:
    """Print one line; return the cycles of Newton++ and `auto`."""
    plus, newton, auto = (cost_of(problem, search, policy) for policy in ("newton+", "newton++", "auto"))
    spent = cycle_breakdown(auto)
    parts = [part / auto.cycles for part in (spent.idle, spent.activation, spent.fill, spent.refresh, spent.readout)]
    cells = "".join(f"{part:>{width}.1%}" for part, width in zip(parts, (7, 6, 7, 6, 6), strict=True))
    print(
        f"{name_of(problem):34}{published:>10}{plus.cycles:>10}{newton.cycles:>10}{auto.cycles:>10}"
        f"{auto.bound_cycles:>10}{auto.utilisation:>7.1%} {cells}  {auto.mapping.order}"
    )
    return newton.cycles, auto.cycles


def geometric_mean(ratios: Iterable[float]) -> float:
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs))


def print_table(target: Target, timing: str) -> None:
    search = searching(target.pim, timing)
    print(f"\nlayers of the published table, timing {timing}\n{HEADER}")
    complete: list[tuple[float, float]] = []
    every: list[tuple[float, float]] = []
    for problem, cycles, whole in published_layers():
        newton, auto = print_layer(problem, search, f"{cycles}{' ' if whole else '*'}")
        every.append((newton / cycles, auto / cycles))
        complete += every[-1:] if whole else []
    if timing != "artifact":
        print(f"geometric mean of auto / newton++: {geometric_mean(auto / newton for newton, auto in every):.3f}")
        return
    for what, ratios in (("complete rows", complete), ("all rows", every)):
        newton_mean, auto_mean = (geometric_mean(column) for column in zip(*ratios, strict=True))
        slower = sum(newton > 1 for newton, _ in ratios)
        print(
            f"{len(ratios)} {what}: newton++ / published {newton_mean:.3f} (slower on {slower}), "
            f"auto / published {auto_mean:.3f}, auto / newton++ {auto_mean / newton_mean:.3f}"
        )


def print_others(target: Target, timing: str) -> None:
    search = searching(target.pim, timing)
    print(f"\nlayers of no table, timing {timing}\n{HEADER}")
    ratios = []
    for problem in other_layers():
        newton, auto = print_layer(problem, search)
        ratios.append(auto / newton)
    print(f"geometric mean of auto / newton++: {geometric_mean(ratios):.3f}")


def print_knobs(target: Target, timing: str) -> None:
    machines: dict[str, dict[str, Any]] = {
        "as it is": {},
        "2 buffers a channel": {"buffers_per_channel": 2},
        "any slot, any column": {"any_slot_any_column": True},
        "both": {"buffers_per_channel": 2, "any_slot_any_column": True},
        "16 channel groups": {"buffers": 16},
    }
    print(f"\nwhat hardware would bring under `auto`, timing {timing}: cycles\n{'layer':34}", end="")
    print("".join(f"{name:>22}" for name in machines))
    variants = [searching(replace(target.pim, **changes), timing) for changes in machines.values()]
    for problem in other_layers():
        row = [cost_of(problem, variant, "auto").cycles for variant in variants]
        print(f"{name_of(problem):34}" + "".join(f"{cycles:>22}" for cycles in row))


def model_layers(name: str) -> list[ConvProblem]:
    graph = load_model(pimflow_zoo.build(name))
    problems = (matrix_problem(graph, node) for node in graph.nodes if node.kind == "Conv")
    return [problem for problem in problems if isinstance(problem, ConvProblem)]


def splits(problem: ConvProblem) -> Iterator[ConvProblem]:
    """The first 10 %, 20 %, .. 100 % of the output rows."""
    top, left, bottom, right = problem.pads
    for tenth in range(1, 11):
        rows = max(1, round(problem.out_h * tenth / 10))
        needed = (rows - 1) * problem.strides[0] + problem.dilations[0] * (problem.kernel[0] - 1) + 1
        below = max(0, min(needed - top - problem.in_h, bottom))
        yield replace(problem, in_h=min(needed - top, problem.in_h), pads=(top, left, below, right))


def print_times(target: Target, timing: str) -> None:
    print(f"\nseconds to price all convolutions at 10 split ratios, timing {timing}")
    machines = [searching(replace(target.pim, buffers=buffers), timing) for buffers in (1, 2, 4)]
    for model in ("mobilenet-v2", "vgg-16"):
        layers = model_layers(model)
        for policy, used in (("newton++", machines), ("auto", machines[-1:])):
            work = [(split, machine) for layer in layers for split in splits(layer) for machine in used]
            distinct = len({(split, machine.profile.pim.buffers) for split, machine in work})
            start = time.perf_counter()
            for split, machine in work:
                cost_of(split, machine, policy)
            seconds = time.perf_counter() - start
            print(f"{model:14}{policy:10}{len(work):6} layers, {distinct:4} distinct: {seconds:6.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="pimflow")
    parser.add_argument("--timing", default="artifact", choices=("artifact", "strict"))
    for part in ("table", "others", "knobs", "times"):
        parser.add_argument(f"--{part}", action="store_true")
    arguments = parser.parse_args()
    target = load_target(arguments.target)
    parts = {"times": print_times, "table": print_table, "others": print_others, "knobs": print_knobs}
    chosen = [part for part in parts if getattr(arguments, part)] or list(parts)
    for part in chosen:
        parts[part](target, arguments.timing)


if __name__ == "__main__":
    main()
