"""Makes docs/gnn-epoch.md: PyTorch-Direct's placements on graphs of the sizes that it was evaluated on, next to the
published figures.

    python benchmarks/epoch_results.py [--batches 4]   # about two minutes, 1 GB

Published (Min et al., PyTorch-Direct, 2021, abstract): transfers -47.1 % on average, training up to 1.6x, power -12.4
to -17.5 %, all relative to features that the CPU gathers and copies. Epochs of Reddit are read off a chart in the
system's repository (github.com/K-Wu/pytorch-direct_dgl, docs/reddit.png), to about 0.1 s.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from pimflow.gnn.loop import sample_epoch
from pimflow.gnn.sampled_epoch import Loader, SampledEpoch
from pimflow.gnn.workloads import WORKLOADS
from pimflow.report.epoch import Epoch
from pimflow.runtime.costs import CostModel
from pimflow.runtime.features import FeatureAccess, Placement, TableRead
from pimflow.sparse.host_rows import HostRows
from pimflow.targets import Target, load_target, override

PAGE = Path(__file__).parent.parent / "docs" / "gnn-epoch.md"
MEASURED = Path(__file__).parent.parent / "tests" / "data" / "measured" / "h200.json"
TEMPLATE = Path(__file__).with_name("epoch_template.md")
MACHINE = "rtx3090"
READ, GATHERED = "zero-copy", "gather-pageable"
MODELS: Mapping[str, int] = {"sage": 256, "gat": 64}
"""Networks, and the columns between their layers."""
EXAMPLE_HIDDEN = (
    16  # from the example that the system's repository trains: dgl, graphsage/train_sampling_pytorch_direct.py
)
FAN_OUTS, BATCH = (25, 10), 1000  # from the same example

ASSUMED: Mapping[str, str] = {
    "memory.host.gather_gb_per_s": "gathering by all threads",
    "memory.pcie.pageable_gb_per_s": "copies from pageable memory",
    "memory.host.sampled_edges_per_us": "sampling by the loader",
    "memory.host.step_us": "Python of a step",
    "memory.host.idle_w": "host, idle",
    "gpu.energy.static_w": "GPU, idle with its clocks up",
    "memory.host.gather_w": "CPU while it gathers",
    "memory.host.spin_us": "how long its threads then spin",
    "memory.host.spin_w": "what they draw while they spin",
    "memory.host.sampling_w": "CPU while it samples",
    "memory.host.issuing_w": "the thread that issues kernels",
    "memory.pcie.reading_w": "GPU while it reads",
    "memory.pcie.pj_per_byte": "the link, per byte",
}
"""Parameters of the machine that have no source or a vague one, and what they describe."""
FACTORS = (0.5, 2.0)
PCIE_4 = {
    "memory.pcie.copy_gb_per_s": 24.6,
    "memory.pcie.zero_copy_gb_per_s": 24,
    "memory.pcie.outstanding_requests": 768,
    "memory.pcie.pageable_gb_per_s": 8,
}
OPENMP_WAIT_US = 200_000.0  # KMP_DEFAULT_BLOCKTIME of LLVM's and Intel's OpenMP runtimes
WAITING_W: Mapping[str, float] = {
    "3960X, package, placing: 10.8 W for 5.1 threads": 49,
    "3970X, wall, against GNU's OpenMP: 87 W for both threads of 31 cores": 64,
    "**3960X, package, routing: 78.4 W for 25.4 threads** (the target's)": 71,
    "nothing: priced like a gather": 110,
    "3970X, wall, against idle: 168 W for 32 cores": 121,
    "3960X, package, routing, if a second thread on a core drew nothing": 142,
}
"""Power of 23 busy-waiting threads, from measurements on CPUs of the architecture; the page names their sources."""


@dataclass(frozen=True)
class Charted:
    """An epoch of Reddit, from the repository's chart: seconds over PCIe 3.0 and 4.0."""

    what: str
    placement: str
    loader: Loader
    seconds: tuple[float, float]


CHART = (
    Charted("features in the GPU's memory", "resident", "sampling", (2.15, 2.15)),
    Charted("gathered and copied, as DGL does it", GATHERED, "sampling", (7.8, 7.35)),
    Charted("read, batch after batch", READ, "sampling", (5.85, 4.0)),
    Charted("read while the previous batch trains (MPS)", READ, "all", (4.35, 2.75)),
)


@dataclass(frozen=True)
class Headline:
    """The figures of the abstract: mean change of transfers in percent, epoch speedups, change of power in percent."""

    transfers: float
    epochs: tuple[float, float]
    power: tuple[float, float]

    @classmethod
    def of(cls, found: Iterable[Epoch]) -> Headline:
        """The figures over all graphs and networks: reads from the GPU, relative to gathered and copied features."""
        transfers, epochs, power = zip(*(one.against(READ, GATHERED) for one in found), strict=True)
        return cls(mean(transfers), (min(epochs), max(epochs)), (max(power), min(power)))

    @property
    def cells(self) -> tuple[str, str, str]:
        """As text."""
        epochs, power = self.epochs, self.power
        ends = (f"{epochs[0]:.2f}x to {epochs[1]:.2f}x", f"{power[0]:+.1f} to {power[1]:+.1f} %")
        return (f"{self.transfers:+.1f} %", *ends)


def sampled_epochs(batches: int) -> dict[tuple[str, str], SampledEpoch]:
    """All graphs with both networks, drawn once."""
    machine = load_target(MACHINE)
    return {
        (graph, model): sampled(graph, model, hidden, machine, batches)
        for graph in WORKLOADS
        for model, hidden in MODELS.items()
    }


def sampled(graph: str, model: str, hidden: int, machine: Target, batches: int) -> SampledEpoch:
    """One graph with one network."""
    amounts: dict[str, Any] = {"features": None, "classes": None, "train": None, "seed": 0}
    return sample_epoch(
        graph, model, machine, fan_outs=FAN_OUTS, batch=BATCH, hidden=hidden, batches=batches, **amounts
    )


def graph_row(graph: str, found: Sequence[Epoch]) -> str:
    """The row of one graph, with both networks."""
    sage, gat = (one.against(READ, GATHERED) for one in found)
    gathered, read = (found[0][placement].transfer_us / 1e3 for placement in (GATHERED, READ))
    loop = found[0].loop
    return _row(
        graph,
        f"{loop.features} ({loop.feature_bytes / 1e9:.1f} GB)",
        f"{gathered:.1f}, {read:.1f}",
        f"{sage[0]:+.1f} %",
        *(f"{one[1]:.2f}x" for one in (sage, gat)),
        *(f"{one[2]:+.1f} %" for one in (sage, gat)),
        f"{found[0].against(READ, 'gather')[0]:+.1f} %",
    )


def other_rows(drawn: Mapping[tuple[str, str], SampledEpoch]) -> Iterable[str]:
    """Every assumed parameter halved and doubled; then other ways to run the loop."""
    machine = load_target(MACHINE)

    def on(values: Mapping[str, float], some: Iterable[SampledEpoch] = tuple(drawn.values())) -> tuple[str, str, str]:
        other = override(machine, values)
        return Headline.of(one.on(other) for one in some).cells

    yield _row("as in the target", "", *on({}))
    for key, what in ASSUMED.items():
        value = machine.values[key]
        for factor in FACTORS:
            yield _row(what, f"`{key}` = {value * factor:g}", *on({key: value * factor}))
    for factor in FACTORS:
        yield _row("kernels of a step", f"x {factor:g}", *on({}, [_with_steps(one, factor) for one in drawn.values()]))
    yield _row(
        "threads spin as in LLVM's OpenMP",
        f"`memory.host.spin_us` = {OPENMP_WAIT_US:g}",
        *on({"memory.host.spin_us": OPENMP_WAIT_US}),
    )
    yield _row(
        "batches read while others train",
        "`--loader all`",
        *on({}, [replace(one, loader="all") for one in drawn.values()]),
    )
    yield _row("PCIe 4.0", "see below", *on(PCIE_4))


def request_rows() -> Iterable[str]:
    """Requests and bytes of sectors per random row."""
    index = np.random.default_rng(0).integers(0, 10**6, 40_000)
    for row_bytes in (400, 516, 2052, 2408):
        plain, rotated = (HostRows(row_bytes, shifted=shifted).requests(index) for shifted in (False, True))
        counts = [f"{found.requests / len(index):.1f}" for found in (plain, rotated)]
        sizes = [f"{32 * found.sectors / len(index):,.0f}" for found in (plain, rotated)]
        yield _row(f"{row_bytes:,}", *counts, str(-(-row_bytes // 128)), *sizes)


def measured_rows(measured: Mapping[str, Any]) -> Iterable[str]:
    """Transfers of the batches that were measured, predicted for random rows of the same table."""
    for graph, found in measured.items():
        for placement, one in found["placements"].items():
            predicted_us = predicted_transfer_us(found, placement)
            off = round(100 * (predicted_us / one["transfer_us"] - 1))
            cells = (f"{one['transfer_us']:,.0f}", f"{predicted_us:,.0f}", f"{off:+d} %")
            yield _row(
                graph,
                f"{4 * found['columns']:,}",
                f"`{placement}`",
                *cells,
                f"{one['batch_us']:,.0f}",
                f"{one['board']['w']:.0f} W",
            )


def predicted_transfer_us(found: Mapping[str, Any], placement: Placement) -> float:
    """The median over the batches that were measured."""
    machine = load_target("h200")
    access = FeatureAccess(machine, CostModel(machine).host_only().host)
    random, row_bytes = np.random.default_rng(0), 4 * found["columns"]
    table_rows = found["table_rows"]
    reads = (random.choice(table_rows, rows, replace=False) for rows in found["rows"])
    return median(
        access.cost(placement, TableRead(index, row_bytes, 4, table_bytes=table_rows * row_bytes)).time_us
        for index in reads
    )


def step_times_us(measured: Mapping[str, Any]) -> Iterable[tuple[float, float]]:
    """Kernels of the step of each graph's first batch, in fp32: measured and predicted."""
    machine = override("h200", {"gpu.operand": "fp32"})
    for graph, found in measured.items():
        (drawn,) = sampled(graph, "sage", MODELS["sage"], machine, 1).drawn
        yield found["kernels_us"], drawn.step.time_us


def measured_ratios(measured: Mapping[str, Any]) -> dict[str, str]:
    """How long batches with reads take relative to others, and the board's power with and without reads."""
    placed = [found["placements"] for found in measured.values()]

    def spread(values: Iterable[float], form: str) -> str:
        ordered = sorted(values)
        return f"{ordered[0]:{form}} to {ordered[-1]:{form}}"

    def parts(other: str) -> str:
        return spread((100 * one[READ]["batch_us"] / one[other]["batch_us"] for one in placed), ".0f") + " %"

    def watts(placement: str) -> str:
        return spread((one[placement]["board"]["w"] for one in placed), ".0f")

    return {
        "faster_default": parts(GATHERED),
        "faster_locked": parts("gather"),
        "board": f"{watts(READ)} W instead of {watts(GATHERED)} W",
    }


def waiting_rows(drawn: Iterable[SampledEpoch]) -> Iterable[str]:
    """Power depending on what waiting threads draw: asleep after the target's time, or awake for the whole batch."""
    some = tuple(drawn)
    for what, watts in WAITING_W.items():
        values = {"memory.host.spin_w": watts}
        machines = [override(MACHINE, {**values, **more}) for more in ({}, {"memory.host.spin_us": OPENMP_WAIT_US})]
        powers = [Headline.of(one.on(machine) for one in some).cells[2] for machine in machines]
        yield _row(what, f"{watts:g} W", *powers)


def _with_steps(drawn: SampledEpoch, factor: float) -> SampledEpoch:
    """The sampled epoch with a GPU whose kernels take `factor` times as long at the same power."""

    def scaled(one: float) -> float:
        return one * factor

    batches = [
        replace(
            one,
            step=replace(
                one.step,
                forward_us=scaled(one.step.forward_us),
                backward_us=scaled(one.step.backward_us),
                update_us=scaled(one.step.update_us),
                energy_mj=scaled(one.step.energy_mj),
            ),
        )
        for one in drawn.drawn
    ]
    return replace(drawn, drawn=tuple(batches))


def chart_rows(batches: int) -> Iterable[str]:
    """Epochs of Reddit next to the chart, over both links."""
    machines = [override(MACHINE, values) for values in ({}, PCIE_4)]
    drawn = sampled("reddit", "sage", EXAMPLE_HIDDEN, machines[0], batches)
    for charted in CHART:
        ours = [replace(drawn, loader=charted.loader).on(machine)[charted.placement].epoch_s for machine in machines]
        cells = (f"{seconds:.2f} s" for pair in zip(charted.seconds, ours, strict=True) for seconds in pair)
        yield _row(charted.what, *cells)


def page(batches: int, say: Callable[[str], None] = print) -> str:
    """The whole page."""
    drawn = sampled_epochs(batches)
    say(f"drew {len(drawn)} epochs")
    machine = load_target(MACHINE)
    found = {key: one.on(machine) for key, one in drawn.items()}
    headline = Headline.of(found.values())
    pinned = mean(found[graph, "sage"].against(READ, "gather")[0] for graph in WORKLOADS)
    twitter = drawn["twitter7", "sage"].on(override(machine, PCIE_4)).against(READ, GATHERED)[0]
    awake = Headline.of(one.on(override(machine, {"memory.host.spin_us": OPENMP_WAIT_US})) for one in drawn.values())
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))["epochs"]
    return TEMPLATE.read_text(encoding="utf-8").format(
        batches=batches,
        rows="\n".join(request_rows()),
        measured="\n".join(measured_rows(measured)),
        **measured_ratios(measured),
        steps=", ".join(f"{ours:,.0f} ({real:,.0f})" for real, ours in step_times_us(measured)),
        graphs="\n".join(graph_row(graph, [found[graph, model] for model in MODELS]) for graph in WORKLOADS),
        transfers=headline.cells[0],
        epochs=headline.cells[1],
        power=headline.cells[2],
        pinned=f"{pinned:+.1f} %",
        others="\n".join(other_rows(drawn)),
        chart="\n".join(chart_rows(batches)),
        awake=awake.cells[2],
        waiting="\n".join(waiting_rows(drawn.values())),
        pcie_4=" ".join(f"--set {key}={value:g}" for key, value in PCIE_4.items()),
        twitter_pcie_4=f"{-twitter:.1f} %",
    )


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=4)
    PAGE.write_text(page(parser.parse_args().batches), encoding="utf-8")


if __name__ == "__main__":
    main()
