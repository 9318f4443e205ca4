"""One layer on Newton-style PIM: its mapping, its cost and the breakdown of its cycles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cached_property
from typing import Any

from pimflow.records import dataclass
from pimflow.runtime.newton.bounds import CycleBounds
from pimflow.runtime.newton.breakdown import CycleBreakdown
from pimflow.runtime.newton.cost import PimCost

_BOUNDS = {"comp": "COMP", "interrupted": "COMP and what interrupts it", "bus": "bus"}


@dataclass(frozen=True)
class NewtonLayer:
    """A layer's mapping and cost, the breakdowns of its cycles and time, and lower bounds for any mapping.

    `search_other` returns the cost of the best mapping in window order if this one is in column order, and vice versa.
    """

    timing: str
    operand: str
    cost: PimCost
    spent: CycleBreakdown
    bounds: CycleBounds
    time_parts_us: Mapping[str, float]
    search_other: Callable[[], PimCost | None] | None = field(default=None, compare=False)

    @cached_property
    def other_order(self) -> PimCost | None:
        """The cost that `search_other` finds; None if there is no such mapping."""
        return None if self.search_other is None else self.search_other()

    @property
    def setting(self) -> str:
        """The timing profile, and the operands if they are int8."""
        return f"timing {self.timing}" + (", int8 operands" if self.operand == "int8" else "")

    @property
    def standing(self) -> str:
        """The bounds in cycles, and the ratio of the layer's cycles to the highest."""
        bounds = ", ".join(f"{_BOUNDS[name]} {cycles:,.0f}" for name, cycles in self.bounds.cycles.items())
        return f"{bounds} cycles; within {self.bounds.within(self.cost.cycles):.2f}x of the highest"

    def _orders(self, other: PimCost) -> str:
        """Which element order is chosen, and the cost of the other one."""
        slower = f"{other.cycles:,} cycles, {other.cycles / self.cost.cycles:.2f}x"
        if self.cost.mapping.window_block:
            return f"chosen (im2win); without it {slower}"
        return f"not chosen; with it (im2win), {other.mapping.window_block} channels a block, {slower}"

    def _other(self, other: PimCost) -> dict[str, Any]:
        return {"window_order": bool(other.mapping.window_block), "pim_cycles": other.cycles, "time_us": other.time_us}

    def as_json(self) -> dict[str, Any]:
        """Plain values; commands and energy are sums over all channels, cycles are those of the slowest channel."""
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
            "other_order": None if self.other_order is None else self._other(self.other_order),
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
        """Human-readable (label, value) pairs, without the individual channels."""
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
        if self.other_order is not None:
            rows.insert(1, ("window order", self._orders(self.other_order)))
        if cost.launch_us:
            rows.insert(3, ("launch", f"{cost.launch_us:,.2f} us of the time before the first command"))
        if cost.placement_cycles:
            rows.insert(3, ("placement", f"{cost.placement_cycles:,} cycles to write the right-hand side"))
        return rows
