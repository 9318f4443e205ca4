"""Tallies: the counts that timing keeps in addition to the clock, packed into one integer, so one addition adds all.

Fields are 64 bits wide and never negative, so none overflows into the next: a sum of tallies, the difference of a later
and an earlier tally, and a multiple of either are tallies again.

The first five fields are the cycles by part; they add up to the cycles of the command or sequence that is tallied.
"""

from __future__ import annotations

from pimflow.records import NamedTuple

_WIDTH = 64
_FIELD = (1 << _WIDTH) - 1
COMP, FILL, ACTIVATION, READOUT, REFRESH, PREA, REF, REOPENED, CLOSED = (1 << _WIDTH * place for place in range(9))
"""The unit of each field: `3 * FILL + PREA` is three cycles of fill and a precharge."""
_COUNTS = -PREA  # mask of all fields but the cycles


class Tally(NamedTuple):
    """The fields of a tally."""

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
    """Unpack a tally."""
    return Tally(*(tally >> _WIDTH * place & _FIELD for place in range(len(Tally._fields))))


def counts(tally: int) -> int:
    """The tally without its cycles."""
    return tally & _COUNTS


def own(part: int, cycles: int, busy: int) -> int:
    """The tally of the cycles up to a command of one part, of which up to `busy` are the tCCD after a COMP."""
    return COMP * min(cycles, busy) + part * max(cycles - busy, 0)


def activation_of(cycles: int, busy: int, rows: int, filling: int) -> int:
    """The tally up to a G_ACT: until `rows` for rows, until `filling` for an exposed GWRITE, the rest for a refresh."""
    comp = min(cycles, busy)
    opened = max(comp, min(rows, cycles))
    filled = max(opened, min(filling, cycles))
    return COMP * comp + ACTIVATION * (opened - comp) + FILL * (filled - opened) + REFRESH * (cycles - filled)


def comp_of(cycles: int, busy: int, rows: int) -> int:
    """The tally up to a COMP: its own turn, until `rows` for rows, the rest for the fill of its buffer."""
    comp = min(cycles, max(busy, 1))
    opened = max(comp, min(rows, cycles))
    return COMP * comp + ACTIVATION * (opened - comp) + FILL * (cycles - opened)


def delayed(undisturbed: int, cycles: int, busy: int) -> int:
    """The tally of what a refresh adds to the cycles up to a command: all but those in the tCCD after a COMP."""
    comp = min(cycles, busy) - min(undisturbed, busy)
    return COMP * comp + REFRESH * (cycles - undisturbed - comp)


def tail(cycles: int, busy: int, due: int) -> int:
    """The tally of the cycles from the last issue to the end: `due` for transfers, the rest for refreshes."""
    return own(READOUT, due, busy) + REFRESH * (cycles - due)
