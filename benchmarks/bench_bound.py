"""The gap between plans and the lower bound on their makespan, for twenty models: makes docs/bounds.md.

    python benchmarks/bench_bound.py                        # policies pimflow and auto, on two machines
    python benchmarks/bench_bound.py --policies pimflow     # without auto's search, about a minute of CPU time
    python benchmarks/bench_bound.py --models toy --print   # one model, and nothing is written
    python benchmarks/bench_bound.py --kept lines.jsonl     # models in the file are not measured again

With `--kept`, an interrupted run continues where it stopped, and several runs with different `--models` may share the
work; lines measured with other code are ignored. Times of the bound are CPU seconds of one run, next to those of the
search.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

from pimflow.bundle.source import model_source
from pimflow.compiler import clean_graph
from pimflow.data import decode, encode
from pimflow.ir import Graph
from pimflow.options import Options
from pimflow.runtime.costs import CostModel
from pimflow.search.makespan_bound import MakespanBound, makespan_bound
from pimflow.search.price_cache import code_fingerprint
from pimflow.search.solver import solve
from pimflow.targets import load_target

PAGE = Path(__file__).parent.parent / "docs" / "bounds.md"
MODELS = (
    *("mobilenet-v2", "mobilenet-v3-small", "mobilenet-v3-large", "mnasnet-0.5", "mnasnet-1.0", "mnasnet-1.3"),
    *("efficientnet-b0", "resnet-18", "resnet-34", "resnet-50", "resnext-50", "regnet-x-400mf", "regnet-y-400mf"),
    *("squeezenet-1.0", "squeezenet-1.1", "shufflenet-v2", "googlenet", "convnext-tiny", "bert-base-32", "vgg-16"),
)
TEXT = """# Plans beside their bounds

For each model, a lower bound on the time of any plan
([architecture.md](architecture.md#one-way-to-price-a-candidate)), and the plans of some policies with their ratio
to the bound. Made by `python benchmarks/bench_bound.py{options}`.

{tables}

The column "by" says which argument gives the bound: "load" spreads the work of all nodes, at their best rates,
evenly over host and units; "path" is the longest chain of dependent nodes; "meeting" adds up nodes that all others
wait for, alone or in pipelines, and what runs between them; "host" is the host alone with all memory channels. The
time of a unit is bounded by arithmetic (for Newton, the COMPs and what must come between them) rather than by existing
mappings, and launches and synchronisations count only where no plan can avoid them. Part of the gap is therefore due
to the bound, which lets one pipeline over the whole model overlap everything, on PIM row by row.
"""


@dataclass(frozen=True)
class Line:
    """One model: the bound, its CPU seconds, and for every policy the plan's time and the search's CPU seconds."""

    model: str
    bound: MakespanBound
    bound_s: float
    plans: tuple[tuple[float, float], ...]

    @property
    def ratios(self) -> list[float]:
        """The plans' times over the bound."""
        return [self.bound.ratio(time_us) for time_us, _ in self.plans]


@dataclass(frozen=True)
class CachedLine:
    """A stored line, with everything that it depends on apart from the zoo."""

    code: str
    target: str
    policies: tuple[str, ...]
    line: Line


def cached_lines(path: Path | None, target: str, policies: tuple[str, ...]) -> dict[str, Line]:
    """The lines of a file that were measured with this code, by model."""
    if path is None or not path.exists():
        return {}
    entries = [decode(CachedLine, json.loads(text)) for text in path.read_text(encoding="utf-8").splitlines()]
    key = (code_fingerprint(), target, policies)
    return {entry.line.model: entry.line for entry in entries if (entry.code, entry.target, entry.policies) == key}


def measured_lines(models: Sequence[str], target: str, policies: tuple[str, ...], path: Path | None) -> list[Line]:
    """One line per model; each is stored as soon as it is measured."""
    costs, lines = CostModel(load_target(target)), cached_lines(path, target, policies)
    for model in models:
        if model in lines:
            continue
        lines[model] = measured(model, policies, costs)
        if path is not None:
            entry = CachedLine(code_fingerprint(), target, policies, lines[model])
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(encode(entry)) + "\n")
    return [lines[model] for model in models]


def measured(model: str, policies: Sequence[str], costs: CostModel) -> Line:
    """A model of the zoo under every policy; all searches start with a cold cache."""
    options = Options.of(target=costs.target, use_cache=False)
    graph = clean_graph(model_source(f"zoo:{model}"), options).graph
    plans = tuple(searched(graph, policy, CostModel(costs.target)) for policy in policies)
    host_us = solve(graph, Options.of(target=costs.target, policy="gpu", use_cache=False), costs=costs).baseline_us
    started = time.process_time()
    bound = makespan_bound(graph, costs, host_us)
    return Line(model, bound, time.process_time() - started, plans)


def searched(graph: Graph, policy: str, costs: CostModel) -> tuple[float, float]:
    """The time of a policy's plan in us, and its search in CPU seconds."""
    started = time.process_time()
    plan = solve(graph, Options.of(target=costs.target, policy=policy, use_cache=False), costs=costs)
    return plan.predicted_us, time.process_time() - started


def rows(lines: Sequence[Line], policies: Sequence[str]) -> Iterator[list[str]]:
    """The rows of the table: the heading first, the means last."""
    yield [
        "model",
        "bound us",
        "by",
        "bound s",
        *(word for name in policies for word in (f"{name} us", "ratio", "search s")),
    ]
    yield ["---", "---:", "---", "---:", *("---:",) * (3 * len(policies))]
    for line in lines:
        plans = zip(line.plans, line.ratios, strict=True)
        cells = [cell for (us, s), ratio in plans for cell in (f"{us:,.1f}", f"{ratio:.2f}", f"{s:.2f}")]
        yield [line.model, f"{line.bound.time_us:,.1f}", line.bound.binding, f"{line.bound_s:.2f}", *cells]
    means = [geometric_mean(ratios) for ratios in zip(*(line.ratios for line in lines), strict=True)]
    yield ["geometric mean", "", "", "", *(cell for mean in means for cell in ("", f"{mean:.2f}", ""))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--policies", default="pimflow,auto")
    parser.add_argument("--targets", default="pimflow,turing-pim")
    parser.add_argument("--print", action="store_true", dest="only_prints", help="print the table, and write nothing")
    parser.add_argument("--kept", type=Path, help="a file of measured lines to continue from")
    arguments = parser.parse_args()
    policies, models = tuple(arguments.policies.split(",")), arguments.models.split(",")
    tables = []
    for target in arguments.targets.split(","):
        lines = measured_lines(models, target, policies, arguments.kept)
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows(lines, policies))
        tables.append(f"## On `{target}`\n\n{table}")
    if arguments.only_prints:
        print("\n\n".join(tables))
        return
    options = "" if arguments.policies == "pimflow,auto" else f" --policies {arguments.policies}"
    PAGE.write_text(TEXT.format(options=options, tables="\n\n".join(tables)), encoding="utf-8")


if __name__ == "__main__":
    main()
