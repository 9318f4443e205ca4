"""The table and the totals that `pimflow compile` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pimflow.errors import counted
from pimflow.ir import Plan
from pimflow.ir.plan import switches
from pimflow.report.node_rows import NodeRow
from pimflow.report.plan_report import PlanReport
from pimflow.report.tables import energies, megabytes, number, render_fields, render_table, wrapped
from pimflow.runtime.memory import MemoryPlan
from pimflow.runtime.timeline import CHANNELS

if TYPE_CHECKING:
    from pimflow.report.steady import SteadyReport
    from pimflow.runtime.offload.schedule import SpilledSchedule

_MAX_UNKNOWN = 5
_MAX_BOTTLENECKS = 3
CUT_SHORT = ", ended by the time budget: --time-budget none searches everything"
"""The remark on a search that was cut short."""


def summary_text(
    title: str,
    devices: Sequence[str],
    plan: Plan,
    report: PlanReport,
    memory: MemoryPlan,
    notes: Sequence[str] = (),
    *,
    about: Sequence[tuple[str, str]] = (),
    basis: str = "",
    verbose: bool = False,
    by: str | None = None,
    steady: SteadyReport | None = None,
    spilled: SpilledSchedule | None = None,
) -> str:
    """The table of nodes and the totals.

    A region is a decision of the plan, by its number in plan.json, model.onnx and the trace: the nodes of a region run
    at the same time. `devices` are the target's, the host first. `verbose` also shows nodes that cost nothing, a column
    with the reasons, the movements that remain, and `notes`: what the passes left unchanged. `about` are lines on the
    machine and the compilation. `basis` says what the speedup relates to. `steady` is the report of a throughput plan,
    `spilled` the schedule if activations leave the GPU's memory. With `by`, "energy" or "time", the tables show a
    breakdown of that instead.
    """
    if by is not None:
        from pimflow.report.breakdown import breakdown_text

        tables = breakdown_text(report, devices, by, verbose=verbose)
        return f"{tables}\n\n{_totals(title, devices, plan, report, memory, basis, about, steady, spilled)}"
    places = _places(report, devices)
    shown = [row for row in report.nodes if verbose or row.time_us > 0]
    names = [device.upper() for device in devices]
    header = ["region", "node", "op", "runs on", *(f"{name} share" for name in names[1:]), *(f"{n} us" for n in names)]
    header += ["time us", "why"] if verbose else ["time us"]
    right = (0, *range(4, 4 + 2 * len(devices)))
    rows = [_row(row, places[row.name], devices, verbose) for row in shown]
    table = render_table(header, rows, right=right, prose=verbose)
    hidden = len(report.nodes) - len(shown)
    nodes = counted(hidden, "node that costs nothing, fused or free, is", "nodes that cost nothing, fused or free, are")
    note = wrapped(f"({nodes} not shown; -v shows them)") if hidden else ""
    more = _kept(memory) + _left(notes) if verbose else ""
    table = f"{table}\n{note}" if hidden else table
    return f"{table}\n{more}\n{_totals(title, devices, plan, report, memory, basis, about, steady, spilled)}"


def _row(row: NodeRow, place: str, devices: Sequence[str], verbose: bool) -> tuple[str, ...]:
    cells = (
        str(row.region),
        row.name,
        row.op,
        place,
        *(f"{100 * row.fractions[device]:.0f} %" if row.fractions[device] else "-" for device in devices[1:]),
        *(number(row.busy_us[device] or None) for device in devices),
        number(row.time_us),
    )
    return (*cells, row.why) if verbose else cells


def _places(report: PlanReport, devices: Sequence[str]) -> dict[str, str]:
    """The table's text on where every node runs; followers of a split run where its halves do."""
    host, *units = devices
    sharing: dict[int, list[str]] = {}
    for row in report.nodes:
        sharing.setdefault(row.region, []).extend(unit for unit in units if row.fractions[unit])
    places = {}
    for row in report.nodes:
        own = [unit for unit in units if row.fractions[unit]]
        if row.mode == "pipeline":
            divided = own and sum(row.fractions.values()) < 1 and row.busy_us[host] > 0
            places[row.name] = f"{'both' if divided else (own or [host])[0].upper()}, pipelined"
        elif row.mode == "md-dp":
            places[row.name] = " + ".join(device.upper() for device in (host, *dict.fromkeys(sharing[row.region])))
        else:
            places[row.name] = row.mode.upper()
    return places


def _modes(report: PlanReport, places: Mapping[str, str]) -> Counter[str]:
    """The number of nodes with a cost, by the way they run."""
    costly = (row for row in report.nodes if row.time_us > 0)
    return Counter("pipeline" if row.mode == "pipeline" else places[row.name] for row in costly)


def _totals(
    title: str,
    devices: Sequence[str],
    plan: Plan,
    report: PlanReport,
    memory: MemoryPlan,
    basis: str,
    about: Sequence[tuple[str, str]],
    steady: SteadyReport | None,
    spilled: SpilledSchedule | None,
) -> str:
    baseline, result = report.baseline, report.result
    modes = _modes(report, _places(report, devices))
    order = [*(device.upper() for device in devices), *sorted(mode for mode in modes if " + " in mode), "pipeline"]
    placed = ", ".join(f"{modes[mode]} {mode}" for mode in order if modes[mode])
    alone = f"{devices[0].upper()} alone"
    apart = "" if steady is None else ", one inference after the other"
    moved = ""
    if spilled is not None:
        kept = " if all activations are kept"
        apart = f"{kept}, {number(spilled.makespan_us)} us as they are"
        moved = f"{kept}, {energies(spilled.total_energy_mj)[0]} as they are"
    saved = 100 * (result.energy_mj / baseline.energy_mj - 1) if baseline.energy_mj else 0.0
    energy, energy_alone = energies(result.energy_mj, baseline.energy_mj)
    speedups = f"{report.speedup:.2f}x end to end, {report.conv_speedup:.2f}x over convolutions"
    lines = [
        ("model", title),
        *about,
        ("nodes", placed or "none"),
        ("time", f"{number(result.time_us)} us{apart} ({alone}: {number(baseline.time_us)} us)"),
        ("speedup", f"{speedups}{without(len(report.unknown))}"),
        *([("baseline", basis)] if basis else []),
        *([("bound", _bound(report))] if steady is None else steady.lines(devices[0])),
        (
            "energy",
            f"{energy}{moved} ({alone}: {energy_alone}, {saved:+.0f} %)",
        ),
        (
            "memory",
            (
                f"{megabytes(memory.arena_bytes)} of activations at peak, without reuse "
                f"{megabytes(memory.bytes_without_reuse)}; {megabytes(memory.weight_bytes)} of weights"
            ),
        ),
        *_stored(plan),
        *_switches(plan, report),
        ("movement", _movement(memory)),
        *_violations(report),
        ("search", f"{counted(plan.candidates, 'candidate')}{_seconds(plan)}{'' if plan.complete else CUT_SHORT}"),
        *_unknown(report),
    ]
    return render_fields(lines)


def _bound(report: PlanReport) -> str:
    """The distance of the plan from the lower bound, and the bottlenecks of the bound."""
    bound = report.bound
    named = ", ".join(bottleneck.node for bottleneck in bound.bottlenecks[:_MAX_BOTTLENECKS])
    most = f"; most of it: {named}" if named else ""
    return f"plan within {report.bound_ratio:.2f}x of the bound, {number(bound.time_us)} us ({bound.binding}){most}"


def without(unknown: int) -> str:
    """The remark on a speedup from which the given number of nodes omit something."""
    return f" (without the unknown part of {counted(unknown, 'node')})" if unknown else ""


def _unknown(report: PlanReport) -> list[tuple[str, str]]:
    """The first nodes with something missing from times and energies, and what that is."""
    nodes = report.unknown
    lines = [f"{row.name} ({row.op}): {row.unknown}" for row in nodes[:_MAX_UNKNOWN]]
    if len(nodes) > _MAX_UNKNOWN:
        lines.append(f"and {len(nodes) - _MAX_UNKNOWN} more; `pimflow inspect` names them all")
    return [("" if index else "unknown", line) for index, line in enumerate(lines)]


def _stored(plan: Plan) -> list[tuple[str, str]]:
    """How full the units' memories are, and what their limited size costs."""
    lines = [
        f"{number(item.used, 0)} of {number(item.bound, 0)} {item.unit} on {item.device.upper()}"
        for item in plan.stored
    ]
    limit = plan.limit
    if limit is not None:
        lost = 100 * (plan.predicted_us / limit.bound_us - 1) if limit.bound_us else 0.0
        close = f"within {lost:.1f} % of the best" if lost > 0.05 else "the best"
        lines.append(f"the best plan, {number(limit.unlimited_us)} us, does not fit; this is {close} that does")
    return [("weights" if index == 0 else "", line) for index, line in enumerate(lines)]


def _switches(plan: Plan, report: PlanReport) -> list[tuple[str, str]]:
    """How often memory channels change hands, and the total time of that."""
    parts, count = report.result.spent.busy_parts_us.get(CHANNELS, {}), switches(plan.decisions)
    text = f"change hands {counted(count, 'time')}, {number(sum(parts.values()), 2)} us in all"
    return [("channels", text)] if count else []


def _violations(report: PlanReport) -> list[tuple[str, str]]:
    """What the devices do that their hardware could not, with counts; 0 means never."""
    found = [f"{count:,} {name.replace('_', ' ')}" for name, count in report.violations.items()]
    return [("checks", ", ".join(found))] if found else []


def _seconds(plan: Plan) -> str:
    """The duration of the search; unknown for a plan that was read back."""
    return f" in {plan.search_seconds:.2f} s" if plan.search_seconds else ""


def _movement(memory: MemoryPlan) -> str:
    free, kept = len(memory.eliminated), memory.kept
    text = f"{free} of {free + len(kept)} Slice, Pad, Concat and view nodes cost nothing"
    bytes_moved = sum(movement.bytes for movement in kept.values())
    return f"{text}, the others move {number(bytes_moved / 1e6, 2)} MB" if kept else text


def _kept(memory: MemoryPlan) -> str:
    """The movements that remain, each with its bytes and the reason."""
    lines = [f"{name}: {number(move.bytes / 1e3)} kB: {move.reason}" for name, move in memory.kept.items()]
    return "\n".join(["", "kept movements", *(wrapped(line, "  ") for line in lines), ""]) if lines else ""


def _left(notes: Sequence[str]) -> str:
    """What the passes left unchanged, each with the reason."""
    return "\n".join(["", "left by the passes", *(wrapped(note, "  ") for note in notes), ""]) if notes else ""
