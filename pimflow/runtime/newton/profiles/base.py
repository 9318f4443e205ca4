"""`TimingProfile`: one set of timing rules on one machine, with all that depends on which set it is.

A profile says when commands issue, what they cost in energy, and how long the parts of a stream take by closed form.
Adding one is a class here and a table `[pim.timing.NAME]` in a target.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cached_property
from typing import ClassVar, NamedTuple

from pimflow.runtime.newton.energy import EnergyBreakdown
from pimflow.runtime.newton.timing.result import StreamTiming
from pimflow.runtime.newton.timing.rules import Rules
from pimflow.targets import PimSpec

GWRITE_LATENCIES = ("hidden", "exposed")


class VisitCosts(NamedTuple):
    """Cycles of the parts of a stream under one profile of one machine, refresh apart.

    Args:
        comp: COMP to COMP.
        fill: GWRITE to the first COMP on it, per fill and (strict) per slot written.
        next_fill: GWRITE to the next GWRITE where several buffers are filled in a row.
        sweep: what a visit to a row takes beyond its COMPs.
        early: last COMP on a fill to the GWRITE of the next, and from its end over a READRES to the next COMP.
        plain: last COMP on a fill over a READRES to the GWRITE of the next.
        back: end of a fill to a READRES.
        read: what a READRES between COMPs adds.
        fill_hidden: how much of a fill's wait passes while a row changes.
        busy_refresh: share of all time that refresh takes from a stream that activates all the time.
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
    """Cycles from COMP to COMP beyond COMPs back to back, at least; 0 where nothing is known.

    Args:
        first: before the first COMP.
        change: another row or another fill, one of which has to follow `columns` COMPs.
        result: a READRES.
        refresh: a refresh, beyond what else is between the two COMPs.
        refresh_interval: cycles from one request for a refresh to the next.
        slot: each slot that is filled, where COMPs wait for fills.
        fill: a fill beyond that.
    """

    first: float = 0.0
    change: float = 0.0
    result: float = 0.0
    refresh: float = 0.0
    refresh_interval: float = math.inf
    slot: float = 0.0
    fill: float = 0.0


class LeastVisits(NamedTuple):
    """Cycles from COMP to COMP at least, by what is between them, where a channel holds one buffer.

    Args:
        comp: nothing.
        first: from the start to the first COMP.
        change: another row.
        read: what a READRES between COMPs on one row adds.
        plain: a READRES, then a fill, without that.
        early: a fill, without that, then a READRES.
        fill: GWRITE to the first COMP on it beyond its bursts.
        burst, burst_bytes: of a fill's bursts, how far apart they are and what each writes.
        element_bytes: of an operand.
        refresh: what a refresh adds where a row changes.
        refresh_interval: from one request for a refresh to the next.
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
        """From GWRITE to the first COMP on what it writes, so many bytes."""
        return self.fill + -(-size // self.burst_bytes) * self.burst


class TimingProfile(ABC):
    """One profile on one machine."""

    name: ClassVar[str]
    checks_addresses: ClassVar[bool] = True
    """Whether a row, column, slot or fill outside of the machine is refused."""

    def __init__(self, pim: PimSpec) -> None:
        self.pim = pim

    def on(self, pim: PimSpec) -> TimingProfile:
        """The same profile on another machine."""
        return type(self)(pim)

    @abstractmethod
    def rules(self, gwrite_latency: str, reopens_rows: bool = True) -> Rules:
        """Fresh rules: when commands issue.

        Args:
            gwrite_latency: "hidden" or "exposed".
            reopens_rows: whether the controller opens rows again that a refresh closed, if it may leave that.
        """

    @abstractmethod
    def energy(self, timing: StreamTiming) -> EnergyBreakdown:
        """Energy of one channel's stream."""

    @property
    @abstractmethod
    def comp_cycles(self) -> int:
        """Cycles from COMP to COMP."""

    def least_gaps(self, slot_elements: float) -> LeastGaps:
        """What interrupts COMPs at least, on a machine whose COMP names one column for its row and its buffer.

        Args:
            slot_elements: elements that a GWRITE writes for each slot, at least.
        """
        return LeastGaps()

    def least_visits(self) -> LeastVisits | None:
        """What COMPs wait for at least; None where nothing is known, or a channel holds several buffers."""
        return None

    def least_bus_cycles(self, filled_bytes: float, results: float) -> float:
        """Cycles in which so many bytes are written to buffers and so many READRES return; 0 where nothing is known."""
        return 0.0

    @abstractmethod
    def visit_costs(self) -> VisitCosts:
        """Closed-form costs of the parts of a stream, which rank mappings before exact timing decides."""

    @cached_property
    def costs(self) -> VisitCosts:
        """`visit_costs`, asked for once."""
        return self.visit_costs()

    @cached_property
    def least_costs(self) -> LeastVisits | None:
        """`least_visits`, asked for once."""
        return self.least_visits()

    def placement_cycles(self, stored_bytes: int) -> int:
        """Cycles to write an activation operand into the banks of one channel, before its stream can start.

        The bytes cross the channel's bus in bursts of `burst_bytes`; rows of other banks open meanwhile, so
        that one activation and one precharge show (`[pim.timing.strict]`: the bus is the same under every profile).
        """
        bus = self.pim.timing.strict
        return -(-stored_bytes // bus.burst_bytes) * bus.burst_cycles + bus.t_rcd + bus.t_rp

    def placement_pj(self, stored_bytes: int, dram_rows: int) -> float:
        """Energy of placing an operand: every byte over bus and crossbar, every row opened once."""
        energy = self.pim.energy.strict
        return stored_bytes * energy.transfer_pj_per_byte + dram_rows * energy.activate_pj
