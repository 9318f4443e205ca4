"""Reports on activations that do not fit: lines, JSON, slices of a trace, notes on nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from pimflow.ir import Graph, Node
from pimflow.report.records import Row
from pimflow.report.slices import complete, named, steps
from pimflow.report.training import activation_rows
from pimflow.runtime.memory.plan import MemoryPlan
from pimflow.runtime.memory.tiers import gigabytes, gpu_bytes
from pimflow.runtime.offload.schedule import SSD, SpilledSchedule
from pimflow.runtime.offload.spill import Spill

TAG = "spill"
"""The key of notes on nodes."""


def spilled_memory_text(spill: Spill, memory: MemoryPlan) -> str:
    """The use of the GPU's memory if the spill makes everything fit."""
    taken, usable = spill.arena_bytes + memory.weight_bytes, spill.room_bytes + memory.weight_bytes
    kept = f"with all kept, they would take {gigabytes(gpu_bytes(memory))}"
    return f"{gigabytes(taken)} of {gigabytes(usable)} taken, weights and activations at their peak; {kept}"


def spill_text(spill: Spill) -> str:
    """How activations are handled, and what that costs, in one line."""
    run, plan = spill.found.run, spill.found.plan
    moved, again = len(plan.offloaded), len(plan.recomputed)
    if not moved and not again and not spill.executed:
        return f"all {len(spill.trace.saved)} kept: nothing that was tried reduces the peak{_bounded(spill)}"
    verdict = "" if spill.fits else f", the minimum that was found{_bounded(spill)}"
    written = f" ({gigabytes(run.bytes_of('store', spill.trace))} written)" if moved else ""
    costs = f"waits {run.stall_us:,.1f}, recomputes {run.recompute_us:,.1f}, slowed by {run.slowed_us:,.1f} us"
    count = len({*spill.trace.saved, *plan.offloaded, *plan.recomputed})
    done = f"of {count}, {moved} offloaded{written} and {again} recomputed"
    done += ", steps in another order" if spill.executed else ""
    return f"{done}: {gigabytes(spill.arena_bytes)} at their peak{verdict}; {run.time_us:,.1f} us: {costs}"


def _bounded(spill: Spill) -> str:
    """The lower bound on the memory, and whether it makes fitting impossible."""
    taken, room = gigabytes(spill.lower_bound.bytes), gigabytes(spill.room_bytes)
    if spill.is_impossible:
        return f" (impossible: {spill.lower_bound.step} needs {taken}, {room} are available)"
    return f" (it is unknown whether less is possible; {spill.lower_bound.step} needs {taken})"


def spill_json(spill: Spill, schedule: SpilledSchedule) -> dict[str, Any]:
    """The spill as plain values, with its energy, and a row for each activation that is moved or recomputed."""
    run = spill.found.run
    rows = _moved_rows(spill)
    return {
        "fits": spill.fits,
        "arena_bytes": spill.arena_bytes,
        "room_bytes": spill.room_bytes,
        "limit_bytes": spill.limit_bytes,
        "least_bytes": spill.lower_bound.bytes,
        "least_step": spill.lower_bound.step,
        "order": list(spill.executed),
        "time_us": run.time_us,
        "stall_us": run.stall_us,
        "recompute_us": run.recompute_us,
        "slowed_us": run.slowed_us,
        "written_bytes": run.bytes_of("store", spill.trace),
        "energy_mj": schedule.total_energy_mj,
        "energy_by_place_mj": dict(schedule.energy_mj),
        "activations": rows,
    }


def _moved_rows(spill: Spill) -> list[Row]:
    return [row for row in activation_rows(spill.trace, spill.found) if row["becomes"] != "kept"]


def marked(graph: Graph, spill: Spill) -> Graph:
    """The graph with a note on every node whose result is moved or recomputed, which says how and when."""
    notes: dict[str, str] = {}
    for row in _moved_rows(spill):
        notes[row["name"]] = "; ".join(filter(None, (notes.get(row["name"]), _note(row))))
    return graph.replace(nodes=[_annotated(node, notes) for node in graph.nodes])


def _note(row: Row) -> str:
    if row["becomes"] == "offloaded":
        return f"offloaded, loaded again before {row['before']}"
    return f"recomputed before {row['before']} by {', '.join(row['again'])}"


def _annotated(node: Node, notes: Mapping[str, str]) -> Node:
    texts = [notes[name] for name in node.outputs if name in notes]
    tags = (*((key, text) for key, text in node.tags if key != TAG), *((TAG, text) for text in texts[:1]))
    return node if tags == node.tags else replace(node, tags=tags)


def spilled_slices(
    spill: Spill, schedule: SpilledSchedule, titles: Mapping[str, str], process: int, most: int
) -> Iterator[dict[str, Any]]:
    """The schedule as slices of a Chrome trace, and live bytes: a process with a track per resource.

    Args:
        spill: how the activations are handled.
        schedule: when everything runs.
        titles: the title of every device.
        process: its number in the trace.
        most: the maximum number of slices; the first ones are shown.
    """
    shown = [event for event in schedule.events if event.end_us > event.start_us]
    resources = [*titles, *sorted({event.resource for event in shown} - {*titles})]
    tracks = {resource: track for track, resource in enumerate(resources, start=1)}
    yield named("process_name", process, None, "activations leave and come back")
    for resource, track in tracks.items():
        yield named("thread_name", process, track, titles.get(resource, "SSD" if resource == SSD else resource))
    for event in islice(shown, most):
        name = event.name if event.kind == "run" else f"{event.name}, {event.kind}"
        args: dict[str, Any] = {"energy_mj": event.energy_mj}
        if event.kind in ("store", "load"):
            args["bytes"] = event.bytes
        yield complete(name, event.kind, (process, tracks[event.resource]), event.start_us, event.end_us, args)
    alive = sum(buffer.bytes for buffer in spill.trace.buffers if buffer.fixed)
    levels = [(0.0, alive)]
    for moment in spill.found.run.log:
        alive += moment.bytes
        levels += [(moment.time_us, alive)] if moment.bytes else []
    yield from steps("live bytes", process, levels)
