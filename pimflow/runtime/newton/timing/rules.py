"""A timing profile as an automaton: the states of one channel, and how commands and refreshes change them.

Time is counted from the issue of the last command, so that equal situations are equal states whenever they occur.
A refresh request comes every `interval` cycles. `phase` is the number of cycles from the issue of the last command to
the oldest request that has not been served; it is negative if that request is overdue.

Both profiles serve requests only at certain commands. `Step.threshold` says when: the command must be executed by
`strike` instead of `step` if and only if the phase before it is at most this threshold.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from pimflow.codegen.newton.commands import Command, Comp, GAct, GWrite
from pimflow.records import NamedTuple
from pimflow.targets import PimSpec

NEVER = -(1 << 60)  # the threshold of a command that never admits a refresh: no phase is this low


class IllegalCommand(Exception):
    """The hardware would refuse this command in this state. Internal: callers see `CommandOrderError`."""


class State:
    """An interned state: equal states are the same object, so a state is a cheap dictionary key."""

    __slots__ = ("steps", "vector")

    def __init__(self, vector: tuple[int, ...]) -> None:
        self.vector = vector
        self.steps: dict[int, Step] = {}


class Step(NamedTuple):
    """The effect of one command without a refresh."""

    cycles: int  # from the issue of the previous command to the issue of this one
    state: State
    threshold: int
    tally: int  # its cycles by part, and the commands that the controller inserts before it (see `tally`)


class Struck(NamedTuple):
    """The effect of one command together with the refreshes that it admits."""

    cycles: int  # from the issue of the previous command to the last issue of this command and its refreshes
    state: State
    phase: int
    tally: int


class Finish(NamedTuple):
    """From the issue of the last command to the end of everything."""

    cycles: int
    tally: int


class Rules(ABC):
    """One profile on one machine. Instances own their states and their command codes."""

    interval: int

    def __init__(self, pim: PimSpec) -> None:
        self._states: dict[tuple[int, ...], State] = {}
        self._groups = pim.bank_groups
        self._buffers = pim.fills_per_channel
        self._refused: list[str] = []  # why codes -1, -2, .. are not commands of this machine

    @abstractmethod
    def initial(self) -> State:
        """The state at clock 0, before any command."""

    @abstractmethod
    def code(self, command: Command) -> int:
        """A small number for everything about a command that matters to timing: equal codes behave the same."""

    @abstractmethod
    def next_step(self, state: State, code: int) -> Step:
        """Compute the effect of a command; `step` caches it.

        Raises:
            IllegalCommand: the hardware would refuse it in this state.
        """

    @abstractmethod
    def strike(self, state: State, code: int, phase: int) -> Struck:
        """Execute a command with the refreshes that it admits; the phase is at most the step's threshold."""

    @abstractmethod
    def finish(self, state: State, phase: int) -> Finish:
        """Complete the transfers and refreshes that are outstanding after the last command."""

    def no_such(self, command: Command) -> int:
        """The code of a command that names a bank group or buffer that the machine does not have."""
        if isinstance(command, GAct):
            reason = f"G_ACT{command.group}, but this machine's bank groups are 0 to {self._groups - 1}"
        else:
            name = "COMP from" if isinstance(command, Comp) else "GWRITE to"
            number = command.buffer if isinstance(command, (Comp, GWrite)) else 0
            reason = f"{name} buffer {number}, but a channel's buffers are 0 to {self._buffers - 1}"
        self._refused.append(reason)
        return -len(self._refused)

    def step(self, state: State, code: int) -> Step:
        """The effect of a command without a refresh, cached."""
        known = state.steps.get(code)
        if known is None:
            if code < 0:
                raise IllegalCommand(self._refused[-1 - code])
            known = state.steps[code] = self.next_step(state, code)
        return known

    def state(self, vector: tuple[int, ...]) -> State:
        """The unique state with this content."""
        known = self._states.get(vector)
        if known is None:
            known = self._states[vector] = State(vector)
        return known

    def forget(self, step: Step) -> Step:
        """Drop all cached states; return the same step, leading to a state without cached steps."""
        self._states = {}
        return step._replace(state=self.state(step.state.vector))

    def size(self) -> int:
        """The number of cached states."""
        return len(self._states)
