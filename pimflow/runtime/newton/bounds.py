"""How near a layer is to what no mapping of it is faster than: COMPs, what interrupts them, the channel's bus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pimflow.codegen import ConvProblem, MatrixProblem
from pimflow.codegen.newton.im2col import Geometry, geometry
from pimflow.runtime.newton.cost import PimCost, interrupted_cycles
from pimflow.runtime.newton.profiles.base import TimingProfile


@dataclass(frozen=True, slots=True)
class CycleBounds:
    """Cycles that the slowest channel takes at least, whatever the mapping; placement apart.

    Args:
        comp: the fewest COMPs, spread evenly, back to back.
        interrupted: the same with what interrupts them: another row or fill after as many COMPs as one has columns,
            where a channel holds one buffer; a READRES for every result; refresh.
        bus: inputs and results, each once, over the channel's data bus; 0 where the profile does not price bytes.
    """

    comp: int
    interrupted: float
    bus: float

    @property
    def longest(self) -> str:
        """The name of the highest."""
        return max(self.cycles, key=lambda name: self.cycles[name])

    @property
    def cycles(self) -> Mapping[str, float]:
        """All by name, those of which nothing is known left out."""
        found = {"comp": float(self.comp), "interrupted": self.interrupted, "bus": self.bus}
        return {name: cycles for name, cycles in found.items() if cycles}

    def within(self, cycles: int) -> float:
        """Cycles over the highest."""
        return cycles / self.cycles[self.longest]


def cycle_bounds(problem: MatrixProblem, cost: PimCost, profile: TimingProfile) -> CycleBounds:
    """Of a layer that was priced under a profile.

    Of the bus: a group of channels that does a share x of the pixels fills its buffer with x U bytes of the inputs, and
    each of its m channels returns x R / m of the R results. With g groups of c channels in all the slowest one takes
    least if all are alike: U / g bytes and R / c results.
    """
    pim, shape = profile.pim, geometry(problem, profile.pim)
    groups = min(pim.buffers, pim.channels)
    filled = _inputs(problem, shape) * pim.element_bytes / groups
    results = shape.groups * shape.pixels * shape.tiles / pim.channels
    bus = profile.least_bus_cycles(filled, results)
    return CycleBounds(cost.bound_cycles, interrupted_cycles(problem, profile), bus)


def _inputs(problem: MatrixProblem, shape: Geometry) -> int:
    """Elements of the source that are read at all."""
    if not isinstance(problem, ConvProblem):
        return shape.groups * shape.pixels * shape.depth
    top, left, _, _ = problem.pads
    rows = _touched(problem.in_h, problem.out_h, problem.kernel[0], problem.strides[0], top, problem.dilations[0])
    columns = _touched(problem.in_w, problem.out_w, problem.kernel[1], problem.strides[1], left, problem.dilations[1])
    return problem.batch * problem.in_channels * rows * columns


def _touched(size: int, windows: int, kernel: int, stride: int, pad: int, dilation: int) -> int:
    """Rows or columns of the input that a window covers."""
    places = {window * stride - pad + tap * dilation for window in range(windows) for tap in range(kernel)}
    return sum(0 <= place < size for place in places)
