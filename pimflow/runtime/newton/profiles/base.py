"""`TimingProfile`: one set of timing rules on one machine, with everything that depends on the choice of rules.

A profile defines when commands issue, their energy, and closed forms for the cycles of the parts of a stream. To add
one, write a class in this package, add it to `PROFILES`, and add a table `[pim.timing.NAME]` to a target.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cached_property
from typing import ClassVar

from pimflow.records import NamedTuple
from pimflow.runtime.newton.energy import EnergyBreakdown
from pimflow.runtime.newton.timing.result import StreamTiming
from pimflow.runtime.newton.timing.rules import Rules
from pimflow.targets import PimSpec

GWRITE_LATENCIES = ("hidden", "exposed")


class VisitCosts(NamedTuple):
    """Cycles of the parts of a stream under one profile of one machine, without refresh.

    Args:
        comp: from COMP to COMP.
        fill: from a GWRITE to the first COMP on its data, per fill.
        fill_per_slot: what each slot written adds to that (`strict` only).
        next_fill: from a GWRITE to the next GWRITE if several buffers are filled in a row.
        sweep: a visit to a row, beyond its COMPs.
        early: from the last COMP on a fill to the next GWRITE, plus from the end of that fill over a READRES to the
            next COMP.
        plain: from the last COMP on a fill over a READRES to the next GWRITE.
        back: from the end of a fill to a READRES.
        read: what a READRES between COMPs adds.
        fill_hidden: the part of a fill's wait that a change of row hides.
        busy_refresh: fraction of the time that refresh takes from a stream that activates rows all the time.
        idle_refresh: the same for a stream whose rows stay open.
    """

    comp: int
    fill: float
    fill_per_slot: float
    next_fill: float
    sweep: float
    early: float
    plain: float
    back: float
    read: float
    fill_hidden: float
    busy_refresh: float
    idle_refresh: float


class LeastGaps(NamedTuple):
    """Lower bounds on the cycles that COMPs lose against running back to back; 0 where no bound is known.

    Args:
        first: before the first COMP.
        change: for a change of row or fill, one of which is due after `columns` COMPs.
        result: for a READRES.
        refresh: for a refresh, in addition to anything else between the two COMPs.
        refresh_interval: cycles from one refresh request to the next.
        slot: for each slot filled, where COMPs wait for fills.
        fill: for a fill, in addition to its slots.
    """

    first: float = 0.0
    change: float = 0.0
    result: float = 0.0
    refresh: float = 0.0
    refresh_interval: float = math.inf
    slot: float = 0.0
    fill: float = 0.0


class LeastVisits(NamedTuple):
    """Minimum cycles from COMP to COMP by what lies between them, if one buffer per channel is filled at a time.

    Args:
        comp: nothing.
        first: from the start to the first COMP.
        change: a change of row.
        read: what a READRES between COMPs on one row adds.
        plain: a READRES, then a fill, without the cycles of the fill itself.
        early: a fill, then a READRES, without the cycles of the fill itself.
        fill: from a GWRITE to the first COMP on its data, in addition to its bursts.
        burst: from one burst of a fill to the next.
        burst_bytes: bytes that a burst writes.
        element_bytes: bytes of an operand.
        refresh: what a refresh adds to a change of row.
        refresh_interval: from one refresh request to the next.
    """

    comp: int
    first: int
    change: int
    read: int
    plain: int
    early: int
    fill: int
    burst: int
    burst_bytes: int
    element_bytes: int
    refresh: int
    refresh_interval: int

    def filling(self, size: int) -> int:
        """Cycles from a GWRITE of `size` bytes to the first COMP on its data."""
        return self.fill + -(-size // self.burst_bytes) * self.burst


class TimingProfile(ABC):
    """A timing profile on one machine."""

    name: ClassVar[str]
    checks_addresses: ClassVar[bool] = True
    """Whether a row, column, slot or fill outside the machine's limits is refused."""

    def __init__(self, pim: PimSpec) -> None:
        self.pim = pim

    def on(self, pim: PimSpec) -> TimingProfile:
        """The same profile on another machine."""
        return type(self)(pim)

    @abstractmethod
    def rules(self, gwrite_latency: str, reopens_rows: bool = True) -> Rules:
        """A new set of rules that decide when commands issue.

        Args:
            gwrite_latency: "hidden" or "exposed".
            reopens_rows: whether the controller reopens rows that a refresh closed, if the profile leaves the choice.
        """

    @abstractmethod
    def energy(self, timing: StreamTiming) -> EnergyBreakdown:
        """Energy of one channel's stream."""

    @property
    @abstractmethod
    def comp_cycles(self) -> int:
        """Cycles from COMP to COMP."""

    def least_gaps(self, slot_elements: float) -> LeastGaps:
        """Lower bounds on what interrupts COMPs.

        Args:
            slot_elements: the fewest elements that a GWRITE writes for each slot.
        """
        return LeastGaps()

    def least_visits(self) -> LeastVisits | None:
        """Minimum waits of COMPs of mappings that fill one buffer per channel at a time; None if none are known."""
        return None

    def least_bus_cycles(self, filled_bytes: float, results: float) -> float:
        """Minimum bus cycles to write `filled_bytes` to buffers and return `results` READRES; 0 if not known."""
        return 0.0

    @abstractmethod
    def visit_costs(self) -> VisitCosts:
        """Closed-form costs of the parts of a stream, which rank mappings before exact timing decides."""

    @cached_property
    def costs(self) -> VisitCosts:
        """`visit_costs`, cached."""
        return self.visit_costs()

    @cached_property
    def least_costs(self) -> LeastVisits | None:
        """`least_visits`, cached."""
        return self.least_visits()

    def gaps(self, slot_elements: float) -> LeastGaps:
        """`least_gaps`, cached: problems differ in few sizes of the last slot."""
        known = self._gaps.get(slot_elements)
        if known is None:
            known = self._gaps[slot_elements] = self.least_gaps(slot_elements)
        return known

    @cached_property
    def _gaps(self) -> dict[float, LeastGaps]:
        return {}

    def placement_cycles(self, stored_bytes: int) -> int:
        """Cycles to write an activation operand into the banks of one channel, before its stream can start.

        The bytes cross the channel's bus in bursts of `burst_bytes`. Rows of other banks open meanwhile, so only one
        activation and one precharge are visible (`[pim.timing.strict]`: the bus is the same under every profile).
        """
        bus = self.pim.timing.strict
        return -(-stored_bytes // bus.burst_bytes) * bus.burst_cycles + bus.t_rcd + bus.t_rp

    def placement_pj(self, stored_bytes: int, dram_rows: int) -> float:
        """Energy in pJ of placing an operand: every byte crosses bus and crossbar, every row is opened once."""
        energy = self.pim.energy.strict
        return stored_bytes * energy.transfer_pj_per_byte + dram_rows * energy.activate_pj
