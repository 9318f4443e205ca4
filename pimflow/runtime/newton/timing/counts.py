"""Counts the commands of each kind that a channel executes, and the elements its GWRITEs write, without its stream.

All counts are packed into one integer with a 64-bit field for each, like tallies (`tally`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial

from pimflow.codegen.newton.commands import CommandCounts
from pimflow.codegen.newton.emit import Fill, RowBase, ShareWork, Terms
from pimflow.codegen.newton.lowering import Outline
from pimflow.codegen.newton.work_split import Visit
from pimflow.runtime.newton.timing.shapes import PlainEmitter

_WIDTH = 64
_FIELD = (1 << _WIDTH) - 1
_GWRITE, _ACT, _COMP, _READRES, _ELEMENT = (1 << _WIDTH * place for place in range(5))

Blocks = dict[Hashable, tuple[int, ...]]
"""A cache of the counts of blocks (what visits compute on filled buffers), shared by all streams."""


def counted(outline: Outline, channel: int, blocks: Blocks) -> tuple[CommandCounts, int]:
    """(commands of a channel, elements that its GWRITEs write)."""
    total = sum(outline.nest(channel, partial(_CountEmitter, blocks=blocks)))
    *commands, elements = (total >> _WIDTH * place & _FIELD for place in range(5))
    return CommandCounts(*commands), elements


class _CountEmitter(PlainEmitter[int]):
    """Emits the counts of commands and loops."""

    def loop(self, var: str, count: int, body: tuple[int, ...]) -> tuple[int, ...]:
        """The counts of all iterations."""
        return (count * sum(body),) if body and count > 0 else ()

    def gwrites(self, work: ShareWork, offset: int, terms: Terms, counts: Sequence[int]) -> tuple[int, ...]:
        """One for each buffer, with the elements it writes as in `GWrite`."""
        run, depth = work.run, self.written(work.run, work.slot)
        step = min(run.step * self.pim.multipliers, depth)
        return tuple(_GWRITE + _ELEMENT * run.copies * ((count - 1) * step + depth) for count in counts)

    def acts(self, visit: Visit, base: RowBase) -> tuple[int, ...]:
        """One for each bank group."""
        return (_ACT,) * self.pim.bank_groups

    def comps(
        self, work: ShareWork, visit: Visit, buffer: int, tile: tuple[int, int], pixel: tuple[int, int]
    ) -> tuple[int, ...]:
        """One for each column."""
        low, high = visit.columns
        return (_COMP * (high - low),)

    def readres(self, work: ShareWork, visit: Visit, fill: Fill, tile: tuple[int, int], pixels: tuple[int, int]) -> int:
        """One."""
        return _READRES
