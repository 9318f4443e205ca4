"""The result of timing a stream."""

from __future__ import annotations

from dataclasses import dataclass

from pimflow.codegen.newton.commands import CommandCounts


@dataclass(frozen=True, slots=True)
class StreamTiming:
    """One channel's stream on the clock.

    `cycles` are DRAM command clock cycles from 0 to the end of everything. `commands` are those executed, in `strict`
    with the G_ACTs that reopen rows after a forced refresh. `prea` and `ref` are inserted by the controller.
    `gwrite_bytes` is what all GWRITEs together write.
    """

    cycles: int
    commands: CommandCounts
    prea: int
    ref: int
    gwrite_bytes: int
