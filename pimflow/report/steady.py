"""The report on a steady state: interval, latency, inferences in flight, memory; and its schedule as a trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from pimflow.errors import counted
from pimflow.records import dataclass
from pimflow.report.plan_report import PlanReport
from pimflow.report.slices import complete, named
from pimflow.report.tables import megabytes, number
from pimflow.runtime.memory.in_flight import MemoryInFlight
from pimflow.runtime.spending import STATIC
from pimflow.runtime.steady_state import TICKS_PER_US, SteadyState
from pimflow.runtime.timeline import NO_RESOURCE

_REPEATS = 3
"""The number of intervals in the steady state that are shown between the pipeline's filling and draining."""


@dataclass(frozen=True)
class SteadyReport:
    """A steady state in figures.

    Args:
        interval_us: between two inferences.
        latency_us: of one inference, from its start to its end.
        in_flight: the maximum number of inferences at once.
        inferences_per_s: one in every interval.
        speedup: over the host alone, one inference after the other.
        bound_us: a lower bound on the interval of any plan: all work divided evenly, or the host alone.
        bound_ratio: the interval over that bound.
        busy_us: how long each resource works on one inference.
        energy_mj: of one inference, including static power over the interval.
        arena_bytes: activations of all inferences in flight.
        most_copies: the maximum number of copies of any region of the arena.
        rest_us: the part of the interval in which the busiest resource idles, because the memory holds no more
            inferences at once.
    """

    interval_us: float
    latency_us: float
    in_flight: int
    inferences_per_s: float
    speedup: float
    bound_us: float
    bound_ratio: float
    busy_us: Mapping[str, float]
    energy_mj: float
    arena_bytes: int
    most_copies: int
    rest_us: float

    @classmethod
    def of(cls, steady: SteadyState, memory: MemoryInFlight, report: PlanReport) -> SteadyReport:
        """The report on a schedule and its arena, given the report on one inference alone."""
        bound, alone, baseline_us = report.bound, report.result, report.baseline.time_us
        static_mj = sum(alone.spent.energy_parts_mj.get(STATIC, {}).values())
        interval_us = steady.interval_us
        bound_us = min(max(bound.load_us, bound.transfer_us), bound.host_us)
        return cls(
            interval_us,
            steady.latency_us,
            steady.in_flight,
            1e6 / interval_us if interval_us else 0.0,
            baseline_us / interval_us if interval_us else 1.0,
            bound_us,
            interval_us / bound_us if bound_us else 1.0,
            steady.busy_us,
            alone.energy_mj - static_mj + static_mj * (interval_us / alone.time_us if alone.time_us else 0.0),
            memory.arena_bytes,
            memory.most_copies,
            max(0.0, interval_us - max(steady.busy_us.values(), default=0.0)),
        )

    def as_json(self) -> dict[str, Any]:
        """One JSON object."""
        return asdict(self)

    def lines(self, host: str) -> list[tuple[str, str]]:
        """The report for readers: (label, text)."""
        count = counted(self.in_flight, "inference")
        rate = f"{number(self.inferences_per_s, 0)} per second"
        gain = f"{self.speedup:.2f}x the {host.upper()} alone"
        copies = "one copy" if self.most_copies == 1 else f"up to {self.most_copies} copies"
        memory = f"{megabytes(self.arena_bytes)}, in {copies} of each value"
        busy = ", ".join(f"{name.upper()} {number(us)} us" for name, us in sorted(self.busy_us.items())) or "nothing"
        rest = f"the busiest idles for {number(self.rest_us)} us of it, as the GPU's memory holds no more in flight"
        return [
            ("interval", f"{number(self.interval_us)} us between inferences, {rate}: {gain}"),
            ("busy", f"{busy} of it; an inference spends {number(self.energy_mj, 2)} mJ"),
            *([("rests", rest)] if self.rest_us else []),
            ("bound", f"interval within {self.bound_ratio:.2f}x of the bound, {number(self.bound_us)} us"),
            (
                "in flight",
                f"{count} of {number(self.latency_us)} us each; their activations take {memory}",
            ),
        ]


def shown_inferences(steady: SteadyState) -> int:
    """The number of inferences that shows how the pipeline fills, repeats, and drains."""
    return steady.in_flight + _REPEATS - 1


def steady_slices(steady: SteadyState, titles: Mapping[str, str], process: int, most: int) -> Iterator[dict[str, Any]]:
    """The schedule of some inferences as slices of a Chrome trace: a process with a track per resource.

    Args:
        steady: the schedule.
        titles: the title of every device.
        process: its number in the trace.
        most: the maximum number of slices; the first ones are shown.
    """
    resources = sorted(steady.busy_us)
    tracks = {resource: track for track, resource in enumerate(resources, start=2)}
    yield named("process_name", process, None, "several inferences in flight")
    for resource, track in (("phase", 1), *tracks.items()):
        yield named("thread_name", process, track, titles.get(resource, resource))
    count = shown_inferences(steady)
    full, drained = (steady.in_flight - 1) * steady.interval, count * steady.interval
    end = (count - 1) * steady.interval + steady.latency
    for name, start, stop in (("fill", 0, full), ("steady state", full, drained), ("drain", drained, end)):
        if stop > start:
            yield complete(name, "phase", (process, 1), start / TICKS_PER_US, stop / TICKS_PER_US, {})
    shown = ((turn, slot) for turn, slot in steady.unrolled(count) if slot.resource != NO_RESOURCE)
    for (turn, slot), _ in zip(shown, range(most), strict=False):
        name = f"{slot.node}, inference {turn}"
        span = (slot.start / TICKS_PER_US, slot.end / TICKS_PER_US)
        yield complete(name, "in flight", (process, tracks[slot.resource]), *span, {})
