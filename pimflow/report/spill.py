"""What people and programs are shown of activations that do not fit."""

from __future__ import annotations

from typing import Any

from pimflow.report.training import activation_rows
from pimflow.runtime.memory.plan import MemoryPlan
from pimflow.runtime.memory.tiers import gigabytes, gpu_bytes
from pimflow.runtime.offload.spill import Spill


def spilled_memory_text(spill: Spill, memory: MemoryPlan) -> str:
    """How much of the GPU's memory is taken where everything fits that way."""
    taken, usable = spill.arena_bytes + memory.weight_bytes, spill.room_bytes + memory.weight_bytes
    kept = f"all kept they would take {gigabytes(gpu_bytes(memory))}"
    return f"{gigabytes(taken)} of {gigabytes(usable)} taken, weights and activations at their peak; {kept}"


def spill_text(spill: Spill) -> str:
    """What becomes of them, and what that costs, in one line."""
    run, plan = spill.found.run, spill.found.plan
    moved, again = len(plan.offloaded), len(plan.recomputed)
    if not moved and not again:
        return f"all {len(spill.trace.saved)} kept: nothing that may be done makes them fit"
    verdict = "" if spill.fits else ", the least that was found"
    written = f" ({gigabytes(run.bytes_of('store', spill.trace))} written)" if moved else ""
    costs = f"waits {run.stall_us:,.1f}, recomputes {run.recompute_us:,.1f}, slowed by {run.slowed_us:,.1f} us"
    done = f"of {len(spill.trace.saved)}, {moved} offloaded{written} and {again} recomputed"
    return f"{done}: {gigabytes(spill.arena_bytes)} at their peak{verdict}; {run.time_us:,.1f} us: {costs}"


def spill_json(spill: Spill) -> dict[str, Any]:
    """The same as plain values, with a row for each of them that moves or is made again."""
    run = spill.found.run
    rows = activation_rows(spill.trace, spill.found)
    return {
        "fits": spill.fits,
        "arena_bytes": spill.arena_bytes,
        "room_bytes": spill.room_bytes,
        "time_us": run.time_us,
        "stall_us": run.stall_us,
        "recompute_us": run.recompute_us,
        "slowed_us": run.slowed_us,
        "written_bytes": run.bytes_of("store", spill.trace),
        "activations": [row for row in rows if row["becomes"] != "kept"],
    }
