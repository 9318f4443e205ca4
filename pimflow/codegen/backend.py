"""What the compiler asks of the units of a machine: one backend per kind of unit.

A machine is a host, which can run every node (`host.py`), and further units that run the work they accept. A backend is
made for one device of one target and owns its caches. Adding a kind of unit is a backend and a schema
(`pimflow/targets`); nothing else changes: docs/extending.md.
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
from pimflow.errors import OptionError
from pimflow.errors import choice as choice_among
from pimflow.ir import Array, Graph, Node, Refusal
from pimflow.ir.readout import Functions

W = TypeVar("W", bound=Work)
"""The work that a backend accepts."""
P = TypeVar("P")
"""A backend's programs."""


class Backend(ABC, Generic[W, P]):
    """A unit that runs the work it accepts, `W`. Its programs are `P`: what it executes, times and stores.

    A unit that multiplies matrices is a `MatrixBackend` (`pimflow/codegen/matrix.py`).

    Args:
        device: the unit's name in the target.
        spec: what the target says of it.
    """

    title: ClassVar[str]
    """What the unit is called in traces and charts."""
    choices: ClassVar[tuple[str, ...]] = ("auto",)
    """What a plan may ask for: mapping policies, strategies. The last one is the best that the backend can do."""
    choice_word: ClassVar[str] = "choice"
    """What its choices are called."""
    default_choice: ClassVar[str] = "auto"
    """What a policy means that names none of them."""
    counters: ClassVar[tuple[str, ...]] = ()
    """What its costs count."""
    violations: ClassVar[tuple[str, ...]] = ()
    """What its programs may do, under some settings, that the hardware could not; `violations_of` counts them."""
    copies_by_work: ClassVar[bool] = False
    """Whether what copies cost is asked of `copies`, not of `transfer`."""
    operands: ClassVar[tuple[str, ...]] = ("fp32",)
    """Element types that its programs can be executed in."""

    def __init__(self, device: str, spec: Any) -> None:
        self.device = device
        self.spec = spec

    @property
    def roof(self) -> Roof | None:
        """Peaks of its multipliers, and of what its own memory delivers to them; None if neither is known."""
        return None

    @property
    def operand(self) -> str:
        """The element type that the unit multiplies."""
        return self.operands[0]

    @property
    def narrow_operands(self) -> tuple[str, ...]:
        """Whole numbers of few bits that it multiplies too, beside `operand`; a `Placement.narrow` names one."""
        return ()

    def operand_of(self, node: Node, asked: str | None = None) -> str:
        """The element type that a node's operands are multiplied in.

        Args:
            node: placed on the unit.
            asked: one of `operands`, in place of the unit's own; whole numbers of few bits stay what they are.
        """
        narrow = node.placement.narrow
        return narrow.dtype if narrow is not None and narrow.dtype in self.narrow_operands else asked or self.operand

    @property
    def memory_channels(self) -> int:
        """How many of the host's memory channels the unit takes for itself while it is in use."""
        return 0

    @property
    def channel_switch_us(self) -> float | None:
        """How long these take to change hands, in a run; None if the unit holds them for the whole run."""
        return None

    @property
    def learnt_of(self) -> str:
        """All that what is learnt of work depends on beside the code, as text; "" of a unit that learns nothing."""
        return ""

    def recall(self, records: Records) -> None:
        """Takes what `learnt` said in other runs, by key. What turns out to be damaged is learnt again."""

    def learnt(self) -> Records:
        """What took long to find out since this was last asked, for `recall` in other runs."""
        return {}

    @property
    def capacity(self) -> Capacity | None:
        """How much its memory holds of what programs keep there; None where that never runs out."""
        return None

    def kept(self, cost: UnitCost) -> Kept:
        """What the program of a cost keeps in the unit's memory; asked of units that have a `capacity`."""
        return Kept(0)

    @property
    def least_kept(self) -> int:
        """What every program keeps there at least, in the capacity's unit."""
        return 0

    def at(self, program: P, first: int) -> P:
        """The program with what it keeps from `first` on, in the capacity's unit."""
        return program

    def first_of(self, program: P) -> int:
        """Where what a program keeps begins: what `at` was told last, 0 if nothing was."""
        return 0

    @property
    def readout_functions(self) -> Functions:
        """The functions of a result that cost nothing as it is read out."""
        return ()

    def resolve(self, choice: str) -> str:
        """The choice that a word stands for, case-insensitive: "" is the default.

        Raises:
            OptionError: the unit does not offer it.
        """
        return choice_among(self.choice_word, choice, self.choices) if choice else self.default_choice

    def meant_by(self, word: str) -> str:
        """The choice that a policy's word stands for on this unit: its default where the word is one of others'."""
        return word if word in self.choices else self.default_choice

    @abstractmethod
    def work(self, graph: Graph, node: Node) -> W | Refusal:
        """What a node asks of the unit, or why it cannot run there.

        Any node that makes one value may be accepted, but for movements, and for those that are fused into another.
        """

    def in_vain(self, work: W, alone_us: float, beside_us: float, adding_us: float) -> Refusal | None:
        """Why the unit cannot make work faster that reads a graph, alone or beside the host; None if it may.

        Asked before a cost, from bounds that cost little: no program is made.

        Args:
            work: accepted by the unit.
            alone_us: what the host takes with all its memory channels.
            beside_us: the same with the channels that the units leave it.
            adding_us: what it takes to add up two parts of the result.
        """
        return None

    def edge_divisions(self, work: W, beside_us: float) -> tuple[EdgeDivision, ...]:
        """Ways to divide the edges of work on a graph with the host, best first by the bounds of `in_vain`.

        Every way leaves both sides some edges.
        """
        return ()

    def partial_bytes(self, work: W, choice: str) -> int:
        """Of results of work that reads a graph, which the host has to add up when they are there."""
        return 0

    @abstractmethod
    def cost(self, work: W, choice: str) -> UnitCost | Refusal:
        """What work costs under a choice, or why it cannot run there."""

    def time_us(self, work: W, choice: str) -> float | Refusal:
        """The time of `cost` alone, which a backend may know sooner."""
        cost = self.cost(work, choice)
        return cost if isinstance(cost, Refusal) else cost.time_us

    def refusal(self, work: W, choice: str) -> Refusal | None:
        """Why work has no `cost` under a choice, or None; a backend may know sooner than what it costs."""
        told = self.time_us(work, choice)
        return told if isinstance(told, Refusal) else None

    def least_us(self, work: W, choice: str) -> float:
        """What work takes at least under a choice, by arithmetic alone: no more than its `cost`, and 0 if in doubt.

        The search asks for a cost only where this leaves the work in the running.
        """
        return 0.0

    def static_energy_mj(self, time_us: float) -> float:
        """What the unit draws over a run whatever it does, beyond what the host's board does."""
        return 0.0

    def time_parts_us(self, work: W, choice: str) -> Parts:
        """The time of a cost by what it is spent on; asked for what runs on the unit only, as it may take longer.

        Raises:
            ValueError: the work cannot run under the choice.
        """
        cost = self.cost(work, choice)
        if isinstance(cost, Refusal):
            raise ValueError(cost.reason)
        return {"run": cost.time_us}

    def ways(self, work: W, choice: str) -> tuple[Way, ...]:
        """Orders of elements that work may be done in, and what it takes in each; none where there is one."""
        return ()

    @abstractmethod
    def program(self, work: W, choice: str) -> P | Refusal:
        """What the unit executes: the program that `cost` is the cost of."""

    def explain(self, work: W, choice: str) -> WorkReport | Refusal:
        """What work comes to under a choice, and where its time goes."""
        cost = self.cost(work, choice)
        return cost if isinstance(cost, Refusal) else PlainReport(choice, cost, self.time_parts_us(work, choice))

    @abstractmethod
    def execute(self, program: P, graph: Graph, node: Node, inputs: Sequence[Array | None], operand: str) -> Array:
        """The value of a node that runs on the unit, computed by its program, in the node's own element type.

        Args:
            program: what to execute.
            graph, node: the node, and the graph that knows its shapes.
            inputs: its operands; None for absent ones.
            operand: the element type that operands are rounded to: what `operand_of` says.
        """

    @abstractmethod
    def encode(self, program: P) -> Any:
        """The program as JSON values, wherever `at` put what it keeps."""

    def same(self, program: P) -> Hashable:
        """Equal for programs of which `encode` gives the same, as far as one can tell at once; as long as they live."""
        return id(program)

    def made_of(self, program: P) -> str | None:
        """All that what `encode` gives depends on, as text; None where only the program itself says that."""
        return None

    @abstractmethod
    def decode(self, data: Any) -> P:
        """The program that `encode` was given, with what it keeps from 0 on.

        Raises:
            DataError: the data are not a program, or not one for this machine.
        """

    def rounded(self, inputs: Sequence[Array | None], operand: str) -> tuple[Array | None, ...]:
        """A node's operands as the unit computes with them, in single precision where they lose digits."""
        return tuple(inputs)

    def tolerance(self, operand: str) -> float:
        """Largest error of a node that its program computes, over its largest magnitude.

        What it is compared with is the node computed in single precision from operands that are `rounded` to the type:
        the bound is of sums alone.
        """
        return 1e-4

    def least_error(self, work: W, operand: str) -> float:
        """The error of the same that is left however small the values are: of sums in narrow accumulators."""
        return 0.0

    def describe(self, program: P) -> str:
        """How a program is arranged on the unit, as one clause: its mapping, its strategy; "" if there is one way."""
        return ""

    def parts(self, program: P) -> int:
        """How many parts of the unit have a text of their own."""
        return 0

    def lanes(self, cost: UnitCost) -> tuple[Lane, ...]:
        """When each part of the unit that has a text of its own is busy with what a cost is the cost of."""
        return ()

    def trace(self, program: P, part: int) -> Iterator[str]:
        """What one part executes, as lines of text."""
        return iter(())

    def replay(self, path: str | Path, *, reopens_rows: bool = False, operand: str = "") -> TraceReport:
        """What it takes to execute the lines in a file that `trace` wrote, plain or gzip.

        Args:
            path: the file.
            reopens_rows: whether a memory controller opens rows again that a refresh closed, where the unit has one
                and its timing rules leave that.
            operand: the element type that they were written for, the unit's own or one of `narrow_operands`; "" is
                its own.

        Raises:
            OptionError: the unit's programs have no text, or it does not multiply such operands.
            TraceError: the file cannot be read, or a line is malformed.
            CommandOrderError: the unit would refuse a command.
        """
        raise OptionError(f"programs for {self.title} have no text form", "choose a target with another unit")

    def violations_of(self, cost: UnitCost) -> Mapping[str, int]:
        """How often the programs behind a cost do what the hardware could not, by name."""
        return {}

    def copies(self, work: W, choice: str) -> Transfer | None:
        """Copies that depend on more of a node's work than how many elements move; asked where `copies_by_work`."""
        return None

    def transfer(self, loaded: int, stored: int, partial_bytes: int = 0) -> Transfer | None:
        """Copies of so many elements to the unit and back; None where it reaches the host's memory itself.

        Partial results, if there are any, come back in place of the elements.
        """
        return None
