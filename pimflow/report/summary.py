"""The table and the totals that `pimflow compile` prints."""

from __future__ import annotations

from collections import Counter

from pimflow.ir import Plan
from pimflow.report.plan_report import NodeRow, PlanReport
from pimflow.report.tables import number, render_table
from pimflow.runtime.memory import MemoryPlan

_HEADER = ("step", "node", "op", "runs on", "PIM share", "GPU us", "PIM us", "time us")
_PLACES = {"gpu": "GPU", "pim": "PIM", "md-dp": "GPU + PIM", "pipeline": "pipeline"}


def summary_text(title: str, plan: Plan, report: PlanReport, memory: MemoryPlan, *, verbose: bool = False) -> str:
    """The table of nodes and the totals; `verbose` shows nodes that cost nothing too, and a column with the reasons.

    A step is a decision of the plan: what shares one runs at the same time.
    """
    shown = [row for row in report.nodes if verbose or row.time_us > 0]
    header = (*_HEADER, "why") if verbose else _HEADER
    table = render_table(header, [_row(row, verbose) for row in shown], right=(0, 4, 5, 6, 7))
    hidden = len(report.nodes) - len(shown)
    note = f"\n({hidden} nodes that cost nothing, fused or free, are not shown; -v shows them)" if hidden else ""
    kept = _kept(memory) if verbose else ""
    return f"{table}{note}\n{kept}\n{_totals(title, plan, report, memory)}"


def _row(row: NodeRow, verbose: bool) -> tuple[str, ...]:
    share = f"{100 * row.pim_fraction:.0f} %" if row.pim_fraction else "-"
    cells = (
        str(row.region + 1),
        row.name,
        row.op,
        _place(row),
        share,
        number(row.gpu_us or None),
        number(row.pim_us or None),
        number(row.time_us),
    )
    return (*cells, row.why) if verbose else cells


def _place(row: NodeRow) -> str:
    if row.mode != "pipeline":
        return _PLACES[row.mode]
    return "PIM, pipelined" if row.pim_fraction else "GPU, pipelined"


def _totals(title: str, plan: Plan, report: PlanReport, memory: MemoryPlan) -> str:
    baseline, result = report.baseline, report.result
    modes = Counter(str(row.mode) for row in report.nodes if row.time_us > 0)
    placed = ", ".join(f"{modes[mode]} {_PLACES[mode]}" for mode in _PLACES if modes[mode])
    saved = 100 * (result.energy_mj / baseline.energy_mj - 1) if baseline.energy_mj else 0.0
    lines = [
        ("model", title),
        ("nodes", placed or "none"),
        ("time", f"{number(result.time_us)} us (GPU alone: {number(baseline.time_us)} us)"),
        ("speedup", f"{report.speedup:.2f}x end to end, {report.conv_speedup:.2f}x over convolutions"),
        (
            "energy",
            f"{number(result.energy_mj, 2)} mJ (GPU alone: {number(baseline.energy_mj, 2)} mJ, {saved:+.0f} %)",
        ),
        (
            "memory",
            f"{number(memory.arena_bytes / 1e6)} MB of activations at peak, without reuse "
            f"{number(memory.bytes_without_reuse / 1e6)} MB; {number(memory.weight_bytes / 1e6)} MB of weights",
        ),
        ("movement", _movement(memory)),
        ("search", f"{number(plan.candidates, 0)} candidates{_seconds(plan)}"),
    ]
    return "\n".join(f"{name:<9} {text}" for name, text in lines)


def _seconds(plan: Plan) -> str:
    """How long the search took; a plan that was read back does not know."""
    return f" in {plan.search_seconds:.2f} s" if plan.search_seconds else ""


def _movement(memory: MemoryPlan) -> str:
    free, kept = len(memory.eliminated), memory.kept
    text = f"{free} of {free + len(kept)} Slice, Pad, Concat and view nodes cost nothing"
    bytes_moved = sum(movement.bytes for movement in kept.values())
    return f"{text}, the others move {number(bytes_moved / 1e6, 2)} MB" if kept else text


def _kept(memory: MemoryPlan) -> str:
    """The movements that are kept, each with its bytes and the reason."""
    lines = [f"{name}: {number(move.bytes / 1e3)} kB: {move.reason}" for name, move in memory.kept.items()]
    return "\n".join(["", "kept movements", *lines, ""]) if lines else ""
