"""What a backend answers with: costs by part, what a program does when, copies, what is kept, reports, roofs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from pimflow.records import dataclass

Parts = Mapping[str, float]
"""Amounts by part. A backend names its parts, and always in the same order; they add up to the whole."""

NO_PARTS: Parts = {}
"""The parts of nodes that cost nothing: one object for all of them, as a large model may have 100,000."""


class _InParts(Protocol):
    @property
    def time_parts_us(self) -> Parts: ...

    @property
    def energy_parts_mj(self) -> Parts: ...


class SumOfParts:
    """A cost whose steps follow one another: its time and its energy are what its parts come to."""

    @cached_property
    def time_us(self: _InParts) -> float:
        """All steps."""
        return sum(self.time_parts_us.values())

    @cached_property
    def energy_mj(self: _InParts) -> float:
        """All that it spends, static power apart."""
        return sum(self.energy_parts_mj.values())


Records = Mapping[str, str]
"""What a unit has learnt of work: a line of ASCII text by a key of 32 hex digits."""


class Cost(Protocol):
    """Time and energy of a piece of work on one unit, static power apart."""

    @property
    def time_us(self) -> float:
        """Microseconds."""

    @property
    def energy_mj(self) -> float:
        """Millijoules: the sum of its parts."""

    @property
    def energy_parts_mj(self) -> Parts:
        """Millijoules by what they are spent on."""


class UnitCost(Cost, Protocol):
    """What a unit's work costs, with what it did."""

    @property
    def cycles(self) -> int:
        """Cycles of the unit's own clock, on its slowest part."""

    @property
    def counters(self) -> Mapping[str, int]:
        """What the unit executed, by name: the backend's `counters`, over all its parts."""


class TraceReport(Protocol):
    """What executing a trace takes."""

    @property
    def cycles(self) -> int:
        """Cycles of the unit's own clock."""

    @property
    def counters(self) -> Mapping[str, int]:
        """What was executed, by name."""

    @property
    def violations(self) -> Mapping[str, int]:
        """How often it did what the hardware could not, by name."""

    @property
    def time_us(self) -> float:
        """Microseconds."""

    @property
    def energy_mj(self) -> float:
        """Millijoules, static power apart."""

    def as_json(self) -> dict[str, Any]:
        """Plain values."""


class WorkReport(Protocol):
    """What one piece of work comes to on a unit, for readers and programs."""

    @property
    def setting(self) -> str:
        """Under which settings of the machine; "" where there are none to name."""

    @property
    def cost(self) -> UnitCost:
        """What it costs there."""

    @property
    def standing(self) -> str:
        """How near it is to what no arrangement is faster than, as a clause; "" where that is not known."""

    def as_json(self) -> dict[str, Any]:
        """Plain values."""

    def lines(self) -> list[tuple[str, str]]:
        """Human-readable: (what, its value); energy is told by whoever asks."""


@dataclass(frozen=True)
class PlainReport:
    """The report of a unit that has no more to say than a cost."""

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
        """The same, human-readable."""
        cost = self.cost
        commands = ", ".join(f"{name} {count:,}" for name, count in cost.counters.items())
        lines = [
            ("choice", self.choice),
            ("cycles", f"{cost.cycles:,} ({cost.time_us:,.2f} us)"),
            ("commands", commands),
        ]
        return [line for line in lines if line[1]]


class Way(NamedTuple):
    """One of several ways to run a node on its device, what it takes, and whether it is the one that is taken."""

    name: str
    time_us: float
    is_taken: bool


class Lane(NamedTuple):
    """What one part of a unit does of a program: from when to when, after the unit has been asked.

    `word` is what such a part is called ("channel").
    """

    part: int
    start_us: float
    end_us: float
    word: str


class Copy(NamedTuple):
    """One copy, what it is called among the parts of a cost, and where it takes place ("": on its transfer's link)."""

    part: str
    time_us: float
    energy_mj: float
    resource: str = ""


class EdgeDivision(NamedTuple):
    """A way to divide the edges of a sum: a unit takes what a destination has from a group, if that is many edges.

    Args:
        group: consecutive sources of a group.
        at_least: edges that the unit takes, of one destination from one group.
        least_us: what the unit takes at least for all of them.
    """

    group: int
    at_least: int
    least_us: float


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much a unit's memory holds of what its programs keep there (weights), and what is counted."""

    amount: int
    unit: str


@dataclass(frozen=True, slots=True)
class Kept:
    """What one program keeps in its unit's memory: so much of the capacity's unit, arranged so.

    Programs that keep the same constants in the same arrangement share them.
    """

    amount: int
    arrangement: Hashable = None


@dataclass(frozen=True, slots=True)
class Transfer:
    """Moving a node's operands to its unit before it runs, and its results back after, over a link."""

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
    """Copies, and behind them a kernel of the host that adds up partial results."""

    merge: Copy | None = None

    @classmethod
    def after_copies(cls, copies: Transfer | None, merge: Copy) -> Merged:
        """A merge behind copies, if there are any."""
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
    """What a unit can do at most: the roofline of Williams, Waterman and Patterson (2009)."""

    macs_per_us: float
    bytes_per_us: float

    def least_us(self, macs: int, moved_bytes: int) -> float:
        """What work takes at least whose bytes pass memory once."""
        return max(macs / self.macs_per_us, moved_bytes / self.bytes_per_us)

    @property
    def ridge(self) -> float:
        """The multiply-accumulates per byte above which computing bounds, not memory."""
        return self.macs_per_us / self.bytes_per_us
