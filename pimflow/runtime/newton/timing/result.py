"""The result of timing a stream."""

from __future__ import annotations

from dataclasses import astuple, fields

from pimflow.codegen.newton.commands import CommandCounts
from pimflow.records import dataclass
from pimflow.runtime.newton.timing.tally import read


@dataclass(frozen=True, slots=True)
class CycleParts:
    """The cycles of a stream by cause; the parts add up to the cycles exactly.

    The tCCD cycles after a COMP belong to `comp`. Any other cycle belongs to the command that issues next: GWRITE to
    `fill`, G_ACT to `activation`, READRES to `readout`, COMP to `comp`. If a G_ACT or COMP waits for more than commands
    of its own kind, the additional cycles belong to whatever it waits for, in this order: rows (`activation`), a GWRITE
    (`fill`), a refresh (`refresh`: REFs, and rows that are reopened). The time from the last issue to the end is
    `readout`, or `refresh` while requests are still to be served.
    """

    comp: int = 0
    fill: int = 0
    activation: int = 0
    readout: int = 0
    refresh: int = 0

    @property
    def total(self) -> int:
        """The sum of the parts."""
        return sum(astuple(self))

    def as_json(self) -> dict[str, int]:
        """The cycles by name of part."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True)
class StreamTiming:
    """The timing of one channel's stream.

    `cycles` are DRAM command clock cycles from 0 to the end of all activity, broken down in `parts`. `commands` are the
    commands executed, including the G_ACTs with which the controller reopens rows after a refresh. `prea` and `ref`
    count commands that the controller inserts. `gwrite_bytes` is the total that GWRITEs write. `comps_on_closed_rows`
    counts COMPs while some bank group had no open row: the published controller, which has no row state, issues them.
    """

    cycles: int
    commands: CommandCounts
    prea: int
    ref: int
    gwrite_bytes: int
    parts: CycleParts = CycleParts()
    comps_on_closed_rows: int = 0


def stream_timing(cycles: int, counts: int, commands: CommandCounts, gwrite_bytes: int) -> StreamTiming:
    """The timing of a stream from its cycles, its tally and its commands."""
    found = read(counts)
    executed = commands + CommandCounts(g_act=found.reopened)
    parts = CycleParts(found.comp, found.fill, found.activation, found.readout, found.refresh)
    return StreamTiming(cycles, executed, found.prea, found.ref, gwrite_bytes, parts, found.closed)
