"""How long the search takes, with a cold and with a warm price cache, and whether its predictions hold.

    python benchmarks/bench_search.py [MODEL ...] [--policies P,P] [--prove]
    python benchmarks/bench_search.py --compile [zoo:MODEL | FILE.onnx ...] [--runs N]

For every model of the zoo (all by default) and policy: seconds cold (first run, empty price cache) and warm (second
run), candidates, predicted time, and the relative difference to the timeline of the whole rewritten graph; with --prove
also that to the integer program's optimum. The first line names the machine.
Exits with 1 if a difference exceeds 1e-9 (1e-6 for the integer program, whose solver works to tolerances).

With --compile: user CPU seconds of `pimflow compile MODEL` under `auto` on one core, in a separate process from start
to end, next to the target times. First with an empty cache, then with the cache that the first run left, and then for a
machine with other launch costs: all candidates are priced again, but known mappings are not timed again. Python has
already compiled the sources, as for an installed package. With several runs, each with a cache of its own: the minima
and, in parentheses, the medians.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from machine import here

import pimflow_zoo
from pimflow.compiled import Machine
from pimflow.frontend import load_model
from pimflow.ir import Graph
from pimflow.options import Options
from pimflow.passes import CLEANUP, PassManager
from pimflow.runtime.timeline import build_timeline
from pimflow.search import policies
from pimflow.search.price_cache import PriceCache
from pimflow.search.pricing import rewrites
from pimflow.search.solver import cache_scope, prove, solve
from pimflow.targets import load_target

COLD_TARGETS_S = {"zoo:mobilenet-v2": 1.5, "zoo:vgg-16": 2.5, "zoo:densenet-121": 6.0, "zoo:bert-base-128": 4.0}
"""Target user CPU seconds; for a Whisper encoder, which is given as a file, the target is 10."""
WARM_TARGET_S = 0.8
NEW_LAUNCH = "gpu.launch_cycles=6000"


def compile_seconds(model: str, folder: Path, bytecode: Path) -> list[float]:
    """User CPU seconds of a compilation with an empty cache, of a second one, and of one with another launch cost."""
    spent = []
    one_core = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    folders = {"PIMFLOW_CACHE_DIR": str(folder / "cache"), "PYTHONPYCACHEPREFIX": str(bytecode)}
    environment = {**os.environ, **one_core, **folders}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    program = "import sys; from pimflow.__main__ import run; sys.exit(run())"  # like the program `pimflow`
    command = [sys.executable, "-c", program, "compile", "-q"]
    subprocess.run([*command, "zoo:toy", "--no-cache", "-o", str(folder / "first")], check=True, env=environment)
    for run, changed in (("cold", []), ("warm", []), ("launch", ["--set", NEW_LAUNCH])):
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        subprocess.run([*command, model, *changed, "-o", str(folder / run)], check=True, env=environment)
        spent.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)
    return spent


def compile_times(models: list[str], runs: int) -> None:
    """Print a line for every model."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print("model                          cold s  aim       warm s  aim     launch s")
    for model in models or list(COLD_TARGETS_S):
        with tempfile.TemporaryDirectory() as folder:
            folders = [Path(folder, str(run)) for run in range(runs)]
            spent = [compile_seconds(model, own, Path(folder, "bytecode")) for own in folders]
        cold, warm, launch = (shown(seconds) for seconds in zip(*spent, strict=True))
        aim = f"{COLD_TARGETS_S[model]:.1f}" if model in COLD_TARGETS_S else ""
        print(f"{Path(model).name:24} {cold:>12} {aim:>4} {warm:>12} {WARM_TARGET_S:4.1f} {launch:>12}", flush=True)


def shown(seconds: tuple[float, ...]) -> str:
    """The minimum of some runs and, in parentheses, their median; the seconds alone if there is one run."""
    return f"{min(seconds):.2f}" + f" ({median(seconds):.2f})" * (len(seconds) > 1)


def clean_graph(model: str) -> Graph:
    return PassManager(CLEANUP).run(load_model(pimflow_zoo.build(model))).graph


def measure(graph: Graph, policy: str, folder: Path) -> tuple[str, float]:
    """A line of figures, and the relative difference between plan and timeline."""
    seconds = []
    for _ in ("cold", "warm"):
        machine = Machine(load_target("pimflow"))
        start = time.perf_counter()
        prices = PriceCache(folder, cache_scope(machine.costs))
        plan = solve(graph, Options(policy=policy), costs=machine.costs, prices=prices)
        seconds.append(time.perf_counter() - start)
    rewritten = PassManager(rewrites(plan, machine.costs)).run(graph).graph
    makespan = build_timeline(rewritten, machine.target, machine.costs.serving(rewritten)).makespan_us
    difference = abs(makespan - plan.predicted_us) / makespan
    speedup = plan.baseline_us / plan.predicted_us
    line = (
        f"{policy:10} {seconds[0]:7.2f} {seconds[1]:7.2f} {plan.candidates:7} {plan.predicted_us:10.1f} {speedup:7.3f}"
    )
    return f"{line} {difference:9.1e}", difference


def proof(graph: Graph, policy: str) -> float:
    """Relative difference between the dynamic program's optimum and the integer program's."""
    machine = Machine(load_target("pimflow"))
    by_chain, by_program = prove(graph, Options(policy=policy), costs=machine.costs)
    return abs(by_chain - by_program) / by_chain


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--policies", default=",".join(policies()))
    parser.add_argument("--prove", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--runs", type=int, default=1)
    arguments = parser.parse_args()
    print(here())
    if arguments.compile:
        compile_times(arguments.models, arguments.runs)
        return 0
    worst = worst_proof = 0.0
    for model in arguments.models or list(pimflow_zoo.names()):
        graph = clean_graph(model)
        print(f"\n{model}: {len(graph.nodes)} nodes")
        print("policy      cold s  warm s  priced  predicted us speedup   timeline" + "  program" * arguments.prove)
        for policy in arguments.policies.split(","):
            with tempfile.TemporaryDirectory() as folder:
                line, difference = measure(graph, policy, Path(folder))
            worst = max(worst, difference)
            if arguments.prove:
                gap = proof(graph, policy)
                worst_proof = max(worst_proof, gap)
                line += f" {gap:8.1e}"
            print(line, flush=True)
    print(f"\nlargest difference to the timeline: {worst:.1e}; to the integer program: {worst_proof:.1e}")
    return int(worst > 1e-9 or worst_proof > 1e-6)


if __name__ == "__main__":
    sys.exit(main())
