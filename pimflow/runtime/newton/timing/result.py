"""The result of timing a stream."""

from __future__ import annotations

from dataclasses import astuple, fields

from pimflow.codegen.newton.commands import CommandCounts
from pimflow.records import dataclass
from pimflow.runtime.newton.timing.tally import read


@dataclass(frozen=True, slots=True)
class CycleParts:
    """What the cycles of a stream are spent on; the parts add up to the cycles exactly.

    In the tCCD cycles behind a COMP a cycle belongs to `comp`. Any other belongs to the command that issues next:
    GWRITE to `fill`, G_ACT to `activation`, READRES to `readout`, COMP to `comp`. Where a G_ACT or COMP waits for more
    than the commands of its own kind, the cycles that it waits beyond belong to what it waits for, in this order: rows
    (`activation`), a GWRITE (`fill`), a refresh (`refresh`: the REFs, and rows that are opened again). The time from
    the last issue to the end is `readout`, or `refresh` where requests are still to be served.
    """

    comp: int = 0
    fill: int = 0
    activation: int = 0
    readout: int = 0
    refresh: int = 0

    @property
    def total(self) -> int:
        """The cycles that the parts add up to."""
        return sum(astuple(self))

    def as_json(self) -> dict[str, int]:
        """Under the parts' names."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True)
class StreamTiming:
    """One channel's stream on the clock.

    `cycles` are DRAM command clock cycles from 0 to the end of everything, and `parts` is what they are spent on.
    `commands` are those executed, with the G_ACTs by which the controller opens rows again after a refresh. `prea` and
    `ref` are inserted by the controller. `gwrite_bytes` is what all GWRITEs together write. `comps_on_closed_rows` are
    COMPs at which some bank group had no open row: the published controller, which has no row state, issues them.
    """

    cycles: int
    commands: CommandCounts
    prea: int
    ref: int
    gwrite_bytes: int
    parts: CycleParts = CycleParts()
    comps_on_closed_rows: int = 0


def stream_timing(cycles: int, counts: int, commands: CommandCounts, gwrite_bytes: int) -> StreamTiming:
    """The result of a stream of some commands, from its tally."""
    found = read(counts)
    executed = commands + CommandCounts(g_act=found.reopened)
    parts = CycleParts(found.comp, found.fill, found.activation, found.readout, found.refresh)
    return StreamTiming(cycles, executed, found.prea, found.ref, gwrite_bytes, parts, found.closed)
