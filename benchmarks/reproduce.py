"""Reproduces PIMFlow's evaluation and writes docs/results.md with its charts, in minutes on two cores.

    python benchmarks/reproduce.py [--jobs 2] [--fresh] [--only STUDY ...]

Every study is a list of jobs: a model on a machine under some policies. A job's result is stored in build/reproduce,
under a name made from the job and from all code and data that costs depend on: an interrupted run continues where it
stopped.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import results_charts
import results_page
from fit_gpu import with_fit
from machine import here
from results_cache import cache_path, cached

import pimflow
import pimflow_zoo
from pimflow.bundle.source import model_source
from pimflow.compiled import Machine
from pimflow.compiler import clean_graph
from pimflow.ir import Conv2d
from pimflow.options import Options
from pimflow.report.basis import MEASURED_TARGET
from pimflow.targets import Target, load_target
from pimflow.targets.overrides import override
from pimflow.targets.schema.newton import PimEnergies
from pimflow_zoo.transformer import encoder

ROOT = Path(__file__).resolve().parent.parent

MODELS = ("mobilenet-v2", "efficientnet-b0", "mnasnet-1.0", "resnet-50", "vgg-16")
LARGE = "efficientnet-b6"
POLICIES = ("newton+", "newton++", "md-dp", "pipeline", "pimflow", "auto")
PUBLISHED_POLICIES = POLICIES[:-1]
MEASURED_POLICIES = ("newton++", "pimflow", "auto")
TOKENS = (1, 16, 64, 128)
LAYERS = 2  # of BERT base's twelve layers, which are all alike
# Values that were fitted to a few published figures, and values that the paper's machine assumes.
SENSITIVITY = (
    *("gpu.step_cycles", "gpu.fill_cycles", "gpu.matrix_efficiency", "gpu.depthwise_macs_per_sm_cycle"),
    *("gpu.conv_launches", "gpu.launch_cycles", "gpu.channel_gb_per_s", "gpu.energy.busy_w"),
    *("gpu.energy.operation_pj", "gpu.energy.dram_pj_per_byte", "pim.energy.strict.transfer_pj_per_byte"),
)
FACTORS = (0.5, 2.0)
PIM_LAUNCHES_US = (1.0, 3.66)  # the second is the GPU's own
CHANNELS = (4, 8, 12, 16, 20, 24)
BUFFERS = (1, 2, 4)
STAGES = (2, 3, 4, 5)
BUSY_WATTS = (24.0, 95.0)  # half and twice what the target file assumes
# Other optima of the search (fit_gpu.py --starts 14 --steps 600), to see how much predictions move along the valley.
NEAR_FITS = (
    {
        "step_cycles": 1736.0,
        "fill_cycles": 1425.0,
        "matrix_efficiency": 0.3465,
        "depthwise_macs_per_sm_cycle": 2.463,
    },
    {
        "step_cycles": 1715.0,
        "fill_cycles": 1958.0,
        "matrix_efficiency": 0.3985,
        "depthwise_macs_per_sm_cycle": 2.561,
    },
    {
        "step_cycles": 1639.0,
        "fill_cycles": 2756.0,
        "matrix_efficiency": 0.4266,
        "depthwise_macs_per_sm_cycle": 2.773,
    },
)

Record = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One model on one machine under some policies."""

    study: str
    model: str
    policies: tuple[str, ...]
    timing: str = "artifact"
    channels: int | None = None
    buffers: int | None = None
    stages: int | None = None
    near_fit: int | None = None
    busy_w: float | None = None
    asymmetric_padding: bool | None = None
    machine: str = "pimflow"
    pim_launch_us: float | None = None
    scaled: str | None = None
    factor: float | None = None

    def target(self) -> Target:
        """The machine with this job's overrides."""
        target = load_target(self.machine)
        target = override(target, timing=self.timing, pim_channels=self.channels)
        if self.buffers is not None:
            target = override(target, buffers=self.buffers)
        if self.near_fit is not None:
            target = target.with_units(gpu=with_fit(target.gpu, NEAR_FITS[self.near_fit]))
        if self.asymmetric_padding is not None:
            target = target.with_units(gpu=replace(target.gpu, asymmetric_padding=self.asymmetric_padding))
        if self.pim_launch_us is not None:
            target = target.with_units(pim=replace(target.pim, launch_us=self.pim_launch_us))
        if self.busy_w is not None:
            energy = replace(target.gpu.energy, busy_w=self.busy_w)
            target = target.with_units(gpu=replace(target.gpu, energy=energy))
        if self.scaled is not None and self.factor is not None:
            target = _scaled(target, self.scaled, self.factor)
        return target


def _scaled(target: Target, path: str, factor: float) -> Target:
    """The target with one number multiplied."""
    device, key = path.split(".", 1)
    return target.with_units(**{device: _scaled_in(target.units[device], key, factor)})


def _scaled_in(spec: Any, path: str, factor: float) -> Any:
    key, _, rest = path.partition(".")
    if isinstance(spec, PimEnergies):
        return spec.with_tables(**{key: _scaled_in(getattr(spec, key), rest, factor)})
    value = getattr(spec, key)
    if rest:
        return replace(spec, **{key: _scaled_in(value, rest, factor)})
    return replace(spec, **{key: type(value)(value * factor)})


def all_jobs() -> list[Job]:
    """Every job, the longest first, so that the processes end at about the same time."""
    jobs = [Job("strict", model, ("auto",), timing="strict") for model in MODELS]
    jobs += [
        Job("sensitivity", model, ("pimflow", "auto"), timing="strict", scaled=path, factor=factor)
        for path in SENSITIVITY
        for factor in FACTORS
        for model in MODELS
    ]
    jobs += [
        Job("pim-launch", model, ("pimflow", "auto"), timing="strict", pim_launch_us=launch_us)
        for launch_us in PIM_LAUNCHES_US
        for model in MODELS
    ]
    jobs += [
        Job("transformer", f"encoder-{LAYERS}x{tokens}", MEASURED_POLICIES, timing="strict", machine=machine)
        for machine in ("pimflow", MEASURED_TARGET)
        for tokens in TOKENS
    ]
    jobs += [Job("policies", model, ("auto",)) for model in MODELS]
    jobs += [Job("policies", model, (policy,)) for policy in PUBLISHED_POLICIES for model in MODELS]
    jobs += [Job("strict", model, (policy,), timing="strict") for policy in PUBLISHED_POLICIES for model in MODELS]
    jobs += [Job("size", LARGE, ("newton++", "pimflow"))]
    jobs += [
        Job("measured-gpu", model, MEASURED_POLICIES, timing=timing, machine=MEASURED_TARGET)
        for timing in ("artifact", "strict")
        for model in MODELS
    ]
    jobs += [
        Job("free-launches", model, MEASURED_POLICIES, timing="strict", machine=MEASURED_TARGET, pim_launch_us=0.0)
        for model in MODELS
    ]
    jobs += [Job("channels", model, ("pimflow",), channels=count) for count in CHANNELS for model in MODELS]
    jobs += [Job("buffers", model, ("newton++", "pimflow"), buffers=count) for count in BUFFERS for model in MODELS]
    jobs += [Job("stages", model, ("pipeline", "pimflow"), stages=count) for count in STAGES for model in MODELS]
    jobs += [Job("power", model, ("pimflow",), busy_w=watts) for watts in BUSY_WATTS for model in MODELS]
    jobs += [Job("padding", model, ("md-dp", "pimflow", "auto"), asymmetric_padding=True) for model in MODELS]
    jobs += [
        Job("near-fits", model, ("newton++", "pimflow"), near_fit=index)
        for index in range(len(NEAR_FITS))
        for model in MODELS
    ]
    return jobs


@cache
def _model(name: str) -> bytes:
    if name.startswith("encoder-"):
        layers, tokens = map(int, name.removeprefix("encoder-").split("x"))
        encoder_bytes: bytes = encoder(layers, tokens).SerializeToString()
        return encoder_bytes
    data: bytes = pimflow_zoo.build(name).SerializeToString()
    return data


def _file(job: Job) -> Path:
    return cache_path(
        "reproduce", f"{job.study}-{job.model}", [asdict(job), NEAR_FITS if job.near_fit is not None else ""]
    )


def run(job: Job) -> list[Record]:
    """The job's results, one record per policy; read from its file if that exists."""
    records: list[Record] = cached(_file(job), lambda: _results(job))
    return records


def _results(job: Job) -> list[Record]:
    stages = None if job.stages is None else (job.stages,)
    started = time.perf_counter()
    found = pimflow.compare(
        _model(job.model), policies=job.policies, target=job.target(), stages=stages, use_cache=False
    )
    seconds = time.perf_counter() - started
    return [asdict(job) | result.as_json() | {"seconds": seconds} for result in found.policies]


def run_all(jobs: Iterable[Job], processes: int) -> list[Record]:
    """Results of all jobs, in the order of the jobs."""
    queue = list(jobs)
    started = time.perf_counter()
    results: dict[Job, list[Record]] = {}
    with ProcessPoolExecutor(processes) as pool:
        waiting = {pool.submit(run, job): job for job in queue}
        for done, future in enumerate(as_completed(waiting), 1):
            job = waiting[future]
            results[job] = future.result()
            elapsed = time.perf_counter() - started
            print(
                f"[{done}/{len(queue)}, {elapsed:.0f} s] {job.study} {job.model} {' '.join(job.policies)}", flush=True
            )
    return [record for job in queue for record in results[job]]


def product_share(model: str) -> float:
    """The share of the GPU's run time that 1x1 convolutions and matrix products take."""
    options = Options(use_cache=False)
    graph = clean_graph(model_source(_model(model)), options).graph
    costs = Machine(options.target).costs.host_only()
    times = {node.name: costs.node_cost(graph, node).time_us for node in graph.nodes}
    products = [
        node
        for node in graph.nodes
        if node.op.is_matrix_product or (isinstance(node.op, Conv2d) and node.op.kernel == (1, 1))
    ]
    return sum(times[node.name] for node in products) / sum(times.values())


def main() -> None:
    """Run what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--fresh", action="store_true", help="ignore the results of earlier runs")
    parser.add_argument("--only", nargs="+", metavar="STUDY", help="run these studies and write nothing")
    arguments = parser.parse_args()
    jobs = [job for job in all_jobs() if not arguments.only or job.study in arguments.only]
    if arguments.fresh:
        for job in jobs:
            _file(job).unlink(missing_ok=True)
    records = run_all(jobs, arguments.jobs)
    if arguments.only:
        return
    docs = ROOT / "docs"
    seconds = sum({(r["study"], r["model"], *_knobs(r)): r["seconds"] for r in records}.values())
    made = f"The last run took {seconds / 60:.1f} minutes, summed over its processes ({here()})."
    shares = {model: product_share(model) for model in MODELS}
    page = results_page.page(records, shares, NEAR_FITS, made)
    (docs / "results.md").write_text(page, encoding="utf-8")
    results_charts.draw(page)
    print(docs / "results.md")


KNOBS = (
    *("timing", "channels", "buffers", "stages", "near_fit", "busy_w"),
    *("asymmetric_padding", "machine", "pim_launch_us", "scaled", "factor"),
)


def _knobs(record: Record) -> tuple[Any, ...]:
    return tuple(record[name] for name in KNOBS) + tuple(record["policies"])


if __name__ == "__main__":
    main()
