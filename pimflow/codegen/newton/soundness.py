"""Checks streams that were read from a file: nests that can be expanded, with operands that memories can have.

Whether they compute the right values is another question, which executing them answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pimflow.codegen.newton.commands import Affine, Command, CommandStream, Comp, GAct, GWrite, Item, Loop
from pimflow.errors import DataError
from pimflow.targets import PimSpec

_END = 1 << 60
"""Operands and numbers of commands are below this, so that sums of two of them fit 64 bits."""


def check_streams(streams: Sequence[CommandStream], pim: PimSpec) -> None:
    """Checks that there is one stream for every channel of a machine, which can be expanded.

    Args:
        streams: from a file; their types are right.
        pim: the machine, with buffers as the mapping divides them.

    Raises:
        DataError: they are not; it names the stream.
    """
    if [stream.channel for stream in streams] != list(range(pim.channels)):
        raise DataError(f"'streams' are not those of channels 0 to {pim.channels - 1} in this order")
    for stream in streams:
        reason = _fault(stream.body, {}, pim, 1)
        if reason:
            raise DataError(f"'streams[{stream.channel}]' has {reason}")


def _fault(items: Sequence[Item], counts: Mapping[str, int], pim: PimSpec, runs: int) -> str:
    """What is wrong with some items of a nest, or "".

    Args:
        items: commands and loops.
        counts: the iterations of the loops around them, by variable.
        pim: the machine.
        runs: how often the items are executed.
    """
    if runs >= _END:
        return f"loops of {runs:,} iterations; they must be fewer than {_END:,}"
    for item in items:
        reason = _loop_fault(item, counts, pim, runs) if isinstance(item, Loop) else _command_fault(item, counts, pim)
        if reason:
            return reason
    return ""


def _loop_fault(loop: Loop, counts: Mapping[str, int], pim: PimSpec, runs: int) -> str:
    if loop.var in counts:
        return f"a loop over {loop.var!r} inside another one"
    if loop.count < 1 or not loop.body:
        return f"a loop over {loop.var!r} of {loop.count} iterations of {len(loop.body)} items; it must have both"
    return _fault(loop.body, {**counts, loop.var: loop.count}, pim, runs * loop.count)


def _command_fault(command: Command, counts: Mapping[str, int], pim: PimSpec) -> str:
    kind = type(command).__name__
    operands, ranges = _parts(command, pim)
    for name, operand in operands.items():
        reason = _operand_fault(operand, counts)
        if reason:
            return f"a {kind} whose {name!r} {reason}"
    for name, (number, least, end) in ranges.items():
        if not least <= number < end:
            return f"a {kind} whose {name!r} is {number:,}; it must be at least {least} and below {end:,}"
    return ""


def _parts(command: Command, pim: PimSpec) -> tuple[dict[str, Affine], dict[str, tuple[int, int, int]]]:
    """(operands, numbers with their least value and their end) of a command, by field."""
    if isinstance(command, GWrite):
        sizes = ("pixels", "k_count", "pitch", "copies")
        end = pim.buffer_elements + 1
        numbers = {name: (getattr(command, name), 1, end) for name in sizes}
        return {"pixel": command.pixel, "k": command.k}, {**numbers, "buffer": _buffer(command.buffer, pim)}
    if isinstance(command, GAct):
        return {"row": command.row}, {"group": (command.group, 0, pim.bank_groups)}
    if isinstance(command, Comp):
        return {"column": command.column, "slot": command.slot}, {"buffer": _buffer(command.buffer, pim)}
    return {"pixel": command.pixel, "channel": command.channel}, {}


def _buffer(number: int, pim: PimSpec) -> tuple[int, int, int]:
    return number, 0, pim.fills_per_channel


def _operand_fault(operand: Affine, counts: Mapping[str, int]) -> str:
    """What is wrong with an operand inside loops, or ""."""
    low = high = operand.base
    for name, stride in operand.terms:
        if name not in counts:
            return f"depends on {name!r}, and no loop around it has this variable"
        reach = stride * (counts[name] - 1)
        low, high = low + min(reach, 0), high + max(reach, 0)
    if low >= 0 and high < _END:
        return ""
    return f"reaches from {low:,} to {high:,}; it must be 0 or more and below {_END:,}"
