"""Plans in which memory channels change hands: who holds them is a state between any two units of the order.

Units (devices) in use hold some of the host's memory channels. If the target says how long it takes to hand them over,
the host may have them for a stretch of the order that stays on the host, and a plan pays for both ends of that stretch.
A run begins and ends with the channels at the units: whatever runs before and after it finds them there.

The states are points of one longer line, so that everything that finds covers of a line (the dynamic program, the
integer program, labels) finds them together with their switches. Every point between two positions is replaced by
three:

    arriving (the units' channels) -> all channels -> leaving (the units' channels)

Decisions lead from leaving to arriving points; nodes on a host that has all channels lead from one point of all
channels to another. Going from arriving to leaving costs nothing, going from either to the point between them costs a
switch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pimflow.ir import Decision, OnDevice
from pimflow.ir.placement import ALL_CHANNELS
from pimflow.ir.plan import has_all_channels
from pimflow.search.candidates import Candidate, Candidates
from pimflow.search.candidates.placed import on_host
from pimflow.search.chain import Interval

Decisions = tuple[Decision, ...]
_POINTS = 3


class Line:
    """The positions of an order, as candidates cover them.

    Args:
        candidates: the candidates over the order.
        switch_us: the time for channels to change hands; None if they never do, in which case the line is the order.

    Attributes:
        size: its number of positions.
    """

    def __init__(self, candidates: Candidates, switch_us: float | None) -> None:
        self._candidates = candidates
        self.is_order = switch_us is None
        self.size = len(candidates.order) if self.is_order else _POINTS * len(candidates.order) + _POINTS - 1

    def place(self, candidate: Candidate) -> tuple[int, int]:
        """Where on the line a candidate starts and stops."""
        if self.is_order:
            return candidate.start, candidate.stop
        point = 1 if _all_channels(candidate.decisions) else 2
        return _POINTS * candidate.start + point, _POINTS * candidate.stop + point % 2

    def shifts(self, candidate: Candidate) -> tuple[int, ...]:
        """The distances on the line of the candidates equivalent to this one, itself (0) included."""
        shifts = self._candidates.shifts(candidate)
        return shifts if self.is_order or len(shifts) == 1 else tuple([_POINTS * shift for shift in shifts])

    def moved(self, decisions: Decisions, shift: int) -> Decisions:
        """The decisions of a candidate at this distance on the line from an equivalent one."""
        return self._candidates.scene.moved(decisions, shift if self.is_order else shift // _POINTS)

    def with_all_channels(self) -> Iterator[Candidate]:
        """Every unit that may stay on the host, there with all channels; none if channels never change hands."""
        scene = self._candidates.scene
        for candidate in () if self.is_order else on_host(scene, self._candidates.policy.spaces):
            nodes = (name for decision in candidate.decisions for name in decision.nodes)
            decisions = tuple(OnDevice(name, scene.host, ALL_CHANNELS) for name in nodes)
            yield replace(candidate, decisions=decisions)

    def steps(self) -> Iterator[tuple[int, int, int]]:
        """The steps from point to point between two units: start, stop, and the number of switches."""
        ends = () if self.is_order else (0, *(unit.stop for unit in self._candidates.scene.units))
        for first in (_POINTS * end for end in ends):
            yield first, first + 2, 0
            yield first, first + 1, 1
            yield first + 1, first + 2, 1

    def on_order(self, chosen: Sequence[Interval[Decisions]]) -> list[Interval[Decisions]]:
        """The decisions of a cover of the line, by positions of the order, and as if no channels had changed hands."""
        if self.is_order:
            return list(chosen)
        found = (some for some in chosen if some.payload)
        return [
            with_unit_channels(replace(some, start=some.start // _POINTS, stop=some.stop // _POINTS)) for some in found
        ]


def with_unit_channels(chosen: Interval[Decisions]) -> Interval[Decisions]:
    """The same decisions while the units hold their channels."""
    if not _all_channels(chosen.payload):
        return chosen
    return replace(chosen, payload=tuple(map(_with_unit_channels, chosen.payload)))


def _all_channels(decisions: Decisions) -> bool:
    return any(map(has_all_channels, decisions))


def _with_unit_channels(decision: Decision) -> Decision:
    return replace(decision, choice="") if isinstance(decision, OnDevice) and has_all_channels(decision) else decision
