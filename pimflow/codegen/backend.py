"""The interface between the compiler and the units of a machine: one backend per kind of unit.

A machine is a host, which can run every node (`host.py`), and further units that run the work they accept. A backend is
created for one device of one target and owns its caches. A new kind of unit needs a backend and a schema
(`pimflow/targets`), nothing else: see docs/extending.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from pimflow.codegen.answers import (
    Capacity,
    EdgeDivision,
    Kept,
    Lane,
    Parts,
    PlainReport,
    Records,
    Roof,
    TraceReport,
    Transfer,
    UnitCost,
    Way,
    WorkReport,
)
from pimflow.codegen.work import Work
from pimflow.data import json_text
from pimflow.errors import OptionError
from pimflow.errors import choice as choice_among
from pimflow.ir import Array, Graph, Node, Refusal
from pimflow.ir.readout import Functions

W = TypeVar("W", bound=Work)
"""The work that a backend accepts."""
P = TypeVar("P")
"""A backend's programs."""


class Backend(ABC, Generic[W, P]):
    """A unit that runs the work it accepts, `W`. Its programs, `P`, are what it executes, times and stores.

    A unit that multiplies matrices is a `MatrixBackend` (`pimflow/codegen/matrix.py`).

    Args:
        device: the unit's name in the target.
        spec: the unit's description in the target.
    """

    title: ClassVar[str]
    """The name of the unit in traces and charts."""
    choices: ClassVar[tuple[str, ...]] = ("auto",)
    """The choices that a plan may make: mapping policies, strategies. The last one is the backend's best."""
    choice_word: ClassVar[str] = "choice"
    """The word for its choices, for users."""
    default_choice: ClassVar[str] = "auto"
    """The choice of a policy that names none."""
    counters: ClassVar[tuple[str, ...]] = ()
    """The names of the counters of its costs."""
    violations: ClassVar[tuple[str, ...]] = ()
    """What its programs may do, under some settings, that the hardware could not; `violations_of` counts each."""
    copies_by_work: ClassVar[bool] = False
    """Whether the cost of copies comes from `copies` rather than `transfer`."""
    operands: ClassVar[tuple[str, ...]] = ("fp32",)
    """Element types in which its programs can be executed."""

    def __init__(self, device: str, spec: Any) -> None:
        self.device = device
        self.spec = spec

    @property
    def roof(self) -> Roof | None:
        """Peak throughput of its multipliers, and bandwidth of its own memory; None if neither is known."""
        return None

    @property
    def operand(self) -> str:
        """The element type that the unit multiplies."""
        return self.operands[0]

    @property
    def narrow_operands(self) -> tuple[str, ...]:
        """Narrow integer types that it multiplies in addition to `operand`; a `Placement.narrow` names one."""
        return ()

    def operand_of(self, node: Node, override: str | None = None) -> str:
        """The element type in which a node's operands are multiplied.

        Args:
            node: placed on the unit.
            override: one of `operands`, instead of the unit's own; narrow integers keep their type.
        """
        narrow = node.placement.narrow
        return narrow.dtype if narrow is not None and narrow.dtype in self.narrow_operands else override or self.operand

    @property
    def memory_channels(self) -> int:
        """How many of the host's memory channels the unit occupies while it is in use."""
        return 0

    @property
    def channel_switch_us(self) -> float | None:
        """The time to hand these channels over during a run; None if the unit occupies them for the whole run."""
        return None

    @property
    def records_key(self) -> str:
        """Everything that `new_records` depends on apart from the code, as text; "" for a unit that learns nothing."""
        return ""

    def load_records(self, records: Records) -> None:
        """Adopts what `new_records` returned in other runs, by key. Damaged records are computed again."""

    def new_records(self) -> Records:
        """Results that were expensive to compute, new since the last call; for `load_records` in other runs."""
        return {}

    @property
    def capacity(self) -> Capacity | None:
        """How much program data its memory can hold; None if that is unlimited."""
        return None

    def kept(self, cost: UnitCost) -> Kept:
        """The data that the program of a cost stores in the unit's memory; called for units with a `capacity`."""
        return Kept(0)

    @property
    def min_kept(self) -> int:
        """A lower bound on what any program stores there, in the capacity's unit."""
        return 0

    def placed_at(self, program: P, first: int) -> P:
        """The program with its data placed from `first` on, in the capacity's unit."""
        return program

    def data_start(self, program: P) -> int:
        """Where a program's data begin: the last argument of `placed_at`, 0 without one."""
        return 0

    @property
    def readout_functions(self) -> Functions:
        """The functions that can be applied for free while a result is read out."""
        return ()

    def resolve(self, choice: str) -> str:
        """The choice that a name stands for, case-insensitive; "" is the default.

        Raises:
            OptionError: the unit does not offer it.
        """
        return choice_among(self.choice_word, choice, self.choices) if choice else self.default_choice

    def choice_for(self, word: str) -> str:
        """The choice that a policy's name stands for on this unit; the default if only other units know the name."""
        return word if word in self.choices else self.default_choice

    @abstractmethod
    def work(self, graph: Graph, node: Node) -> W | Refusal:
        """The work that a node is for the unit, or why it cannot run there.

        Any node with one result may be accepted, except movements and nodes that are fused into another.
        """

    def in_vain(self, work: W, alone_us: float, beside_us: float, adding_us: float) -> Refusal | None:
        """Why the unit cannot speed up work on a graph, alone or together with the host; None if it may.

        Called before `cost`; uses cheap bounds and creates no program.

        Args:
            work: accepted by the unit.
            alone_us: the host's time with all its memory channels.
            beside_us: the host's time with the channels that the units leave it.
            adding_us: the time to add up two parts of the result.
        """
        return None

    def edge_divisions(self, work: W, beside_us: float) -> tuple[EdgeDivision, ...]:
        """Ways to divide the edges of work on a graph between unit and host, best first by the bounds of `in_vain`.

        Both sides get some edges in every division.
        """
        return ()

    def partial_bytes(self, work: W, choice: str) -> int:
        """Bytes of partial results, for work on a graph, that the host must add up after they arrive."""
        return 0

    @abstractmethod
    def cost(self, work: W, choice: str) -> UnitCost | Refusal:
        """The cost of work under a choice, or why it cannot run there."""

    def time_us(self, work: W, choice: str) -> float | Refusal:
        """The time of `cost` alone; a backend may have a faster way to compute it."""
        cost = self.cost(work, choice)
        return cost if isinstance(cost, Refusal) else cost.time_us

    def refusal(self, work: W, choice: str) -> Refusal | None:
        """Why work has no `cost` under a choice, or None; a backend may have a faster way to find out."""
        time_us = self.time_us(work, choice)
        return time_us if isinstance(time_us, Refusal) else None

    def lower_bound_us(self, work: W, choice: str) -> float:
        """A lower bound on the time of `cost` under a choice, by arithmetic alone; 0 if in doubt.

        The search asks for a cost only if this bound leaves the work a chance.
        """
        return 0.0

    def static_energy_mj(self, time_us: float) -> float:
        """The energy that the unit draws over a run in any case, in addition to the host's board."""
        return 0.0

    def time_parts_us(self, work: W, choice: str) -> Parts:
        """The time of a cost, broken down by what it is spent on; slow, so called only for work placed on the unit.

        Raises:
            ValueError: the work cannot run under the choice.
        """
        cost = self.cost(work, choice)
        if isinstance(cost, Refusal):
            raise ValueError(cost.reason)
        return {"run": cost.time_us}

    def ways(self, work: W, choice: str) -> tuple[Way, ...]:
        """Element orders in which work can be done, with the cost of each; empty if there is only one order."""
        return ()

    @abstractmethod
    def program(self, work: W, choice: str) -> P | Refusal:
        """What the unit executes: the program whose cost is `cost`."""

    def explain(self, work: W, choice: str) -> WorkReport | Refusal:
        """A report on work under a choice: its cost, and where the time goes."""
        cost = self.cost(work, choice)
        return cost if isinstance(cost, Refusal) else PlainReport(choice, cost, self.time_parts_us(work, choice))

    def work_of(self, program: P) -> W | None:
        """The work that a program does; None if the program cannot say."""
        return None

    @abstractmethod
    def execute(self, program: P, graph: Graph, node: Node, inputs: Sequence[Array | None], operand: str) -> Array:
        """The value of a node on the unit, computed by its program, in the node's own element type.

        Args:
            program: what to execute.
            graph, node: the node, and the graph that knows its shapes.
            inputs: its operands; None for absent ones.
            operand: the element type to which operands are rounded, from `operand_of`.
        """

    @abstractmethod
    def encode(self, program: P) -> Any:
        """The program as JSON values, independent of where `placed_at` placed its data."""

    def encode_text(self, program: P) -> str:
        """The result of `encode` as JSON without blanks; a backend of large programs may write it directly."""
        return json_text(self.encode(program))

    def identity_key(self, program: P) -> Hashable:
        """A cheap key, valid while the program lives: programs with equal keys have the same `encode`."""
        return id(program)

    def content_key(self, program: P) -> str | None:
        """Everything that the result of `encode` depends on, as text; None if only the program itself determines it."""
        return None

    @abstractmethod
    def decode(self, data: Any) -> P:
        """The program that was given to `encode`, with its data placed from 0 on.

        Raises:
            DataError: the data are not a program, or not one for this machine.
        """

    def rounded(self, inputs: Sequence[Array | None], operand: str) -> tuple[Array | None, ...]:
        """A node's operands as the unit computes with them, in single precision if they lose digits."""
        return tuple(inputs)

    def tolerance(self, operand: str) -> float:
        """The maximum error of a node computed by its program, relative to the largest magnitude.

        The reference is the node computed in single precision from operands that are `rounded` to the type, so the
        bound covers only the accumulation.
        """
        return 1e-4

    def absolute_tolerance(self, work: W, operand: str) -> float:
        """The absolute part of this error: rounding in narrow accumulators, however small the values are."""
        return 0.0

    def describe(self, program: P) -> str:
        """How a program is arranged on the unit, as one clause: its mapping or strategy; "" if there is one way."""
        return ""

    def parts(self, program: P) -> int:
        """The number of parts of the unit whose commands are written as text, each to its own trace."""
        return 0

    def lanes(self, cost: UnitCost) -> tuple[Lane, ...]:
        """When each of the unit's `parts` is busy with the program of a cost."""
        return ()

    def trace(self, program: P, part: int) -> Iterator[str]:
        """The lines of text that one part executes."""
        return iter(())

    def replay(self, path: str | Path, *, reopens_rows: bool = False, operand: str = "") -> TraceReport:
        """Times the lines of a file that `trace` wrote, plain or gzip.

        Args:
            path: the file.
            reopens_rows: whether the memory controller reopens rows that a refresh closed, if the unit has one and its
                timing rules permit it.
            operand: the element type that they were written for: the unit's own or one of `narrow_operands`; "" is
                its own.

        Raises:
            OptionError: the unit's programs have no text form, or it does not multiply such operands.
            TraceError: the file cannot be read, or a line is malformed.
            CommandOrderError: the unit would refuse a command.
        """
        raise OptionError(f"programs for {self.title} have no text form", "choose a target with another unit")

    def violations_of(self, cost: UnitCost) -> Mapping[str, int]:
        """How often the programs of a cost do something that the hardware could not, by name."""
        return {}

    def copies(self, work: W, choice: str) -> Transfer | None:
        """Copies, if they depend on more of the work than the number of elements; called if `copies_by_work`."""
        return None

    def transfer(self, loaded: int, stored: int, partial_bytes: int = 0) -> Transfer | None:
        """The copies of these numbers of elements to and from the unit; None if it accesses the host's memory itself.

        Partial results, if there are any, come back instead of the elements.
        """
        return None
