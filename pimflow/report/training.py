"""A training step, and how the activations that it saves are handled."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any, Literal

from pimflow.records import dataclass
from pimflow.report.records import Records, Row
from pimflow.report.summary import CUT_SHORT
from pimflow.report.tables import render_table
from pimflow.runtime.offload.channel import Kind
from pimflow.runtime.offload.run import Run, SimulatedPlan, Trip, recomputed_before, simulate
from pimflow.runtime.offload.trace import Trace
from pimflow.sparse.memory import size_text
from pimflow.targets import TargetRecord
from pimflow.targets.schema.memory import Ssd

Activations = Literal["auto", "keep", "offload", "recompute", "rule"]
"""What may be done with activations: the best for each, nothing, one of the two, or SSDTrain's rule."""

_DAY_US = 24 * 3600 * 1e6
_YEAR_DAYS = 365.0
_MB, _TB = 1e6, 1e12


@dataclass(frozen=True)
class Endurance:
    """The wear of the drives due to a step's stores.

    Args:
        written_bytes: bytes written per step.
        tb_a_day: terabytes written per day if only such steps run.
        years: time until the rated endurance of the drives is reached; None if nothing is written.
    """

    written_bytes: int
    tb_a_day: float
    years: float | None

    @classmethod
    def of(cls, run: Run, trace: Trace, ssd: Ssd) -> Endurance:
        """The wear due to steps that run one after the other."""
        written = run.bytes_of("store", trace)
        tb_a_day = written / _TB * _DAY_US / run.time_us if run.time_us else 0.0
        return cls(written, tb_a_day, ssd.endurance_tb_written / tb_a_day / _YEAR_DAYS if tb_a_day else None)


@dataclass(frozen=True, repr=False)
class Training(Records):
    """A training step on a machine, a row per saved activation.

    Args:
        model: the name it was given by.
        model_sha256: digest of its bytes.
        machine: the machine.
        gpu_basis: what the GPU's times are based on.
        loss, optimiser: as given to `train`.
        activations: what may be done with them, as given to `train`.
        trace: the kernels and buffers of the step.
        found: the plan and its simulation.
        parameters: number of trained elements.
        state_bytes: weights, gradients, the optimiser's state, inputs and results.
        available_bytes: GPU memory that is left for activations; None if the machine does not say.
        state_missing_bytes: what the GPU's memory lacks for the state alone.
        endurance: endurance of the drives; None without SSDs.
        complete: whether the search ended by itself rather than running out of its time budget.
    """

    model: str
    model_sha256: str
    machine: TargetRecord
    gpu_basis: str
    loss: str
    optimiser: str
    activations: Activations
    trace: Trace
    found: SimulatedPlan
    parameters: int
    state_bytes: int
    available_bytes: int | None
    state_missing_bytes: int
    endurance: Endurance | None
    complete: bool = True

    @property
    def kept(self) -> Run:
        """The step with all activations kept."""
        return simulate(self.trace, type(self.found.plan)())

    @property
    def fits(self) -> bool:
        """Whether activations fit at their peak, in addition to the state."""
        return self.missing_bytes == self.state_missing_bytes == 0

    @property
    def missing_bytes(self) -> int:
        """The memory that is missing for activations."""
        return 0 if self.available_bytes is None else max(0, self.found.run.peak_bytes - self.available_bytes)

    @property
    def title(self) -> str:
        """The model, the machine, and the peak."""
        return f"{self.model} trained on {self.machine.name}: activations take {size_text(self.found.run.peak_bytes)}"

    def records(self) -> list[Row]:
        """A row per saved activation, in the order in which they are computed; times from the start of the step."""
        return activation_rows(self.trace, self.found)

    def as_json(self) -> dict[str, Any]:
        """Plain values, with a row per saved activation, and the kernels and buffers of the step for a replay."""
        trace, run, kept = self.trace, self.found.run, self.kept
        endurance = self.endurance
        return {
            "model": self.model,
            "model_sha256": self.model_sha256,
            "target": self.machine.name,
            "machine": self.machine.as_json(),
            "gpu_basis": self.gpu_basis,
            "loss": self.loss,
            "optimiser": self.optimiser,
            "nodes": {"forward": trace.turn, "backward": len(trace.kernels) - trace.turn},
            "parameters": self.parameters,
            "state_bytes": self.state_bytes,
            "available_bytes": self.available_bytes,
            "fits": self.fits,
            "missing_bytes": self.missing_bytes,
            "state_missing_bytes": self.state_missing_bytes,
            "least_bytes": trace.working_set_bytes,
            "kept": {
                "time_us": kept.time_us,
                "forward_us": trace.forward_us,
                "peak_bytes": kept.peak_bytes,
                "saved_bytes": trace.saved_bytes,
            },
            "plan": {
                "activations": self.activations,
                "time_us": run.time_us,
                "stall_us": run.stall_us,
                "recompute_us": run.recompute_us,
                "slowed_us": run.slowed_us,
                "peak_bytes": run.peak_bytes,
                "peak_us": run.peak_us,
                "limit_bytes": self.found.plan.limit_bytes,
                "offloaded_bytes": self._bytes(self.found.plan.offloaded),
                "recomputed_bytes": self._bytes(self.found.plan.recomputed),
                "complete": self.complete,
            },
            "ssd": None
            if endurance is None
            else {
                "written_bytes": endurance.written_bytes,
                "tb_a_day": endurance.tb_a_day,
                "years": endurance.years,
            },
            "saved": self.records(),
            "buffers": [{"name": item.name, "bytes": item.bytes, "fixed": item.fixed} for item in trace.buffers],
            "kernels": [
                {
                    "name": kernel.name,
                    "time_us": kernel.time_us,
                    "reads": self._names(kernel.reads),
                    "writes": self._names(kernel.writes),
                }
                for kernel in trace.kernels
            ],
        }

    def _names(self, buffers: Iterable[int]) -> list[str]:
        return [self.trace.buffers[buffer].name for buffer in buffers]

    def _bytes(self, buffers: Iterable[int]) -> int:
        return sum(self.trace.buffers[buffer].bytes for buffer in buffers)

    def text(self) -> str:
        """A table of the saved activations, and the figures."""
        return "\n".join([self._table(), "", *self._figures()])

    def _figures(self) -> list[str]:
        trace, run, kept = self.trace, self.found.run, self.kept
        less = 100 * (run.peak_bytes / kept.peak_bytes - 1) if kept.peak_bytes else 0.0
        slower = 100 * (run.time_us / kept.time_us - 1) if kept.time_us else 0.0
        backward = len(trace.kernels) - trace.turn
        saved = f"{size_text(trace.saved_bytes)} in {len(trace.saved)} activations"
        state = f"{size_text(self.state_bytes)} with gradients, state, inputs and results"
        planned = f"peak {size_text(run.peak_bytes)} ({less:+.1f} %), step {_ms(run.time_us)} ({slower:+.1f} %)"
        waits = f"waits {_ms(run.stall_us)}, recomputes {_ms(run.recompute_us)}, slowed by {_ms(run.slowed_us)}"
        lines = [
            self.title,
            f"  step          {_ms(kept.time_us)} with all activations kept, {_ms(trace.forward_us)} of it forward",
            f"  nodes         {trace.turn} forward, {backward} backward",
            f"  parameters    {self.parameters:,}; {state}",
            f"  saved         {saved}; at the peak {size_text(kept.peak_bytes)} are alive",
            f"  {self.activations:12s}  {planned}: {waits}",
        ]
        if self.available_bytes is not None:
            lines.append(f"  GPU memory    {self._verdict(self.available_bytes)}")
        if self.endurance is not None:
            lines.append(f"  SSD           {_life(self.endurance)}")
        if not self.complete:
            lines.append(f"  search        the best plan so far{CUT_SHORT}")
        return lines

    def _verdict(self, available_bytes: int) -> str:
        """Whether the activations fit, and what is missing."""
        if self.state_missing_bytes:
            alone = f"gradients, state, inputs and results alone do not fit, {size_text(self.state_missing_bytes)}"
            return f"weights, {alone} are missing, and {size_text(self.found.run.peak_bytes)} more for activations"
        verdict = "fit" if self.fits else f"do not fit, {size_text(self.missing_bytes)} are missing{self._needed()}"
        return f"{size_text(available_bytes)} are left for activations: they {verdict}"

    def _needed(self) -> str:
        """The memory that one kernel needs, if that alone is too much."""
        least = self.trace.working_set_bytes
        if self.available_bytes is None or least <= self.available_bytes:
            return ""
        return f" (no plan fits: one kernel alone reads and writes {size_text(least)})"

    def _table(self) -> str:
        rows = [
            (
                row["name"],
                f"{row['bytes'] / _MB:,.2f}",
                f"{row['made_us'] / 1e3:,.3f}",
                f"{row['read_us'] / 1e3:,.3f}",
                row["becomes"],
                _span(row["store_us"]),
                _span(row["load_us"]),
            )
            for row in self.records()
        ]
        columns = ("saved", "MB", "made ms", "read ms", "becomes", "stored ms", "loaded ms")
        return render_table(columns, rows)


def activation_rows(trace: Trace, found: SimulatedPlan) -> list[Row]:
    """A row for each time that a saved activation leaves, or for one that stays, in the order in which they are
    computed; times from the start of the step.

    An offloaded activation is requested when the kernel `before` is about to start; a recomputed one is then computed
    by the kernels in `again`. A replay needs no more than this. If kernels run in another order, a row is a result of a
    kernel that runs again, and `before` is its next reader: a replay then needs that order too.
    """
    if found.plan.order:
        return _recomputed_rows(trace, found)
    trips: dict[int, list[Trip]] = {}
    for trip in sorted(found.plan.trips(trace), key=lambda trip: trip.next_use):
        trips.setdefault(trip.buffer, []).append(trip)
    again = recomputed_before(trace, found.plan.recomputed)
    rows = [
        (trace.last_write(buffer), buffer, _kept_row(trace, found, buffer, again.get(buffer)))
        for buffer in trace.saved
        if buffer not in trips
    ]
    rows += [
        (trip.last_write, buffer, _offloaded_row(trace, found, trip, before))
        for buffer, some in trips.items()
        for before, trip in pairwise((None, *some))
        if trip is not None
    ]
    return [row for _, _, row in sorted(rows, key=itemgetter(0, 1))]


def _recomputed_rows(trace: Trace, found: SimulatedPlan) -> list[Row]:
    """A row for every value that a kernel computes again, in order."""
    kernels = [trace.kernels[place] for place in found.plan.order]
    ends = list(accumulate(kernel.time_us for kernel in kernels))
    again = [step for step, place in enumerate(found.plan.order) if place in found.plan.order[:step]]
    rows = []
    for run, buffer in ((step, buffer) for step in again for buffer in kernels[step].writes):
        reader = next((later for later in range(run + 1, len(kernels)) if buffer in kernels[later].reads), None)
        if reader is not None:
            place, before = found.plan.order[run], kernels[reader].name
            row = _row(trace, found.run, buffer, (place, place), "recomputed", before, [kernels[run].name])
            rows.append(row | {"made_us": ends[run], "read_us": ends[reader - 1]})
    return rows


def _kept_row(trace: Trace, found: SimulatedPlan, buffer: int, again: int | None) -> Row:
    """The row of an activation that is kept, or recomputed before a kernel."""
    becomes, before = ("kept", None) if again is None else ("recomputed", trace.kernels[again].name)
    chain = [trace.kernels[place].name for place in found.plan.recomputed.get(buffer, ())]
    return _row(
        trace, found.run, buffer, (trace.last_write(buffer), trace.first_backward_use(buffer)), becomes, before, chain
    )


def _offloaded_row(trace: Trace, found: SimulatedPlan, trip: Trip, last: Trip | None) -> Row:
    """The row of one trip of an offloaded activation; unchanged content is not stored again."""
    run = found.run
    stored = (
        run.ends_us[trip.last_write]
        if last is None
        else max(run.ends_us[trip.last_write], run.starts_us[last.next_use])
    )
    spans: dict[Kind, float] = {"store": stored, "load": run.ends_us[trip.last_use]}
    moved = {
        transfer.kind: [transfer.begin_us, transfer.end_us]
        for transfer in run.transfers
        if transfer.buffer == trip.buffer and spans[transfer.kind] <= transfer.begin_us <= run.starts_us[trip.next_use]
    }
    before = trace.kernels[trip.load_before].name
    return _row(trace, run, trip.buffer, (trip.last_write, trip.next_use), "offloaded", before, []) | {
        f"{kind}_us": moved.get(kind) for kind in spans
    }


def _row(
    trace: Trace, run: Run, buffer: int, stay: tuple[int, int], becomes: str, before: str | None, again: list[str]
) -> Row:
    made, returns = stay
    return {
        "name": trace.buffers[buffer].name,
        "bytes": trace.buffers[buffer].bytes,
        "made_us": run.ends_us[made],
        "read_us": run.starts_us[returns],
        "becomes": becomes,
        "before": before,
        "again": again,
        "store_us": None,
        "load_us": None,
    }


def _ms(time_us: float) -> str:
    return f"{time_us / 1e3:,.3f} ms"


def _span(times: list[float] | None) -> str:
    return "" if times is None else f"{times[0] / 1e3:,.3f} - {times[1] / 1e3:,.3f}"


def _life(endurance: Endurance) -> str:
    if endurance.years is None:
        return "nothing is written"
    a_step = f"{size_text(endurance.written_bytes)} written per step, {endurance.tb_a_day:,.1f} TB per day"
    return f"{a_step}: {endurance.years:,.1f} years until the rated endurance of the drives is reached"
