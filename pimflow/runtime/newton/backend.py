"""Newton-style PIM as a backend: its choices are mapping policies, its programs command streams."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pimflow.codegen.answers import (
    Capacity,
    EdgeDivision,
    Kept,
    Lane,
    Parts,
    Records,
    Roof,
    Transfer,
    UnitCost,
    Way,
    WorkReport,
)
from pimflow.codegen.matrix import MatrixBackend, value_around
from pimflow.codegen.newton import PimProgram
from pimflow.codegen.newton.archive import archive_program, archive_text, restore_program
from pimflow.codegen.newton.commands import CommandCounts
from pimflow.codegen.newton.spmm import SpmmProblem, SpmmProgram
from pimflow.codegen.work import MatrixProblem, NarrowProblem, matrix_problem
from pimflow.data import encode
from pimflow.errors import DataError, OptionError
from pimflow.ir import Array, Conv2d, Graph, Node, Refusal, Spmm
from pimflow.ir.analysis.narrow import weight_steps
from pimflow.ir.expansion import LARGEST_BYTE, sums_integers
from pimflow.ir.ops.contraction import Contraction
from pimflow.ir.readout import Functions
from pimflow.runtime.newton.aggregation import (
    Aggregations,
    aggregate,
    archive_aggregation,
    restore_aggregation,
    rounded_edges,
)
from pimflow.runtime.newton.autotune.choose import POLICIES, MappingSearch
from pimflow.runtime.newton.bounds import cycle_bounds
from pimflow.runtime.newton.breakdown import cycle_breakdown
from pimflow.runtime.newton.cost import PimCost, StreamsCost
from pimflow.runtime.newton.layer import NewtonLayer
from pimflow.runtime.newton.profiles import timing_profile
from pimflow.runtime.newton.spmm_cost import SpmmCost
from pimflow.targets import PimSpec
from pimflow.targets.schema.newton import OPERANDS
from pimflow.targets.schema.origin import by_key, matters_to_time

if TYPE_CHECKING:
    from pimflow.runtime.newton.trace_timing import TraceResult

SUM_RTOL = 2e-5
"""Bound on the error of sums in single precision, relative to the largest magnitude in a node's result.

Two orders of adding up n = 25,088 products (the deepest layer of VGG-16) differ by about sqrt(n) 2**-24 = 1e-5.
"""
FP16_LATCH_RTOL = 1e-2
"""The same bound with fp16 accumulators.

Each of n additions into a latch is rounded by up to u = 2**-11 of the latch's value: together about
sqrt(n / 3) u / sqrt(3). With n = 256 (a dot product of 4096) that is 0.26 % of a result; the bound is four times that.
"""

_BYTES_IN_HALF = 65504 // LARGEST_BYTE**2
"""How many products of any two bytes have a sum within the range of fp16: one."""

_HALF_STEP = 2.0**-25
"""The error of rounding the smallest numbers to fp16, whose step is 2**-24."""

_NO_CYCLES = frozenset({"launch_us", "channel_switch_us", "transfer_gb_per_s", "readout_functions", "accumulator"})
"""Keys of the machine, apart from energies, that do not affect the cycles of any stream."""

NewtonWork = MatrixProblem | NarrowProblem | SpmmProblem
NewtonProgram = PimProgram | SpmmProgram


class NewtonBackend(MatrixBackend[NewtonProgram]):
    """PIM channels that multiply matrices and aggregate over edges with GWRITE, G_ACT, COMP and READRES."""

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
        self._in_int8 = None if spec.int8 is None else MappingSearch(timing_profile(spec.in_int8))
        self.aggregations = Aggregations(self.search.timer)

    @property
    def operand(self) -> str:
        """The operand type of the target."""
        return self.pim.operand

    @property
    def narrow_operands(self) -> tuple[str, ...]:
        """As in the target."""
        return self.pim.narrow_operands

    @property
    def memory_channels(self) -> int:
        """The PIM-enabled channels: they do not switch mode between kernels."""
        return self.pim.channels

    @property
    def channel_switch_us(self) -> float | None:
        """As in the target."""
        return self.pim.channel_switch_us

    @cached_property
    def records_key(self) -> str:
        """The timing profile, and the parameters of the machine that affect a mapping's cycles (energies do not)."""
        values = by_key(encode(self.pim))
        of_cycles = {key: value for key, value in values.items() if matters_to_time(key) and key not in _NO_CYCLES}
        return f"{self.search.profile.name} {of_cycles}"

    @property
    def _searches(self) -> tuple[MappingSearch, ...]:
        return (self.search,) if self._in_int8 is None else (self.search, self._in_int8)

    def load_records(self, records: Records) -> None:
        """Loads mappings that were chosen before, and timings of their streams."""
        for search in self._searches:
            search.load_records(records)

    def new_records(self) -> Records:
        """The mappings found and the stream timings requested since the last call."""
        return {key: text for search in self._searches for key, text in search.new_records().items()}

    @property
    def roof(self) -> Roof:
        """COMPs back to back on all channels, with the narrowest operands, and the columns that they read."""
        return max(map(_roof, self._searches))

    @property
    def capacity(self) -> Capacity:
        """Rows of every bank: the weights of all kernels are in the banks at once."""
        return Capacity(self.pim.rows, "rows of every bank")

    def kept(self, cost: UnitCost) -> Kept:
        """The rows of the fullest channel; the same mapping always arranges the same weights identically."""
        assert isinstance(cost, PimCost | SpmmCost)
        return Kept(cost.rows, cost.mapping)

    @property
    def min_kept(self) -> int:
        """One row: weights or features take at least one, and programs of different nodes share none."""
        return 1

    def placed_at(self, program: NewtonProgram, first: int) -> NewtonProgram:
        """The program with its weights or features placed from row `first` on."""
        return replace(program, first_row=first) if isinstance(program, SpmmProgram) else program.at(first)

    def data_start(self, program: NewtonProgram) -> int:
        """Its first row."""
        return program.first_row

    @property
    def readout_functions(self) -> Functions:
        """As in the target."""
        return self.pim.readout_functions

    def work(self, graph: Graph, node: Node) -> NewtonWork | Refusal:
        """The work of a convolution, a matrix product, or a sum over the edges of a graph; or why it cannot run."""
        if isinstance(node.op, Spmm):
            return self.aggregations.work(graph, node)
        problem = matrix_problem(graph, node)
        if isinstance(problem, Refusal):
            return problem
        operand = self.operand_of(node)
        if sums_integers(node.op) and self._has_half_latches(operand) and problem.depth > _BYTES_IN_HALF:
            return Refusal(
                "its sums of bytes, which cannot be scaled down, exceed the range of fp16 accumulators",
                *(problem.depth, _BYTES_IN_HALF, "products"),
                remedy='a target with pim.accumulator = "fp32", or with [pim.int8]',
            )
        return self.of_operand(problem, operand)

    def _has_half_latches(self, operand: str) -> bool:
        """Whether operands of this type are accumulated in fp16."""
        return self.pim.accumulator == "fp16" and operand not in ("fp32", *self.narrow_operands)

    def of_operand(self, problem: MatrixProblem, operand: str) -> MatrixProblem | NarrowProblem:
        """The work of a problem with operands of a given type: the target's own or one of `narrow_operands`.

        Raises:
            OptionError: the channels do not multiply such operands.
        """
        return problem if self._search_in(operand) is self.search else NarrowProblem(problem, operand)

    def _searched(self, work: MatrixProblem | NarrowProblem) -> tuple[MappingSearch, MatrixProblem]:
        """The search for the mappings of some work, and the problem to search for."""
        return (self._search_in(work.dtype), work.product) if isinstance(work, NarrowProblem) else (self.search, work)

    def _search_in(self, operand: str) -> MappingSearch:
        """The search for mappings with operands of a given type; "" is the target's own."""
        if operand in ("", self.operand):
            return self.search
        if self._in_int8 is None or operand not in self.narrow_operands:
            own = " or ".join((self.operand, *self.narrow_operands))
            raise OptionError(f"the PIM channels do not multiply {operand}", f"choose {own}, or another target")
        return self._in_int8

    def in_vain(self, work: NewtonWork, alone_us: float, beside_us: float, adding_us: float) -> Refusal | None:
        """Refuses aggregations whose groups of sources have too few edges."""
        if not isinstance(work, SpmmProblem):
            return None
        return self.aggregations.in_vain(work, alone_us, beside_us, adding_us)

    def edge_divisions(self, work: NewtonWork, beside_us: float) -> tuple[EdgeDivision, ...]:
        """Divisions by the number of edges of each group of sources; a COMP multiplies one group."""
        return self.aggregations.divisions(work, beside_us) if isinstance(work, SpmmProblem) else ()

    def partial_bytes(self, work: NewtonWork, choice: str) -> int:
        """Bytes returned by READRES that the host adds up or scales."""
        return self.aggregations.partial_bytes(work, choice) if isinstance(work, SpmmProblem) else 0

    def cost(self, work: NewtonWork, choice: str) -> PimCost | SpmmCost | Refusal:
        """Exact cycles, commands and energy of the fastest mapping that the choice allows."""
        if isinstance(work, SpmmProblem):
            return self.aggregations.choose(work, choice)
        search, problem = self._searched(work)
        return search.choose(problem, choice)

    def time_us(self, work: NewtonWork, choice: str) -> float | Refusal:
        """The time found by the mapping search, without creating streams; subclasses with their own `cost` use that."""
        if isinstance(work, SpmmProblem) or type(self).cost is not NewtonBackend.cost:
            return super().time_us(work, choice)
        search, problem = self._searched(work)
        return search.time_us(problem, choice)

    def refusal(self, work: NewtonWork, choice: str) -> Refusal | None:
        """The refusal found by the mapping search, which stops at the first mapping that fits if it can."""
        if isinstance(work, SpmmProblem) or type(self).cost is not NewtonBackend.cost:
            return super().refusal(work, choice)
        search, problem = self._searched(work)
        return search.refusal(problem, choice)

    def lower_bound_us(self, work: NewtonWork, choice: str) -> float:
        """A lower bound: for products, COMPs with their interruptions or the bus; for sums over edges, COMPs alone."""
        if isinstance(work, SpmmProblem):
            return self.aggregations.lower_bound_us(work)
        search, problem = self._searched(work)
        return search.lower_bound_us(problem)

    def time_parts_us(self, work: NewtonWork, choice: str) -> Parts:
        """The launch, placing the right-hand side, then the COMPs of the slowest channel and what they wait for."""
        if isinstance(work, SpmmProblem):
            return self.aggregations.time_parts_us(work, choice)
        search, problem = self._searched(work)
        cost = search.choose(problem, choice)
        if isinstance(cost, Refusal):
            raise ValueError(cost.reason)
        cycles = {"placement": cost.placement_cycles, **cycle_breakdown(cost).parts}
        return {"launch": cost.launch_us, **{name: count / self.pim.clock_mhz for name, count in cycles.items()}}

    def ways(self, work: NewtonWork, choice: str) -> tuple[Way, ...]:
        """For a convolution, the best mappings in window order and in column order."""
        if isinstance(work, SpmmProblem) or choice != "auto":
            return ()
        search, problem = self._searched(work)
        cost = search.choose(problem, choice)
        other = None if isinstance(cost, Refusal) else search.other_order(problem, cost)
        if isinstance(cost, Refusal) or other is None:
            return ()
        return tuple(Way(one.mapping.element_order, one.time_us, one is cost) for one in (cost, other))

    def program(self, work: NewtonWork, choice: str) -> NewtonProgram | Refusal:
        """The command streams under the mapping that `cost` prices."""
        if isinstance(work, SpmmProblem):
            return self.aggregations.program(work, choice)
        search, problem = self._searched(work)
        return search.program(problem, choice)

    def explain(self, work: NewtonWork, choice: str) -> WorkReport | Refusal:
        """The mapping, the cost and the breakdown of the cycles."""
        if isinstance(work, SpmmProblem):
            return super().explain(work, choice)
        search, problem = self._searched(work)
        cost = search.choose(problem, choice)
        if isinstance(cost, Refusal):
            return cost
        operand, profile = search.profile.pim.operand, search.profile
        spent, bounds = cycle_breakdown(cost), cycle_bounds(problem, cost, profile)
        other = partial(search.other_order, problem, cost) if choice == "auto" else None
        return NewtonLayer(profile.name, operand, cost, spent, bounds, self.time_parts_us(work, choice), other)

    def work_of(self, program: NewtonProgram) -> NewtonWork:
        """Its problem, with the type of its operands if that is not the machine's."""
        if isinstance(program, SpmmProgram) or program.pim.operand == self.operand:
            return program.problem
        return NarrowProblem(program.problem, program.pim.operand)

    def execute(
        self, program: NewtonProgram, graph: Graph, node: Node, inputs: Sequence[Array | None], operand: str
    ) -> Array:
        """Computes the product from the streams alone, then the rest of the op around it."""
        if isinstance(program, SpmmProgram):
            return aggregate(program, inputs, operand)
        if program.pim.operand in self.narrow_operands:
            return self._of_bytes(program, graph, node, inputs)
        return super().execute(program, graph, node, inputs, operand)

    def _of_bytes(self, program: PimProgram, graph: Graph, node: Node, inputs: Sequence[Array | None]) -> Array:
        """Divides the operands by their steps, multiplies the integers, scales, and computes the rest of the op."""
        from pimflow.runtime.newton.values import execute_bytes

        narrow = node.placement.narrow
        assert narrow is not None, "only marked products have programs with narrow operands"
        assert isinstance(node.op, Contraction)
        steps = weight_steps(graph, node.inputs[1], node.op.channel_axis)
        assert not isinstance(steps, Refusal), "the weights of a marked product have steps"
        step, own = narrow.step, steps.astype(np.float64)
        spatial = own.ndim > 0 and isinstance(node.op, Conv2d)
        of_weights, of_result = (own.reshape(-1, 1, 1, 1), own.reshape(-1, 1, 1)) if spatial else (own, own)

        def product(left: Array, right: Array) -> Array:
            sums = execute_bytes(program, np.rint(np.divide(left, step)), np.rint(np.divide(right, of_weights)))
            return np.asarray(sums * (step * of_result), np.float32)

        return value_around(graph, node, inputs, product)

    def multiply(self, program: NewtonProgram, left: Array, right: Array, operand: str) -> Array:
        """The product, computed from the streams alone."""
        assert isinstance(program, PimProgram)
        from pimflow.runtime.newton.values import execute

        return execute(program, left, right, operand)

    def rounded(self, inputs: Sequence[Array | None], operand: str) -> tuple[Array | None, ...]:
        """The inputs with source and weights rounded to the operands' type; biases and scale factors stay as they are.

        Narrow integers are multiplied without rounding.
        """
        if operand in self.narrow_operands:
            return tuple(inputs)
        source, weights, *others = inputs
        assert source is not None
        assert weights is not None
        if weights.dtype.kind == "i":  # row pointers of an edge list
            return rounded_edges(inputs, operand)
        from pimflow.runtime.newton.values import round_to

        return (round_to(source, operand), round_to(weights, operand), *others)

    def tolerance(self, operand: str) -> float:
        """The error that accumulation in the latches can cause."""
        return FP16_LATCH_RTOL if self._has_half_latches(operand) else SUM_RTOL

    def absolute_tolerance(self, work: NewtonWork, operand: str) -> float:
        """Half of fp16's smallest number for each addition into an fp16 latch: one for each COMP of a dot product."""
        if isinstance(work, SpmmProblem | NarrowProblem) or not self._has_half_latches(operand):
            return 0.0
        return -(-work.depth // self.pim.multipliers) * _HALF_STEP

    def describe(self, program: NewtonProgram) -> str:
        """The mapping, with the operand type if it is not the machine's; empty for sums over edges."""
        if isinstance(program, SpmmProgram):
            return ""
        operand = program.pim.operand
        return f"{operand} operands, {program.mapping.text}" if operand != self.operand else program.mapping.text

    def encode(self, program: NewtonProgram) -> Any:
        """Problem, mapping, and the streams of all channels as loop nests; the operand type if not the machine's."""
        if isinstance(program, SpmmProgram):
            return archive_aggregation(program)
        operand = self._other_operand(program)
        return {**archive_program(program), **({} if operand is None else {"operand": operand})}

    def encode_text(self, program: NewtonProgram) -> str:
        """As in `Backend`; streams are most of the text."""
        if isinstance(program, SpmmProgram):
            return super().encode_text(program)
        return archive_text(program, self._other_operand(program))

    def _other_operand(self, program: PimProgram) -> str | None:
        """The operand type of a program if it is not the machine's."""
        return program.pim.operand if program.pim.operand != self.operand else None

    def identity_key(self, program: NewtonProgram) -> Hashable:
        """A key that is equal for programs that differ only in their first row."""
        streams = program.streams if isinstance(program, SpmmProgram) else program.channel_classes
        return tuple(map(id, (program.problem, program.mapping, program.pim, streams)))

    def content_key(self, program: NewtonProgram) -> str | None:
        """Machine, problem and mapping, which determine the streams; None if the streams were given instead."""
        if isinstance(program, SpmmProgram) or program.other_streams is not None:
            return None
        return f"{self.records_key} {program.problem} {program.mapping} {program.pim.operand}"

    def decode(self, data: Any) -> NewtonProgram:
        """The program with the archived streams."""
        if isinstance(data, dict) and "blocks" in data:
            return restore_aggregation(data, self.pim)
        if not isinstance(data, dict) or "operand" not in data:
            return restore_program(data, self.pim)
        rest = dict(data)
        operand = rest.pop("operand")
        if operand not in self.narrow_operands:
            raise DataError(f"'operand' is {operand!r}, which this machine does not multiply")
        return restore_program(rest, self.pim.in_int8)

    def parts(self, program: NewtonProgram) -> int:
        """The number of channels."""
        return len(program.streams)

    def lanes(self, cost: UnitCost) -> tuple[Lane, ...]:
        """The busy channels, from their first commands on, which follow the launch and the placement of operands."""
        assert isinstance(cost, StreamsCost)
        first = cost.launch_us + cost.placement_cycles / self.pim.clock_mhz
        busy = ((channel, entry.cycles) for channel, entry in enumerate(cost.channels) if entry.cycles)
        return tuple(Lane(channel, first, first + cycles / self.pim.clock_mhz, "channel") for channel, cycles in busy)

    def trace(self, program: NewtonProgram, part: int) -> Iterator[str]:
        """The commands of one channel."""
        from pimflow.codegen.newton.trace import write_trace

        return write_trace(program.streams[part], self.pim, first_row=program.first_row)

    def replay(self, path: str | Path, *, reopens_rows: bool = False, operand: str = "") -> TraceResult:
        """Cycles, commands and energy of the trace of one channel."""
        from pimflow.runtime.newton.trace_timing import simulate_file

        return simulate_file(path, self._search_in(operand).profile.pim, reopens_rows=reopens_rows)

    def violations_of(self, cost: UnitCost) -> dict[str, int]:
        """COMPs that ran while some bank group had no open row, which the published controller permits."""
        assert isinstance(cost, StreamsCost)
        return {"comps_on_closed_rows": cost.comps_on_closed_rows}

    def transfer(self, loaded: int, stored: int, partial_bytes: int = 0) -> Transfer | None:
        """The transfer over the target's link to the PIM channels; None if it has none."""
        if self.pim.transfer_gb_per_s is None:
            return None
        width, per_us = self.pim.element_bytes, self.pim.transfer_gb_per_s * 1e3
        byte_mj = self.pim.energy.strict.transfer_pj_per_byte * 1e-9
        there, back = width * loaded, partial_bytes or width * stored
        return Transfer(there / per_us, back / per_us, there * byte_mj, back * byte_mj)


def _roof(search: MappingSearch) -> Roof:
    pim = search.profile.pim
    per_us = pim.channels * pim.banks * pim.multipliers * pim.clock_mhz / search.profile.comp_cycles
    return Roof(per_us, per_us * pim.element_bytes)
