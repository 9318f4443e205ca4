"""Lower bounds on the cycles of a layer under any mapping: COMPs, what interrupts them, the channel's bus."""

from __future__ import annotations

from collections.abc import Mapping

from pimflow.codegen import ConvProblem, MatrixProblem
from pimflow.codegen.newton.im2col import Geometry, geometry
from pimflow.records import dataclass
from pimflow.runtime.newton.cost import PimCost, places_operand
from pimflow.runtime.newton.profiles.base import LeastGaps, TimingProfile

_ROUNDS = 3
"""Iterations of counting the refreshes in a time that they prolong; the result of each is a valid lower bound."""


@dataclass(frozen=True, slots=True)
class CycleBounds:
    """Lower bounds on the cycles of the slowest channel, whatever the mapping, without placement.

    Args:
        comp: the fewest COMPs, spread evenly, back to back.
        interrupted: the same with what interrupts them: a READRES for every result, and refresh; if a channel holds one
            buffer, also all fills, and a change of row or fill after as many COMPs as a row or buffer has columns.
        bus: inputs and results, each once, over the channel's data bus; 0 if the profile does not price bytes.
    """

    comp: int
    interrupted: float
    bus: float

    @property
    def longest(self) -> str:
        """The name of the highest bound."""
        return max(self.cycles, key=lambda name: self.cycles[name])

    @property
    def cycles(self) -> Mapping[str, float]:
        """The bounds by name, without unknown ones."""
        found = {"comp": float(self.comp), "interrupted": self.interrupted, "bus": self.bus}
        return {name: cycles for name, cycles in found.items() if cycles}

    def within(self, cycles: int) -> float:
        """The ratio of `cycles` to the highest bound."""
        return cycles / self.cycles[self.longest]


def cycle_bounds(problem: MatrixProblem, cost: PimCost, profile: TimingProfile) -> CycleBounds:
    """The bounds of a layer priced under a profile."""
    return CycleBounds(cost.bound_cycles, interrupted_cycles(problem, profile), bus_cycles(problem, profile))


def lower_bound_us(problem: MatrixProblem, profile: TimingProfile) -> float:
    """A lower bound in microseconds on every mapping of a problem: launch, operand placement, and the longer of
    interrupted COMPs and bus transfers."""
    pim, shape = profile.pim, geometry(problem, profile.pim)
    cycles = max(_interrupted(shape, profile), _on_bus(problem, shape, profile))
    if places_operand(problem):
        cycles += profile.placement_cycles(
            shape.groups * shape.depth * shape.columns * pim.element_bytes // pim.channels
        )
    return pim.launch_us + cycles / pim.clock_mhz


def interrupted_cycles(problem: MatrixProblem, profile: TimingProfile) -> float:
    """The fewest COMPs, spread evenly over the channels, and what interrupts them.

    Each pixel of each tile has at least one READRES. COMPs on one row and one fill use each column once if COMP names
    one column for row and buffer. Interruptions may coincide; then only the longest counts.
    """
    return _interrupted(geometry(problem, profile.pim), profile)


def _interrupted(shape: Geometry, profile: TimingProfile) -> float:
    last = profile.gaps(shape.last_slot_elements)
    full = profile.gaps(shape.slot_elements) if shape.ragged else last
    return max(_between_visits(shape, profile, full, last), _between_fills(shape, profile, last))


def _between_visits(shape: Geometry, profile: TimingProfile, full: LeastGaps, last: LeastGaps) -> float:
    """With a change of row or fill after at most as many COMPs as one has columns; a fill may hold only the last slot
    of K.

    A change before c COMPs takes as long as a row, or as a fill of c slots, whichever is less: together the changes
    take least if as many of them as possible are full.
    """
    pim = profile.pim
    gaps = full._replace(change=full.change + (last.change - full.change) / shape.slots)
    comps, most = -(-shape.least_comps // pim.channels), min(pim.columns, pim.buffer_columns)
    results = shape.groups * shape.pixels * shape.tiles // pim.channels
    changes, rest = divmod(max(0, comps - most), most)
    cycles = gaps.first + comps * profile.comp_cycles + changes * gaps.change
    if rest:
        changes += 1
        cycles += min(gaps.change, rest * last.slot + last.fill)
    return _with_readings(cycles, results, changes, gaps.change, gaps)


def _between_fills(shape: Geometry, profile: TimingProfile, gaps: LeastGaps) -> float:
    """With all fills: each channel of a group waits for every fill of its group; 0 where COMPs do not wait for fills.

    A group that does a share x of the work fills at least x of all (pixel, slot) pairs, and each of its m channels does
    x / m of the COMPs and READRES. So the slowest channel takes least if all groups are alike. Every slot counts as the
    last one of K, as groups may share K too. Each fill beyond the number of full fills saves at most one READRES.
    """
    pim = profile.pim
    if not gaps.slot:
        return 0.0
    slots = shape.least_slots / min(pim.buffers, pim.channels)
    fills = slots / min(pim.columns, pim.buffer_columns)
    results = shape.groups * shape.pixels * shape.tiles / pim.channels
    cycles = shape.least_comps / pim.channels * profile.comp_cycles + slots * gaps.slot + fills * gaps.fill
    return _with_readings(cycles, results, fills, gaps.fill, gaps._replace(result=min(gaps.result, gaps.fill)))


def _with_readings(cycles: float, results: float, pauses: float, pause: float, gaps: LeastGaps) -> float:
    """Adds every READRES but the last, and every refresh requested until then.

    A READRES may coincide with a refresh, or with one of `pauses` interruptions of at least `pause` cycles each, which
    are already counted.
    """
    total, before = cycles, -1.0
    for _ in range(_ROUNDS):
        refreshes = total // gaps.refresh_interval
        if refreshes == before:
            break
        before = refreshes
        readings = max(0.0, results - 1 - refreshes)
        together = min(pauses, readings) * min(pause, gaps.result)
        total = cycles + refreshes * gaps.refresh + readings * gaps.result - together
    return total


def bus_cycles(problem: MatrixProblem, profile: TimingProfile) -> float:
    """Inputs and results, each once, over the bus of the slowest channel; 0 if the profile does not price bytes.

    A group of channels that does a share x of the pixels fills its buffer with x U bytes of the inputs, and
    each of its m channels returns x R / m of the R results. With g groups and c channels in total, the slowest channel
    takes least if all groups are alike: U / g bytes and R / c results.
    """
    return _on_bus(problem, geometry(problem, profile.pim), profile)


def _on_bus(problem: MatrixProblem, shape: Geometry, profile: TimingProfile) -> float:
    pim = profile.pim
    groups = min(pim.buffers, pim.channels)
    filled = _inputs(problem, shape) * pim.element_bytes / groups
    results = shape.groups * shape.pixels * shape.tiles / pim.channels
    return profile.least_bus_cycles(filled, results)


def _inputs(problem: MatrixProblem, shape: Geometry) -> int:
    """Number of source elements that any window reads."""
    if not isinstance(problem, ConvProblem):
        return shape.groups * shape.pixels * shape.depth
    top, left, _, _ = problem.pads
    rows = _touched(problem.in_h, problem.out_h, problem.kernel[0], problem.strides[0], top, problem.dilations[0])
    columns = _touched(problem.in_w, problem.out_w, problem.kernel[1], problem.strides[1], left, problem.dilations[1])
    return problem.batch * problem.in_channels * rows * columns


def _touched(size: int, windows: int, kernel: int, stride: int, pad: int, dilation: int) -> int:
    """Number of input rows or columns that any window covers."""
    if dilation == 1 and kernel >= stride:  # windows leave no gaps
        return max(0, min(size, (windows - 1) * stride - pad + kernel) - max(0, -pad))
    places = {window * stride - pad + tap * dilation for window in range(windows) for tap in range(kernel)}
    return sum(0 <= place < size for place in places)
