"""What timing counts beside the clock, in one integer: a field for each count, so that one addition adds them all.

Fields are 64 bits wide and never negative, so none spills into the next: a sum, a difference of a later and an earlier
tally, and a multiple of either are again tallies.

The first five are the cycles by part; they add up to the cycles of whatever the tally is of.
"""

from __future__ import annotations

from typing import NamedTuple

_WIDTH = 64
_FIELD = (1 << _WIDTH) - 1
COMP, FILL, ACTIVATION, READOUT, REFRESH, PREA, REF, REOPENED, CLOSED = (1 << _WIDTH * place for place in range(9))
"""One of each: `3 * FILL + PREA` is three cycles of fill and a precharge."""
_COUNTS = -PREA  # all but the cycles


class Tally(NamedTuple):
    """A tally, field by field."""

    comp: int
    fill: int
    activation: int
    readout: int
    refresh: int
    prea: int
    ref: int
    reopened: int  # G_ACTs that the controller inserted
    closed: int  # COMPs with a bank group whose row was closed


def read(tally: int) -> Tally:
    """The fields of a tally."""
    return Tally(*(tally >> _WIDTH * place & _FIELD for place in range(len(Tally._fields))))


def counts(tally: int) -> int:
    """The tally without its cycles."""
    return tally & _COUNTS


def own(part: int, cycles: int, busy: int) -> int:
    """The cycles to a command that belongs to one part, `busy` of them at most in the tCCD behind a COMP."""
    return COMP * min(cycles, busy) + part * max(cycles - busy, 0)


def activation_of(cycles: int, busy: int, rows: int, filling: int) -> int:
    """The cycles to a G_ACT: up to `rows` for rows, to `filling` for an exposed GWRITE, and the rest for a refresh."""
    comp = min(cycles, busy)
    opened = max(comp, min(rows, cycles))
    filled = max(opened, min(filling, cycles))
    return COMP * comp + ACTIVATION * (opened - comp) + FILL * (filled - opened) + REFRESH * (cycles - filled)


def comp_of(cycles: int, busy: int, rows: int) -> int:
    """The cycles to a COMP: its own turn, up to `rows` for rows, and the rest for the fill of its buffer."""
    comp = min(cycles, max(busy, 1))
    opened = max(comp, min(rows, cycles))
    return COMP * comp + ACTIVATION * (opened - comp) + FILL * (cycles - opened)


def delayed(undisturbed: int, cycles: int, busy: int) -> int:
    """What a refresh adds to the cycles to a command: all but those in the tCCD behind a COMP."""
    comp = min(cycles, busy) - min(undisturbed, busy)
    return COMP * comp + REFRESH * (cycles - undisturbed - comp)


def tail(cycles: int, busy: int, due: int) -> int:
    """The cycles from the last issue to the end, `due` of which go by for transfers; the rest for refreshes."""
    return own(READOUT, due, busy) + REFRESH * (cycles - due)
