"""The types of a backend's answers: costs by part, lanes, copies, capacity, reports, roofs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cached_property
from typing import Any, Protocol

from pimflow.records import NamedTuple, dataclass

Parts = Mapping[str, float]
"""Amounts by part. A backend names its parts, always in the same order; they add up to the total."""

NO_PARTS: Parts = {}
"""The parts of nodes that cost nothing, shared because a large model may have 100,000 of them."""


class _InParts(Protocol):
    @property
    def time_parts_us(self) -> Parts: ...

    @property
    def energy_parts_mj(self) -> Parts: ...


class SumOfParts:
    """A cost whose steps follow one another: its time and energy are the sums of its parts."""

    @cached_property
    def time_us(self: _InParts) -> float:
        """The time of all steps."""
        return sum(self.time_parts_us.values())

    @cached_property
    def energy_mj(self: _InParts) -> float:
        """The energy of all steps, without static power."""
        return sum(self.energy_parts_mj.values())


Records = Mapping[str, str]
"""A unit's stored results about work: a line of ASCII text per key of 32 hex digits."""


class Cost(Protocol):
    """Time and energy of a piece of work on one unit, without static power."""

    @property
    def time_us(self) -> float:
        """Microseconds."""

    @property
    def energy_mj(self) -> float:
        """Millijoules: the sum of its parts."""

    @property
    def energy_parts_mj(self) -> Parts:
        """Millijoules per part."""


class UnitCost(Cost, Protocol):
    """The cost of work on a unit, and what the unit did."""

    @property
    def cycles(self) -> int:
        """Cycles of the unit's own clock, of its slowest part."""

    @property
    def counters(self) -> Mapping[str, int]:
        """The number of operations by name: the backend's `counters`, summed over all parts of the unit."""


class TraceReport(Protocol):
    """The cost of executing a trace."""

    @property
    def cycles(self) -> int:
        """Cycles of the unit's own clock."""

    @property
    def counters(self) -> Mapping[str, int]:
        """The number of executed commands by name."""

    @property
    def violations(self) -> Mapping[str, int]:
        """How often the trace did something that the hardware could not, by name."""

    @property
    def time_us(self) -> float:
        """Microseconds."""

    @property
    def energy_mj(self) -> float:
        """Millijoules, without static power."""

    def as_json(self) -> dict[str, Any]:
        """Plain values."""


class WorkReport(Protocol):
    """A report on one piece of work on a unit, for readers and programs."""

    @property
    def setting(self) -> str:
        """The machine settings that the report is for; "" if there are none to name."""

    @property
    def cost(self) -> UnitCost:
        """The cost of the work on the unit."""

    @property
    def standing(self) -> str:
        """How close the cost is to the lower bound of all arrangements, as a clause; "" if that is unknown."""

    def as_json(self) -> dict[str, Any]:
        """Plain values."""

    def lines(self) -> list[tuple[str, str]]:
        """Human-readable (label, value) pairs, without the energy, which the caller prints."""


@dataclass(frozen=True)
class PlainReport:
    """The report of a unit that reports only a cost."""

    choice: str
    cost: UnitCost
    time_parts_us: Parts
    setting: str = ""
    standing: str = ""

    def as_json(self) -> dict[str, Any]:
        """The fields of a cost."""
        cost = self.cost
        return {
            "choice": self.choice,
            "cycles": cost.cycles,
            "time_us": cost.time_us,
            "time_parts_us": dict(self.time_parts_us),
            "energy_mj": cost.energy_mj,
            "energy_parts_mj": dict(cost.energy_parts_mj),
            "commands": dict(cost.counters),
        }

    def lines(self) -> list[tuple[str, str]]:
        """The cost, human-readable."""
        cost = self.cost
        commands = ", ".join(f"{name} {count:,}" for name, count in cost.counters.items())
        lines = [
            ("choice", self.choice),
            ("cycles", f"{cost.cycles:,} ({cost.time_us:,.2f} us)"),
            ("commands", commands),
        ]
        return [line for line in lines if line[1]]


class Way(NamedTuple):
    """One of several ways to run a node on its device, its cost, and whether the plan uses it."""

    name: str
    time_us: float
    is_taken: bool


class Lane(NamedTuple):
    """The interval in which one part of a unit executes its share of a program, relative to the program's start.

    `word` is the name of such parts ("channel").
    """

    part: int
    start_us: float
    end_us: float
    word: str


class Copy(NamedTuple):
    """One copy, its name among the parts of a cost, and the resource that it occupies ("" for its transfer's link)."""

    part: str
    time_us: float
    energy_mj: float
    resource: str = ""


class EdgeDivision(NamedTuple):
    """A way to divide the edges of a sum: a unit takes a destination's edges from a group if these are numerous enough.

    Args:
        group: the number of consecutive sources in a group.
        at_least: the minimum number of edges of one destination from one group for the unit to take them.
        lower_bound_us: a lower bound on the unit's time for all its edges.
    """

    group: int
    at_least: int
    lower_bound_us: float


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much program data (weights) a unit's memory holds, and the unit of measure."""

    amount: int
    unit: str


@dataclass(frozen=True, slots=True)
class Kept:
    """The data that one program stores in its unit's memory: the amount in the capacity's unit, and the arrangement.

    Programs that store the same constants in the same arrangement share them.
    """

    amount: int
    arrangement: Hashable = None


@dataclass(frozen=True, slots=True)
class Transfer:
    """Copies of a node's operands to its unit before it runs, and of its results back afterwards, over a link."""

    load_us: float
    store_us: float
    load_mj: float = 0.0
    store_mj: float = 0.0
    link: str = "transfer"

    @property
    def energy_mj(self) -> float:
        """Millijoules of both copies."""
        return self.load_mj + self.store_mj

    @property
    def before(self) -> tuple[Copy, ...]:
        """The copy before the node, if it costs anything."""
        return (Copy("load", self.load_us, self.load_mj),) if self.load_us or self.load_mj else ()

    @property
    def after(self) -> tuple[Copy, ...]:
        """The copy after the node, if it costs anything."""
        return (Copy("store", self.store_us, self.store_mj),) if self.store_us or self.store_mj else ()


@dataclass(frozen=True, slots=True)
class Merged(Transfer):
    """Copies, followed by a kernel on the host that adds up partial results."""

    merge: Copy | None = None

    @classmethod
    def after_copies(cls, copies: Transfer | None, merge: Copy) -> Merged:
        """A merge after copies, if there are any."""
        if copies is None:
            return cls(0.0, 0.0, link=merge.resource, merge=merge)
        return cls(copies.load_us, copies.store_us, copies.load_mj, copies.store_mj, copies.link, merge)

    @property
    def energy_mj(self) -> float:
        """Millijoules of copies and kernel."""
        return self.load_mj + self.store_mj + (self.merge.energy_mj if self.merge else 0.0)

    @property
    def after(self) -> tuple[Copy, ...]:
        """The copy after the node, if it costs anything, and the kernel."""
        store = (Copy("store", self.store_us, self.store_mj),) if self.store_us or self.store_mj else ()
        return (*store, self.merge) if self.merge else store


class Roof(NamedTuple):
    """The peak performance of a unit: the roofline of Williams, Waterman and Patterson (2009)."""

    macs_per_us: float
    bytes_per_us: float

    def lower_bound_us(self, macs: int, moved_bytes: int) -> float:
        """A lower bound on the time of work that moves these bytes through memory once."""
        return max(macs / self.macs_per_us, moved_bytes / self.bytes_per_us)

    @property
    def ridge(self) -> float:
        """The multiply-accumulates per byte above which computation is the bottleneck, not memory."""
        return self.macs_per_us / self.bytes_per_us
