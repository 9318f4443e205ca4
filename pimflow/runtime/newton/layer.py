"""One layer on Newton-style PIM: its mapping, its cost, and what its cycles are spent on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pimflow.runtime.newton.bounds import CycleBounds
from pimflow.runtime.newton.breakdown import CycleBreakdown
from pimflow.runtime.newton.cost import PimCost

_BOUNDS = {"comp": "COMP", "interrupted": "COMP and what interrupts it", "bus": "bus"}


@dataclass(frozen=True)
class NewtonLayer:
    """A layer's mapping and cost, what its cycles and its time are spent on, and what no mapping is faster than."""

    timing: str
    operand: str
    cost: PimCost
    spent: CycleBreakdown
    bounds: CycleBounds
    time_parts_us: Mapping[str, float]

    @property
    def setting(self) -> str:
        """The timing profile, and whole numbers of few bits if these are multiplied."""
        return f"timing {self.timing}" + (", int8 operands" if self.operand == "int8" else "")

    @property
    def standing(self) -> str:
        """The bounds in cycles, and how far above the highest it is."""
        bounds = ", ".join(f"{_BOUNDS[name]} {cycles:,.0f}" for name, cycles in self.bounds.cycles.items())
        return f"{bounds} cycles; within {self.bounds.within(self.cost.cycles):.2f}x of the highest"

    def as_json(self) -> dict[str, Any]:
        """Plain values; `commands` and energy are sums over all channels, cycles those of the slowest."""
        cost = self.cost
        return {
            "timing": self.timing,
            "operand": self.operand,
            "mapping": cost.mapping.as_json(),
            "pim_cycles": cost.cycles,
            "placement_cycles": cost.placement_cycles,
            "time_us": cost.time_us,
            "launch_us": cost.launch_us,
            "time_parts_us": dict(self.time_parts_us),
            "commands": cost.commands.as_json(),
            "comps_on_closed_rows": cost.comps_on_closed_rows,
            "refreshes": cost.ref,
            "cycles_spent": self.spent.as_json(),
            "utilisation": cost.utilisation,
            "bounds": dict(self.bounds.cycles),
            "bound": self.bounds.longest,
            "within": self.bounds.within(cost.cycles),
            "energy_mj": cost.energy_mj,
            "energy_parts_mj": cost.energy_parts_mj,
            "channels": [
                {
                    "cycles": channel.cycles,
                    "cycles_spent": channel.parts.as_json(),
                    "commands": channel.commands.as_json(),
                }
                for channel in cost.channels
            ],
        }

    def lines(self) -> list[tuple[str, str]]:
        """Human-readable: (what, its value), without the channels one by one."""
        cost, mapping = self.cost, self.cost.mapping
        groups = " + ".join(str(group.channels) for group in mapping.groups)
        busy = sum(channel.cycles > 0 for channel in cost.channels)
        spent = ", ".join(f"{name.replace('_', '-')} {count:,}" for name, count in self.spent.as_json().items())
        commands = ", ".join(f"{name} {count:,}" for name, count in cost.commands.as_json().items())
        rows = [
            ("mapping", mapping.text),
            ("channels", f"{busy} of {len(cost.channels)} busy, in groups of {groups}"),
            ("cycles", f"{cost.cycles:,} on the slowest channel ({cost.time_us:,.2f} us)"),
            ("spent on", spent),
            ("utilisation", f"{cost.utilisation:.1%} of the COMP-bound limit"),
            ("bounds", self.standing),
            ("commands", f"{commands} (all channels), {cost.ref:,} refreshes"),
            ("closed rows", f"{cost.comps_on_closed_rows:,} COMPs on rows that a refresh had closed"),
        ]
        if cost.launch_us:
            rows.insert(3, ("launch", f"{cost.launch_us:,.2f} us of the time before the first command"))
        if cost.placement_cycles:
            rows.insert(3, ("placement", f"{cost.placement_cycles:,} cycles to write the right-hand side"))
        return rows
