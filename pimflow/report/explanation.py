"""Why a node runs where it does: the ways to run it with their prices, and what would change the decision."""

from __future__ import annotations

import math
from typing import Any

from pimflow.records import dataclass
from pimflow.report.measures import Measure
from pimflow.report.node_rows import NodeRow
from pimflow.report.records import Records, Row
from pimflow.report.tables import number, render_fields, render_table, wrapped
from pimflow.runtime.spending import PartsByPlace, total
from pimflow.targets import TargetRecord
from pimflow.targets.schema.origin import spelled

FACTORS = (2, 4, 8)
"""Factors by which a key of the machine is raised or lowered, to see whether another device would win."""
_MAX_LETTERS = 24  # of an alternative's name next to its bar


@dataclass(frozen=True)
class Alternative:
    """One way to run a node, alone on the machine: with the nodes that are fused into it, without its neighbours.

    Args:
        what: where it runs, in words.
        arranged: how the units' programs are arranged: mappings, strategies.
        measure: its cost, including static power.
        is_chosen: whether the plan uses it.
    """

    what: str
    arranged: str
    measure: Measure
    is_chosen: bool = False

    def as_json(self) -> dict[str, Any]:
        """One object of "alternatives"."""
        spent = self.measure.spent
        return {
            "what": self.what,
            "arranged": self.arranged,
            "time_us": self.measure.time_us,
            "energy_mj": self.measure.energy_mj,
            "time_parts_us": spent.share_parts_us,
            "energy_parts_mj": spent.energy_parts_mj,
            "chosen": self.is_chosen,
        }


@dataclass(frozen=True)
class Need:
    """A change to one key of the machine that would make a unit as fast as the host alone.

    Args:
        key: of the target.
        before, after: its value, and the nearest of the tried values that is enough.
        time_us: the node's time on the unit after the change.
        host_us: the time on the host alone after the change, with all memory channels.
    """

    key: str
    before: float
    after: float
    time_us: float
    host_us: float


@dataclass(frozen=True)
class Verdict:
    """How one unit other than the host compares with the host for a node.

    Args:
        device: the unit.
        refusal: why the node cannot run there, or would not pay off; "" if it may.
        time_us: of the whole node there, with the unit's best choice; None if it is refused.
        needs: changes that would each make it as fast as the host; empty if it already is, None if that was not
            determined.
        in_vain: whether it could run there, but statistics show that it cannot pay off, so that no program was created.
        standing: how close its product is to the lower bound of all arrangements on the unit; "" if that is unknown.
    """

    device: str
    refusal: str
    time_us: float | None
    needs: tuple[Need, ...] | None = ()
    in_vain: bool = False
    standing: str = ""


@dataclass(frozen=True, repr=False)
class Explanation(Records):
    """The ways to run one node of a compiled model, a row per alternative.

    Args:
        machine: the machine that the model was compiled for.
        node: the node as the plan runs it.
        shape: shape of its output, as text.
        macs: multiply-accumulates of its products.
        bytes: bytes of its operands and results, each once, in the host's element type.
        run_us: time of the whole run.
        part_of: the other nodes that the plan decides together with it; "" if there are none.
        host: the host device.
        alternatives: ways to run it, the host alone first.
        verdicts: for every other unit, whether and why the node does not run there.
    """

    machine: TargetRecord
    node: NodeRow
    shape: str
    macs: int
    bytes: int
    run_us: float
    part_of: str
    host: str
    alternatives: tuple[Alternative, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def title(self) -> str:
        """The node, and the number of ways to run it."""
        return f"{self.node.name} ({self.node.op}) on {self.machine.name}, {len(self.alternatives)} alternatives"

    @property
    def intensity(self) -> float:
        """Multiply-accumulates per byte; 0 for a node that moves no bytes."""
        return self.macs / self.bytes if self.bytes else 0.0

    def records(self) -> list[Row]:
        """A row per alternative."""
        keys = ("what", "arranged", "time_us", "energy_mj", "chosen")
        return [{key: item.as_json()[key] for key in keys} for item in self.alternatives]

    def as_json(self) -> dict[str, Any]:
        """One JSON object."""
        return {
            "target": self.machine.name,
            "machine": self.machine.as_json(),
            "node": self.node.as_json(),
            "shape": self.shape,
            "macs": self.macs,
            "bytes": self.bytes,
            "intensity": self.intensity,
            "run_us": self.run_us,
            "part_of": self.part_of,
            "alternatives": [item.as_json() for item in self.alternatives],
            "verdicts": [_verdict_json(verdict) for verdict in self.verdicts],
        }

    def charts(self) -> str:
        """The time by part for every alternative."""
        from pimflow.report.page.markup import shortened
        from pimflow.report.page.notebook import in_notebook
        from pimflow.report.page.parts import Bar, parts_chart

        bars = [
            Bar(shortened(item.what, _MAX_LETTERS), item.measure.spent.share_parts_us) for item in self.alternatives
        ]
        return in_notebook(parts_chart("time alone", "us", bars, (self.host, *(one.device for one in self.verdicts))))

    def text(self) -> str:
        """The node, its cost in the plan, the ways to run it, and what would change the decision."""
        node = self.node
        share = 100 * node.share_us / self.run_us if self.run_us else 0.0
        about = [
            ("node", f"{node.name} ({node.op}), {self.shape}"),
            (
                "work",
                f"{self.macs / 1e6:,.2f} MMACs, {self.bytes / 1024:,.1f} KiB, {self.intensity:,.1f} MACs per byte",
            ),
            *self.machine.lines(),
            ("in the plan", f"{number(node.share_us, 2)} us of the run ({share:.1f} %), {node.energy_mj:.4f} mJ"),
            ("because", node.why),
            *([("together", self.part_of)] if self.part_of else []),
        ]
        return "\n\n".join([render_fields(about), self._table(), *map(self._verdict_lines, self.verdicts)])

    def _table(self) -> str:
        first = self.alternatives[0].measure.time_us
        rows = [
            (
                ("* " if item.is_chosen else "  ") + item.what,
                number(item.measure.time_us, 2),
                f"{item.measure.energy_mj:.4f}",
                f"{first / item.measure.time_us:.2f}x" if item.measure.time_us else "-",
                _largest_part(item.measure.spent.share_parts_us),
                item.arranged,
            )
            for item in self.alternatives
        ]
        header = ("  alone", "us", "mJ", "speedup", "most of it", "arranged")
        note = "(* what the plan does)" if any(item.is_chosen for item in self.alternatives) else ""
        table = render_table(header, rows, right=(1, 2, 3), prose=True)
        return f"{table}\n{note}" if note else table

    def _verdict_lines(self, verdict: Verdict) -> str:
        sentence, needs = verdict_text(verdict, self.host, self.alternatives[0].measure.time_us)
        standing = [f"its bounds there: {verdict.standing}"] if verdict.standing else []
        return "\n".join(map(wrapped, [sentence, *(f"  {need}" for need in needs), *standing]))


def verdict_text(verdict: Verdict, host: str, host_us: float) -> tuple[str, list[str]]:
    """How a unit compares with the host for a node, as a sentence, and what would change that, one clause each.

    Args:
        verdict: of the unit.
        host: the host's name.
        host_us: the time on the host alone.
    """
    name, alone = verdict.device.upper(), f"the {host.upper()} alone"
    if verdict.time_us is None:
        return f"{name} {'does not pay' if verdict.in_vain else 'cannot run it'}: {verdict.refusal}", []
    if verdict.time_us <= host_us:
        return f"{name} is {host_us / max(verdict.time_us, 1e-9):.2f}x as fast as {alone}", []
    gap = f"{name} takes {verdict.time_us / host_us:.2f}x as long as {alone}"
    if verdict.needs is None:
        return f"{gap}; `pimflow explain` says what would change that", []
    if not verdict.needs:
        return f"{gap}; no single key of its own, changed up to {FACTORS[-1]}-fold, is enough to catch up", []
    needs = [
        f"{need.key} {spelled(need.before)} -> {spelled(need.after)}: {need.time_us:,.2f} us"
        f" ({host.upper()} {need.host_us:,.2f} us)"
        for need in verdict.needs
    ]
    return f"{gap}; any of these alone would be enough:", needs


def _largest_part(parts: PartsByPlace) -> str:
    """The largest part of a time, and its share."""
    whole = total(parts)
    if not whole:
        return "-"
    amounts = {(place, part): amount for place, inside in parts.items() for part, amount in inside.items()}
    place, part = max(amounts, key=lambda key: amounts[key])
    return f"{place.upper()} {part.replace('_', '-')}, {math.floor(100 * amounts[place, part] / whole + 0.5)} %"


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "device": verdict.device,
        "refusal": verdict.refusal,
        "time_us": verdict.time_us,
        "needs": [vars(need) for need in verdict.needs or ()],
        "in_vain": verdict.in_vain,
        "standing": verdict.standing,
    }
