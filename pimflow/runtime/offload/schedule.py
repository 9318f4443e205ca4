"""The schedule and the energy of a compiled model whose activations do not all fit.

Each execution of a kernel spends its usual energy; if transfers slow it down, the GPU draws its busy power for the
additional time. A transfer costs the power of the drives while they read or write, and the energy of its bytes on the
link and in the GPU's memory (`[memory.ssd]` and the GPU's energies in the target). Idle drives draw power throughout
the run if any activation is moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Literal

from pimflow.records import dataclass
from pimflow.runtime.offload.channel import Kind
from pimflow.runtime.offload.run import Rerun
from pimflow.runtime.offload.spill import Spill
from pimflow.runtime.spending import STATIC, EventCost, Schedule
from pimflow.targets import Target
from pimflow.targets.schema.memory import Ssd

SSD = "ssd"
"""The resource of transfers."""


@dataclass(frozen=True, slots=True)
class SpilledEvent:
    """One use of a device, of a link, or of the SSDs.

    Args:
        name: name of the node, or of the value that is moved.
        kind: whether a node runs or runs again, or a value is stored or loaded.
        resource: the resource in use.
        start_us, end_us: start and end of the use.
        energy_mj: energy without static power and the power of idle drives.
        bytes: bytes that are moved.
    """

    name: str
    kind: Literal["run", "again"] | Kind
    resource: str
    start_us: float
    end_us: float
    energy_mj: float
    bytes: int = 0


@dataclass(frozen=True)
class SpilledSchedule:
    """Events by start time, and energy by place: that of the board under `STATIC`, that of idle drives under `SSD`."""

    events: tuple[SpilledEvent, ...]
    makespan_us: float
    energy_mj: Mapping[str, float]

    @property
    def total_energy_mj(self) -> float:
        """The total energy including static energy."""
        return sum(self.energy_mj.values())


def spilled_schedule(spill: Spill, kept: Schedule, target: Target, static_mj: float) -> SpilledSchedule:
    """The schedule of a model whose activations do not all fit.

    Args:
        spill: the plan for the activations.
        kept: the schedule with all of them kept; its regions are the steps of `spill`.
        target: the machine.
        static_mj: static energy of the board over the run time of `spill`.
    """
    run = spill.found.run
    runs = [Rerun(place, *span) for place, span in enumerate(zip(run.starts_us, run.ends_us, strict=True))]
    uses = list(_uses(spill, runs, "run", kept, target))
    uses += _uses(spill, run.reruns, "again", kept, target)
    moved = list(_moved(spill, target))
    energy = dict.fromkeys(kept.timeline.energy_mj, 0.0) | {STATIC: static_mj}
    if moved:
        energy[SSD] = _drives(target).idle_w * run.time_us * 1e-3
    events = sorted((*uses, *moved), key=lambda event: (event.start_us, event.end_us))
    for event in events:
        energy[event.resource] = energy.get(event.resource, 0.0) + event.energy_mj
    return SpilledSchedule(tuple(events), run.time_us, energy)


def _uses(
    spill: Spill, runs: Sequence[Rerun], kind: Literal["run", "again"], kept: Schedule, target: Target
) -> Iterator[SpilledEvent]:
    """The events of the steps at the times of `runs`; if a step takes longer, all its events are stretched evenly.

    Inputs and results have no events.
    """
    lengths = kept.timeline.region_us
    begins = [0.0, *accumulate(lengths)]
    steps: list[list[EventCost]] = [[] for _ in lengths]
    for cost in kept.events:
        steps[cost.event.region].append(cost)
    for step in runs:
        place = spill.step_of(step.place)
        if place is None:
            continue
        slower = (step.end_us - step.begin_us) / lengths[place] if lengths[place] else 1.0
        for cost in steps[place]:
            event = cost.event
            start, end = (step.begin_us + (us - begins[place]) * slower for us in (event.start_us, event.end_us))
            energy_mj = sum(cost.energy_parts_mj.values())
            if slower > 1 and cost.place == target.host:
                longer_us = (end - start) - (event.end_us - event.start_us)
                energy_mj += target.any_gpu.energy.busy_w * longer_us * 1e-3
            yield SpilledEvent(event.node, kind, cost.place, start, end, energy_mj)


def _moved(spill: Spill, target: Target) -> Iterator[SpilledEvent]:
    """The events of stores and loads."""
    for transfer in spill.found.run.transfers:
        drives, buffer = _drives(target), spill.trace.buffers[transfer.buffer]
        busy_mj = drives.busy_w * (transfer.end_us - transfer.begin_us) * 1e-3
        byte_pj = drives.pj_per_byte + target.any_gpu.energy.dram_pj_per_byte
        energy_mj = busy_mj + buffer.bytes * byte_pj * 1e-9
        yield SpilledEvent(buffer.name, transfer.kind, SSD, transfer.begin_us, transfer.end_us, energy_mj, buffer.bytes)


def _drives(target: Target) -> Ssd:
    """The drives of a machine that moves activations."""
    assert target.memory is not None
    assert target.memory.ssd is not None
    return target.memory.ssd
