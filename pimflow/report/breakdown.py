"""A breakdown of a run's time or energy, as tables: by part, by kind of op, by node, most expensive first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from pimflow.errors import choice
from pimflow.records import dataclass
from pimflow.report.node_rows import NodeRow
from pimflow.report.plan_report import PlanReport
from pimflow.report.tables import number, render_table, wrapped
from pimflow.runtime.spending import BOARD, PartsByPlace, Spending, total

QUANTITIES = ("energy", "time")
NODES_SHOWN = 20

_UNITS = {"energy": "mJ", "time": "us"}
_RULES = {
    "energy": "static power is charged by time, and an instant in which n kernels run counts 1/n for each of them",
    "time": "an instant in which n kernels run counts 1/n for each of them, and in busy us 1 for each",
}


def breakdown_text(report: PlanReport, devices: Sequence[str], by: str, *, verbose: bool = False) -> str:
    """Three tables of "energy" or "time": by part (next to the host alone), by kind of op, by node.

    Times are shares of the run, so that every table adds up to it. `verbose` shows all nodes with a cost.

    Raises:
        OptionError: `by` is neither.
    """
    quantity = choice("quantity", by, QUANTITIES)
    tables = _Tables.of(report, devices, quantity)
    rows = [(row, _parts(row.spent, quantity)) for row in report.nodes]
    costly = [(row, parts) for row, parts in rows if total(parts)]
    kinds: dict[str, list[PartsByPlace]] = {}
    for row, parts in costly:
        kinds.setdefault(row.op, []).append(parts)
    ops = [((op, str(len(parts))), _sum(parts)) for op, parts in kinds.items()]
    nodes = [((row.name, row.op, _runs_on(row)), parts) for row, parts in costly]
    return "\n\n".join(
        [
            tables.by_part(report),
            tables.ranking(("op", "nodes"), ops, right=(1,)),
            tables.ranking(("node", "op", "runs on"), nodes, most=None if verbose else NODES_SHOWN),
            wrapped(f"({_RULES[quantity]})"),
        ]
    )


def _parts(spent: Spending, quantity: str) -> PartsByPlace:
    return spent.energy_parts_mj if quantity == "energy" else spent.share_parts_us


def _sum(many: Iterable[PartsByPlace]) -> PartsByPlace:
    sums: dict[str, dict[str, float]] = {}
    for parts in many:
        for place, amounts in parts.items():
            into = sums.setdefault(place, {})
            for part, amount in amounts.items():
                into[part] = into.get(part, 0.0) + amount
    return sums


@dataclass(frozen=True)
class _Tables:
    """Tables of one quantity of one run.

    Args:
        quantity: "energy" or "time".
        devices: the target's, the host first.
        parts: the breakdown of the run.
        whole: their sum.
        digits: after the decimal point, the same everywhere so that columns can be compared.
    """

    quantity: str
    devices: Sequence[str]
    parts: PartsByPlace
    whole: float
    digits: int

    @classmethod
    def of(cls, report: PlanReport, devices: Sequence[str], quantity: str) -> _Tables:
        parts = _parts(report.result.spent, quantity)
        whole = total(parts)
        return cls(quantity, devices, parts, whole, max(0, 4 - math.floor(math.log10(whole))) if whole else 1)

    def by_part(self, report: PlanReport) -> str:
        """A line per part; for time, also how long the part keeps its place busy."""
        unit = _UNITS[self.quantity]
        alone = _parts(report.baseline.spent, self.quantity)
        busy = report.result.spent.busy_parts_us if self.quantity == "time" else {}
        host = f"{self._label(self.devices[0])} alone, {unit}"
        header = ("where", "part", unit, "%", *(("busy us",) if busy else ()), host)
        lines = []
        for place in dict.fromkeys((*self.parts, *alone)):
            for part in dict.fromkeys((*self.parts.get(place, {}), *alone.get(place, {}))):
                amounts = [source.get(place, {}).get(part, 0.0) for source in (self.parts, busy, alone)]
                if any(amounts):
                    cells = self._line(amounts[0], amounts[1] if busy else None, amounts[2])
                    lines.append((self._label(place), _part(part), *cells))
        lines.append(("total", "", *self._line(self.whole, total(busy) if busy else None, total(alone))))
        return render_table(header, lines, right=range(2, len(header)))

    def ranking(
        self,
        names: Sequence[str],
        rows: Sequence[tuple[Sequence[str], PartsByPlace]],
        right: Sequence[int] = (),
        most: int | None = None,
    ) -> str:
        """Rows by cost, with their places and most expensive part; rows beyond `most` are combined in one line."""
        unit, first = _UNITS[self.quantity], len(names)
        header = (*names, unit, "%", *(f"{self._label(place)} {unit}" for place in self.parts), "most of it")
        ranked = sorted(rows, key=lambda row: -total(row[1]))
        lines = [(*labels, *self._amounts(parts), self._largest(parts)) for labels, parts in ranked[:most]]
        rest = ranked[len(lines) :]
        if rest:
            hidden = _sum(parts for _, parts in rest)
            lines.append((f"{len(rest)} more (-v shows them)", *[""] * (first - 1), *self._amounts(hidden), ""))
        return render_table(header, lines, right=(*right, *range(first, first + 2 + len(self.parts))), prose=True)

    def _line(self, amount: float, busy: float | None, alone: float) -> tuple[str, ...]:
        shown = (self._number(amount), self._percent(amount))
        return (*shown, self._number(alone)) if busy is None else (*shown, self._number(busy), self._number(alone))

    def _amounts(self, parts: PartsByPlace) -> tuple[str, ...]:
        amount = total(parts)
        places = (sum(parts.get(place, {}).values()) for place in self.parts)
        return (self._number(amount), self._percent(amount), *map(self._number, places))

    def _number(self, amount: float) -> str:
        return number(amount or None, self.digits)

    def _percent(self, amount: float) -> str:
        return f"{100 * amount / self.whole:.1f} %" if amount else "-"

    def _largest(self, parts: PartsByPlace) -> str:
        """The largest part and its share."""
        amounts = {(place, part): amount for place, inside in parts.items() for part, amount in inside.items()}
        place, part = max(amounts, key=lambda key: amounts[key])
        what = self._label(place) if part == BOARD else f"{self._label(place)} {_part(part)}"
        return f"{what}, {100 * amounts[place, part] / total(parts):.0f} %"

    def _label(self, place: str) -> str:
        """The name of a place for readers: devices in capitals."""
        return place.upper() if place in self.devices else place


def _runs_on(row: NodeRow) -> str:
    busy = [device.upper() for device, time_us in row.busy_us.items() if time_us]
    return " + ".join(busy) + (", pipelined" if row.mode == "pipeline" else "")


def _part(part: str) -> str:
    return part.replace("_", "-")
