"""`aim-gddr6` compared with the open AiM simulator (Ramulator 2, preset GDDR6_AiM_timing), which models no GDDR6
refresh.

The cycles are that simulator's for programs of WR_GB, MAC_ABK and RD_MAC on one channel, for 20 and 60 rounds.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pimflow.codegen.newton.commands import ZERO, CommandStream, GAct, Item
from pimflow.targets import load_target
from support.newton.streams import READRES, comps, gwrite, stream, with_timing
from support.newton.timing import time_stream

AIM = with_timing("strict", load_target("aim-gddr6").pim, t_refi=10**9)
Items = tuple[Item, ...]
ROW: Items = (GAct(0, ZERO),)
READ: Items = (READRES,)


def fill(bursts: int) -> Items:
    return (gwrite(16 * bursts),)


def mac(count: int) -> Items:
    return (comps(count),)


def rows(count: int) -> Callable[[int], CommandStream]:
    return lambda rounds: stream(fill(64), (ROW + mac(count)) * rounds, READ)


def open_row(size: int) -> Callable[[int], CommandStream]:
    return lambda rounds: stream(fill(size), ROW, mac(size), READ, (fill(size) + mac(size) + READ) * (rounds - 1))


PROGRAMS: dict[str, tuple[Callable[[int], CommandStream], int, int, int]] = {
    "rows of 64 MACs": (rows(64), 4706, 13746, 0),
    "rows of 8 MACs": (rows(8), 2466, 7026, 0),
    "rows of 1 MAC": (rows(1), 2186, 6186, 0),
    "rows of 64 MACs, a readout each": (
        lambda rounds: stream(fill(64), (ROW + mac(64) + READ) * rounds), 5789, 17109, 2,
    ),
    "row open, fill 64, 64 MACs, readout": (open_row(64), 6568, 19528, 0),
    "row open, fill 4, 4 MACs, readout": (open_row(4), 1768, 5128, 0),
    "row open, 64 MACs, fill 64, readout": (
        lambda rounds: stream(fill(64), ROW, (mac(64) + fill(64) + READ) * rounds), 6857, 20137, 1,
    ),
    "fill 64, row of 64 MACs, readout": (
        lambda rounds: stream((fill(64) + ROW + mac(64) + READ) * rounds), 8240, 24720, 0,
    ),
}  # fmt: skip
"""A program by number of rounds, its cycles there for 20 and 60, and how many more cycles a round takes there."""


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_rounds_match_the_aim_simulator(name: str) -> None:
    program, short, long, more = PROGRAMS[name]
    ours = [time_stream(program(rounds), AIM, "strict").cycles for rounds in (20, 60)]
    assert (long - short) - (ours[1] - ours[0]) == 40 * more
    assert short - ours[0] == (20 * more or 2)
