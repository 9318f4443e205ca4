"""Newton-style PIM as a backend: mappings are its choices, command streams its programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from pimflow.codegen.backend import Capacity, Kept, Transfer, UnitCost
from pimflow.codegen.matrix import MatrixBackend
from pimflow.codegen.newton import PimProgram, lower
from pimflow.codegen.newton.archive import archive_program, restore_program
from pimflow.codegen.newton.commands import CommandCounts
from pimflow.codegen.newton.trace import write_trace
from pimflow.codegen.work import MatrixProblem
from pimflow.ir import Array, Refusal
from pimflow.ir.readout import Functions
from pimflow.runtime.newton.autotune.choose import POLICIES, MappingSearch
from pimflow.runtime.newton.breakdown import cycle_breakdown
from pimflow.runtime.newton.cost import PimCost
from pimflow.runtime.newton.layer import NewtonLayer
from pimflow.runtime.newton.profiles import timing_profile
from pimflow.runtime.newton.trace_timing import TraceResult, simulate_file
from pimflow.runtime.newton.values import OPERANDS, execute, round_to
from pimflow.targets import PimSpec

SUM_RTOL = 2e-5
"""Bound on the error of sums in single precision, over the largest magnitude of a node's result.

Two orders of adding up n = 25,088 products (the deepest layer of VGG-16) differ by about sqrt(n) 2**-24 = 1e-5.
"""
FP16_LATCH_RTOL = 1e-2
"""The same with fp16 accumulators.

Each of n additions into a latch is rounded by up to u = 2**-11 of what it holds by then: together about
sqrt(n / 3) u / sqrt(3). With n = 256 (a dot product of 4096) that is 0.26 % of a result; the bound is four times that.
"""


class NewtonBackend(MatrixBackend[PimProgram]):
    """PIM channels that multiply matrices by GWRITE, G_ACT, COMP and READRES."""

    title = "PIM channels"
    choices: ClassVar[tuple[str, ...]] = POLICIES
    choice_word = "mapping policy"
    default_choice = "newton++"
    counters: ClassVar[tuple[str, ...]] = tuple(CommandCounts().as_json())
    violations: ClassVar[tuple[str, ...]] = ("comps_on_closed_rows",)
    operands: ClassVar[tuple[str, ...]] = OPERANDS

    def __init__(self, device: str, spec: PimSpec) -> None:
        super().__init__(device, spec)
        self.pim = spec
        self.search = MappingSearch(timing_profile(spec))

    @property
    def operand(self) -> str:
        """The target's."""
        return self.pim.operand

    @property
    def memory_channels(self) -> int:
        """PIM-enabled channels do not switch mode between kernels, so the GPU loses them for the whole run."""
        return self.pim.channels

    @property
    def capacity(self) -> Capacity:
        """Rows of every bank: the weights of all kernels are in the banks at once."""
        return Capacity(self.pim.rows, "rows of every bank")

    def kept(self, cost: UnitCost) -> Kept:
        """The rows of the fullest channel; a mapping arranges the same weights always alike."""
        assert isinstance(cost, PimCost)
        return Kept(cost.rows, cost.mapping)

    def at(self, program: PimProgram, first: int) -> PimProgram:
        """The program with its weights from a row on."""
        return replace(program, first_row=first)

    @property
    def readout_functions(self) -> Functions:
        """As the target says."""
        return self.pim.readout_functions

    def cost(self, work: MatrixProblem, choice: str) -> PimCost | Refusal:
        """Exact cycles, commands and energy of the fastest mapping that the choice allows."""
        return self.search.choose(work, choice)

    def time_parts_us(self, work: MatrixProblem, choice: str) -> dict[str, float]:
        """The launch, placing the right-hand side, and then of the slowest channel COMPs and what they wait for."""
        cost = self.cost(work, choice)
        if isinstance(cost, Refusal):
            raise ValueError(cost.reason)
        cycles = {"placement": cost.placement_cycles, **cycle_breakdown(cost).parts}
        return {"launch": cost.launch_us, **{name: count / self.pim.clock_mhz for name, count in cycles.items()}}

    def program(self, work: MatrixProblem, choice: str) -> PimProgram | Refusal:
        """The command streams under the mapping that the price was made with."""
        cost = self.cost(work, choice)
        return cost if isinstance(cost, Refusal) else lower(work, cost.mapping, self.pim)

    def explain(self, work: MatrixProblem, choice: str) -> NewtonLayer | Refusal:
        """The mapping, the cost, and what the cycles are spent on."""
        cost = self.cost(work, choice)
        if isinstance(cost, Refusal):
            return cost
        profile = self.search.profile
        return NewtonLayer(profile.name, cost, cycle_breakdown(cost), self.time_parts_us(work, choice))

    def multiply(self, program: PimProgram, left: Array, right: Array, operand: str) -> Array:
        """The product, computed from the streams alone."""
        return execute(program, left, right, operand)

    def rounded(self, inputs: Sequence[Array | None], operand: str) -> tuple[Array | None, ...]:
        """Source and weights in the operands' type; a bias is added outside."""
        source, weights, *others = inputs
        assert source is not None
        assert weights is not None
        return (round_to(source, operand), round_to(weights, operand), *others)

    def tolerance(self, operand: str) -> float:
        """What adding up in the latches justifies."""
        return FP16_LATCH_RTOL if operand != "fp32" and self.pim.accumulator == "fp16" else SUM_RTOL

    def encode(self, program: PimProgram) -> Any:
        """Problem, mapping and the streams of all channels as loop nests."""
        return archive_program(program)

    def decode(self, data: Any) -> PimProgram:
        """The program with the streams that were archived."""
        return restore_program(data, self.pim)

    def parts(self, program: PimProgram) -> int:
        """Channels."""
        return len(program.streams)

    def trace(self, program: PimProgram, part: int) -> Iterator[str]:
        """The commands of one channel."""
        return write_trace(program.streams[part], self.pim, first_row=program.first_row)

    def replay(self, path: str | Path, *, reopens_rows: bool = False) -> TraceResult:
        """Cycles, commands and energy of one channel's commands."""
        return simulate_file(path, self.pim, reopens_rows=reopens_rows)

    def violations_of(self, cost: UnitCost) -> dict[str, int]:
        """COMPs that ran while some bank group had no open row, as the published controller lets them."""
        assert isinstance(cost, PimCost)
        return {"comps_on_closed_rows": cost.comps_on_closed_rows}

    def transfer(self, loaded: int, stored: int) -> Transfer | None:
        """Over the target's link to the PIM channels, if it has one."""
        if self.pim.transfer_gb_per_s is None:
            return None
        width, per_us = self.pim.element_bytes, self.pim.transfer_gb_per_s * 1e3
        element_mj = width * self.pim.energy.strict.transfer_pj_per_byte * 1e-9
        return Transfer(width * loaded / per_us, width * stored / per_us, loaded * element_mj, stored * element_mj)
