"""Newton-style PIM as a backend: mappings are its choices, command streams its programs."""

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
from pimflow.codegen.newton.archive import archive_program, restore_program
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
"""Bound on the error of sums in single precision, over the largest magnitude of a node's result.

Two orders of adding up n = 25,088 products (the deepest layer of VGG-16) differ by about sqrt(n) 2**-24 = 1e-5.
"""
FP16_LATCH_RTOL = 1e-2
"""The same with fp16 accumulators.

Each of n additions into a latch is rounded by up to u = 2**-11 of what it holds by then: together about
sqrt(n / 3) u / sqrt(3). With n = 256 (a dot product of 4096) that is 0.26 % of a result; the bound is four times that.
"""

_BYTES_IN_HALF = 65504 // LARGEST_BYTE**2
"""Products of two bytes whose sum is in the range of fp16, whatever they are: one."""

_HALF_STEP = 2.0**-25
"""What rounding to fp16 moves the smallest numbers by, whose step is 2**-24."""

_NO_CYCLES = frozenset({"launch_us", "channel_switch_us", "transfer_gb_per_s", "readout_functions", "accumulator"})
"""Keys of the machine beside energies that no stream's cycles depend on."""

NewtonWork = MatrixProblem | NarrowProblem | SpmmProblem
NewtonProgram = PimProgram | SpmmProgram


class NewtonBackend(MatrixBackend[NewtonProgram]):
    """PIM channels that multiply matrices, and aggregate over edges, by GWRITE, G_ACT, COMP and READRES."""

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
        """The target's."""
        return self.pim.operand

    @property
    def narrow_operands(self) -> tuple[str, ...]:
        """As the target says."""
        return self.pim.narrow_operands

    @property
    def memory_channels(self) -> int:
        """The PIM-enabled ones: they do not switch mode between kernels."""
        return self.pim.channels

    @property
    def channel_switch_us(self) -> float | None:
        """As the target says."""
        return self.pim.channel_switch_us

    @cached_property
    def learnt_of(self) -> str:
        """The timing profile, and what of the machine a mapping's cycles depend on: neither energies nor launches."""
        values = by_key(encode(self.pim))
        of_cycles = {key: value for key, value in values.items() if matters_to_time(key) and key not in _NO_CYCLES}
        return f"{self.search.profile.name} {of_cycles}"

    @property
    def _searches(self) -> tuple[MappingSearch, ...]:
        return (self.search,) if self._in_int8 is None else (self.search, self._in_int8)

    def recall(self, records: Records) -> None:
        """Mappings that were chosen before, and timings of their streams."""
        for search in self._searches:
            search.recall(records)

    def learnt(self) -> Records:
        """Mappings that have been searched for, and timings of their streams that were asked for."""
        return {key: text for search in self._searches for key, text in search.learnt().items()}

    @property
    def roof(self) -> Roof:
        """COMPs back to back on all channels, of the narrowest operands, and the columns that they read."""
        return max(map(_roof, self._searches))

    @property
    def capacity(self) -> Capacity:
        """Rows of every bank: the weights of all kernels are in the banks at once."""
        return Capacity(self.pim.rows, "rows of every bank")

    def kept(self, cost: UnitCost) -> Kept:
        """The rows of the fullest channel; a mapping arranges the same weights always alike."""
        assert isinstance(cost, PimCost | SpmmCost)
        return Kept(cost.rows, cost.mapping)

    @property
    def least_kept(self) -> int:
        """Weights, or features, take a row: programs of different nodes share none."""
        return 1

    def at(self, program: NewtonProgram, first: int) -> NewtonProgram:
        """The program with its weights, or its features, from a row on."""
        return replace(program, first_row=first) if isinstance(program, SpmmProgram) else program.at(first)

    def first_of(self, program: NewtonProgram) -> int:
        """Its first row."""
        return program.first_row

    @property
    def readout_functions(self) -> Functions:
        """As the target says."""
        return self.pim.readout_functions

    def work(self, graph: Graph, node: Node) -> NewtonWork | Refusal:
        """Convolutions and matrix products, and sums over the edges of a graph."""
        if isinstance(node.op, Spmm):
            return self.aggregations.work(graph, node)
        problem = matrix_problem(graph, node)
        if isinstance(problem, Refusal):
            return problem
        operand = self.operand_of(node)
        if sums_integers(node.op) and self._has_half_latches(operand) and problem.depth > _BYTES_IN_HALF:
            return Refusal(
                "its sums of bytes, which no scale makes smaller, are beyond the range of fp16 accumulators",
                *(problem.depth, _BYTES_IN_HALF, "products"),
                remedy='a target with pim.accumulator = "fp32", or with [pim.int8]',
            )
        return self.of_operand(problem, operand)

    def _has_half_latches(self, operand: str) -> bool:
        """Whether sums of such operands are kept in fp16."""
        return self.pim.accumulator == "fp16" and operand not in ("fp32", *self.narrow_operands)

    def of_operand(self, problem: MatrixProblem, operand: str) -> MatrixProblem | NarrowProblem:
        """The work of a problem with operands of a type, the target's own or one of `narrow_operands`.

        Raises:
            OptionError: the channels do not multiply such operands.
        """
        return problem if self._search_in(operand) is self.search else NarrowProblem(problem, operand)

    def _searched(self, work: MatrixProblem | NarrowProblem) -> tuple[MappingSearch, MatrixProblem]:
        """Where the mappings of work are searched, and of what problem."""
        return (self._search_in(work.dtype), work.product) if isinstance(work, NarrowProblem) else (self.search, work)

    def _search_in(self, operand: str) -> MappingSearch:
        """Mappings on the channels as they multiply operands of a type; "" is the target's own."""
        if operand in ("", self.operand):
            return self.search
        if self._in_int8 is None or operand not in self.narrow_operands:
            own = " or ".join((self.operand, *self.narrow_operands))
            raise OptionError(f"the PIM channels multiply no {operand}", f"choose {own}, or another target")
        return self._in_int8

    def in_vain(self, work: NewtonWork, alone_us: float, beside_us: float, adding_us: float) -> Refusal | None:
        """Where groups of sources have too few edges."""
        if not isinstance(work, SpmmProblem):
            return None
        return self.aggregations.in_vain(work, alone_us, beside_us, adding_us)

    def edge_divisions(self, work: NewtonWork, beside_us: float) -> tuple[EdgeDivision, ...]:
        """By the edges of groups of as many sources as a COMP multiplies."""
        return self.aggregations.divisions(work, beside_us) if isinstance(work, SpmmProblem) else ()

    def partial_bytes(self, work: NewtonWork, choice: str) -> int:
        """What READRES returned of destinations with sources in several blocks."""
        return self.aggregations.partial_bytes(work, choice) if isinstance(work, SpmmProblem) else 0

    def cost(self, work: NewtonWork, choice: str) -> PimCost | SpmmCost | Refusal:
        """Exact cycles, commands and energy of the fastest mapping that the choice allows."""
        if isinstance(work, SpmmProblem):
            return self.aggregations.choose(work, choice)
        search, problem = self._searched(work)
        return search.choose(problem, choice)

    def time_us(self, work: NewtonWork, choice: str) -> float | Refusal:
        """As the search of mappings timed it, without making streams; the default for what has a `cost` of its own."""
        if isinstance(work, SpmmProblem) or type(self).cost is not NewtonBackend.cost:
            return super().time_us(work, choice)
        search, problem = self._searched(work)
        return search.time_us(problem, choice)

    def refusal(self, work: NewtonWork, choice: str) -> Refusal | None:
        """As the search of mappings says once it has found one that fits."""
        if isinstance(work, SpmmProblem) or type(self).cost is not NewtonBackend.cost:
            return super().refusal(work, choice)
        search, problem = self._searched(work)
        return search.refusal(problem, choice)

    def least_us(self, work: NewtonWork, choice: str) -> float:
        """Of products COMPs and what has to interrupt them, whatever the mapping; of sums over edges their COMPs."""
        if isinstance(work, SpmmProblem):
            return self.aggregations.least_us(work)
        search, problem = self._searched(work)
        return search.least_us(problem)

    def time_parts_us(self, work: NewtonWork, choice: str) -> Parts:
        """The launch, placing the right-hand side, and then of the slowest channel COMPs and what they wait for."""
        if isinstance(work, SpmmProblem):
            return self.aggregations.time_parts_us(work, choice)
        search, problem = self._searched(work)
        cost = search.choose(problem, choice)
        if isinstance(cost, Refusal):
            raise ValueError(cost.reason)
        cycles = {"placement": cost.placement_cycles, **cycle_breakdown(cost).parts}
        return {"launch": cost.launch_us, **{name: count / self.pim.clock_mhz for name, count in cycles.items()}}

    def ways(self, work: NewtonWork, choice: str) -> tuple[Way, ...]:
        """Of a convolution window order, and the best mapping without it."""
        if isinstance(work, SpmmProblem) or choice != "auto":
            return ()
        search, problem = self._searched(work)
        cost = search.choose(problem, choice)
        other = None if isinstance(cost, Refusal) else search.other_order(problem, cost)
        if isinstance(cost, Refusal) or other is None:
            return ()
        return tuple(Way(one.mapping.element_order, one.time_us, one is cost) for one in (cost, other))

    def program(self, work: NewtonWork, choice: str) -> NewtonProgram | Refusal:
        """The command streams under the mapping that the price was made with."""
        if isinstance(work, SpmmProblem):
            return self.aggregations.program(work, choice)
        search, problem = self._searched(work)
        return search.program(problem, choice)

    def explain(self, work: NewtonWork, choice: str) -> WorkReport | Refusal:
        """The mapping, the cost, and what the cycles are spent on."""
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

    def execute(
        self, program: NewtonProgram, graph: Graph, node: Node, inputs: Sequence[Array | None], operand: str
    ) -> Array:
        """Computed from the streams alone; what the op does beside the product is added."""
        if isinstance(program, SpmmProgram):
            return aggregate(program, inputs, operand)
        if program.pim.operand in self.narrow_operands:
            return self._of_bytes(program, graph, node, inputs)
        return super().execute(program, graph, node, inputs, operand)

    def _of_bytes(self, program: PimProgram, graph: Graph, node: Node, inputs: Sequence[Array | None]) -> Array:
        """The whole numbers that operands are multiples of, multiplied by the program; scaled, and what the op adds."""
        from pimflow.runtime.newton.values import execute_bytes

        narrow = node.placement.narrow
        assert narrow is not None, "the program is of a product that was marked"
        assert isinstance(node.op, Contraction)
        steps = weight_steps(graph, node.inputs[1], node.op.channel_axis)
        assert not isinstance(steps, Refusal), "the weights are those that were marked"
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
        """Source and weights in the operands' type; a bias is added outside, rows are scaled outside.

        Whole numbers of few bits are multiplied as they are.
        """
        if operand in self.narrow_operands:
            return tuple(inputs)
        source, weights, *others = inputs
        assert source is not None
        assert weights is not None
        if weights.dtype.kind == "i":  # pointers to rows of edges
            return rounded_edges(inputs, operand)
        from pimflow.runtime.newton.values import round_to

        return (round_to(source, operand), round_to(weights, operand), *others)

    def tolerance(self, operand: str) -> float:
        """What adding up in the latches justifies."""
        return FP16_LATCH_RTOL if self._has_half_latches(operand) else SUM_RTOL

    def least_error(self, work: NewtonWork, operand: str) -> float:
        """Half of fp16's smallest number for each addition into fp16 latches: one for every COMP of a dot product."""
        if isinstance(work, SpmmProblem | NarrowProblem) or not self._has_half_latches(operand):
            return 0.0
        return -(-work.depth // self.pim.multipliers) * _HALF_STEP

    def describe(self, program: NewtonProgram) -> str:
        """Its mapping; sums over edges have one."""
        if isinstance(program, SpmmProgram):
            return ""
        operand = program.pim.operand
        return f"{operand} operands, {program.mapping.text}" if operand != self.operand else program.mapping.text

    def encode(self, program: NewtonProgram) -> Any:
        """Problem, mapping, streams of all channels as loop nests; the operands' type if not the machine's."""
        if isinstance(program, SpmmProgram):
            return archive_aggregation(program)
        narrow = {"operand": program.pim.operand} if program.pim.operand != self.operand else {}
        return {**archive_program(program), **narrow}

    def same(self, program: NewtonProgram) -> Hashable:
        """What programs share that differ in their first row alone."""
        streams = program.streams if isinstance(program, SpmmProgram) else program.classes
        return tuple(map(id, (program.problem, program.mapping, program.pim, streams)))

    def made_of(self, program: NewtonProgram) -> str | None:
        """Machine, problem and mapping, which make the streams, unless others were given."""
        if isinstance(program, SpmmProgram) or program.given is not None:
            return None
        return f"{self.learnt_of} {program.problem} {program.mapping} {program.pim.operand}"

    def decode(self, data: Any) -> NewtonProgram:
        """The program with the streams that were archived."""
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
        """Channels."""
        return len(program.streams)

    def lanes(self, cost: UnitCost) -> tuple[Lane, ...]:
        """Channels, from the first command on: before it are the launch and what is written into the banks."""
        assert isinstance(cost, StreamsCost)
        first = cost.launch_us + cost.placement_cycles / self.pim.clock_mhz
        busy = ((channel, entry.cycles) for channel, entry in enumerate(cost.channels) if entry.cycles)
        return tuple(Lane(channel, first, first + cycles / self.pim.clock_mhz, "channel") for channel, cycles in busy)

    def trace(self, program: NewtonProgram, part: int) -> Iterator[str]:
        """The commands of one channel."""
        from pimflow.codegen.newton.trace import write_trace

        return write_trace(program.streams[part], self.pim, first_row=program.first_row)

    def replay(self, path: str | Path, *, reopens_rows: bool = False, operand: str = "") -> TraceResult:
        """Cycles, commands and energy of one channel's commands."""
        from pimflow.runtime.newton.trace_timing import simulate_file

        return simulate_file(path, self._search_in(operand).profile.pim, reopens_rows=reopens_rows)

    def violations_of(self, cost: UnitCost) -> dict[str, int]:
        """COMPs that ran while some bank group had no open row, as the published controller lets them."""
        assert isinstance(cost, StreamsCost)
        return {"comps_on_closed_rows": cost.comps_on_closed_rows}

    def transfer(self, loaded: int, stored: int, partial_bytes: int = 0) -> Transfer | None:
        """Over the target's link to the PIM channels, if it has one."""
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
