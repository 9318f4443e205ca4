"""Finds the first command of a stream that the hardware would refuse, without expanding the stream."""

from __future__ import annotations

from collections.abc import Iterator

from pimflow.codegen.newton.commands import Affine, Command, Comp, GAct, GWrite, Item, Loop
from pimflow.records import NamedTuple
from pimflow.runtime.newton.timing.nest import Sequence, chain_of
from pimflow.runtime.newton.timing.rules import IllegalCommand, Rules, State
from pimflow.targets import PimSpec


class Refused(NamedTuple):
    """The command with index `at` in the expanded stream, and why."""

    at: int
    reason: str


def first_illegal(rules: Rules, sequence: Sequence, state: State) -> Refused | None:
    """The first command that the rules refuse. Legality does not depend on refreshes, so none are simulated."""
    index = 0
    for item in sequence.items:
        try:
            if isinstance(item, int):
                state = rules.step(state, item).state
                index += 1
                continue
            chain = chain_of(rules, item.body, state)
            state = chain.before(item.times)[1]
            index += item.times * _length(item.body)
        except IllegalCommand as refusal:
            if isinstance(item, int):
                return Refused(index, str(refusal))
            rounds = len(chain.states) - 1  # that were legal
            inner = first_illegal(rules, item.body, chain.states[rounds])
            assert inner is not None  # the body was refused from this very state
            return Refused(index + rounds * _length(item.body) + inner.at, inner.reason)
    return None


def _length(sequence: Sequence) -> int:
    return sum(1 if isinstance(item, int) else item.times * _length(item.body) for item in sequence.items)


class _Turn(NamedTuple):
    """A loop around a command: its variable, its number of iterations, and the number of commands in each iteration."""

    var: str
    times: int
    stride: int


class _Limit(NamedTuple):
    """`operand` must be at least 0 and below `below`."""

    what: str
    operand: Affine
    below: int


def first_out_of_range(items: tuple[Item, ...], pim: PimSpec) -> Refused | None:
    """The first command whose row, column, slot or fill is outside the machine's limits."""
    return min(_out_of_range(items, pim, (), 0), key=lambda refused: refused.at, default=None)


def _out_of_range(items: tuple[Item, ...], pim: PimSpec, turns: tuple[_Turn, ...], index: int) -> Iterator[Refused]:
    for item in items:
        if isinstance(item, Loop):
            length = _commands(item.body)
            if item.count > 0:
                yield from _out_of_range(item.body, pim, (*turns, _Turn(item.var, item.count, length)), index)
            index += item.count * length
            continue
        for limit in _limits(item, pim):
            lowest, highest = _bounds(limit.operand, turns)
            if lowest < 0 or highest >= limit.below:
                yield _first_breach(limit, turns, index)
        index += 1


def _commands(items: tuple[Item, ...]) -> int:
    return sum(item.count * _commands(item.body) if isinstance(item, Loop) else 1 for item in items)


def _limits(command: Command, pim: PimSpec) -> tuple[_Limit, ...]:
    if isinstance(command, GAct):
        return (_Limit("G_ACT of row", command.row, pim.rows),)
    if isinstance(command, Comp):
        column = _Limit("COMP of column", command.column, pim.columns)
        slot = _Limit("COMP of buffer slot", command.slot, pim.buffer_columns)
        if pim.any_slot_any_column or command.slot == command.column:
            return column, slot
        # The difference of the two must always be 0.
        apart = Affine(
            command.slot.base - command.column.base,
            command.slot.terms + tuple((var, -stride) for var, stride in command.column.terms),
        )
        return column, slot, _Limit("COMP whose buffer slot and column differ by", apart, 1)
    if isinstance(command, GWrite):
        return (_Limit("GWRITE up to element", Affine(command.span - 1), pim.buffer_elements),)
    return ()


def _bounds(operand: Affine, turns: tuple[_Turn, ...]) -> tuple[int, int]:
    """The lowest and highest value over all executions."""
    if not operand.terms:
        return operand.base, operand.base
    lowest = highest = operand.base
    counts = {turn.var: turn.times for turn in turns}
    strides: dict[str, int] = {}
    for var, stride in operand.terms:
        strides[var] = strides.get(var, 0) + stride
    for var, stride in strides.items():
        reach = stride * (counts[var] - 1)
        lowest += min(reach, 0)
        highest += max(reach, 0)
    return lowest, highest


def _first_breach(limit: _Limit, turns: tuple[_Turn, ...], index: int) -> Refused:
    """Fix the loops from the outermost inwards, each at the first value with which the limit can be violated."""
    operand = limit.operand
    for depth, turn in enumerate(turns):
        stride = sum(step for var, step in operand.terms if var == turn.var)
        rest = Affine(operand.base, tuple(term for term in operand.terms if term[0] != turn.var))
        lowest, highest = _bounds(rest, turns[depth + 1 :])
        value = _first_value(stride, limit.below - highest, -1 - lowest)
        operand = rest.plus(stride * value)
        index += turn.stride * value
    return Refused(index, f"{limit.what} {operand.base}, outside of 0 to {limit.below - 1}")


def _first_value(stride: int, at_least: int, at_most: int) -> int:
    """The first n >= 0 with stride * n >= `at_least` or stride * n <= `at_most`; one must exist."""
    if at_least <= 0 or at_most >= 0:
        return 0
    return -(-at_least // stride) if stride > 0 else -(at_most // -stride)
