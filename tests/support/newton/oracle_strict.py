"""The strict rules, one clock cycle at a time, in absolute time: the oracle of the fast engine.

A command is a tuple: ("GWRITE", buffer, bytes), ("G_ACT", group), ("COMP", buffer) or ("READRES",). Shares no code with
the package.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Word = tuple[Any, ...]
LONG_AGO = -(10**9)


class Refused(Exception):
    """Carries the index of the refused command."""


@dataclass(frozen=True)
class Jedec:
    t_faw: int = 17
    t_rcd: int = 11
    t_rp: int = 11
    t_ras: int = 25
    t_rtp: int = 2
    t_ccd: int = 2
    t_bl: int = 2
    t_drain: int = 2
    t_cl: int = 11
    t_rtw: int = 6
    burst_bytes: int = 32
    t_refi: int = 1662
    t_rfc: int = 105
    max_postponed_refreshes: int = 8
    bank_groups: int = 4
    exposed: bool = False


@dataclass
class Channel:
    machine: Jedec
    log: list[tuple[int, str]] = field(default_factory=list)
    open_groups: set[int] = field(default_factory=set)
    last_issue: int = 0
    last_act: int = LONG_AGO
    last_comp: int = LONG_AGO
    last_readres: int = LONG_AGO
    banks_closed_at: int = LONG_AGO  # when the last PREA or REF has done its work
    bus_free_at: int = LONG_AGO  # end of GWRITE bursts
    filled_at: dict[int, int] = field(default_factory=dict)
    last_read: dict[int, int] = field(default_factory=dict)
    transfers_end: int = 0
    oldest_request: int = 0
    comps_since_readres: int = 0

    def issue(self, clock: int, name: str) -> None:
        self.log.append((clock, name))

    def requested(self, clock: int) -> bool:
        return self.oldest_request <= clock

    def refresh(self, clock: int) -> None:
        self.issue(clock, "REF")
        self.banks_closed_at = clock + self.machine.t_rfc
        self.oldest_request += self.machine.t_refi

    def precharge_from(self, clock: int) -> None:
        while clock < self.last_act + self.machine.t_ras or clock < self.last_comp + self.machine.t_rtp:
            clock += 1
        self.issue(clock, "PREA")
        self.banks_closed_at = clock + self.machine.t_rp

    def force(self, clock: int) -> None:
        """All requests, now; rows that were open are open again afterwards."""
        if self.open_groups:
            self.precharge_from(clock)
            clock = self.banks_closed_at
        while not self.open_groups and not self.can_activate(clock):
            clock += 1
        while self.requested(clock):
            self.refresh(clock)
            clock = self.banks_closed_at
        for _ in sorted(self.open_groups):
            while not self.can_activate(clock):
                clock += 1
            self.last_act = clock
            self.issue(clock, "G_ACT")

    def can_activate(self, clock: int) -> bool:
        if self.machine.exposed and clock < self.bus_free_at:
            return False
        return clock >= self.last_act + self.machine.t_faw and clock >= self.banks_closed_at

    def allowed(self, command: Word, clock: int) -> bool:
        machine = self.machine
        if command[0] == "G_ACT":
            return self.can_activate(clock)
        if command[0] == "COMP":
            after_rows = clock >= self.last_act + machine.t_rcd and clock >= self.last_comp + machine.t_ccd
            return after_rows and clock >= self.filled_at[command[1]]
        if command[0] == "READRES":
            drained = clock >= self.last_comp + machine.t_ccd + machine.t_drain
            gap = max(machine.t_bl, machine.t_ccd)
            return drained and clock >= self.last_readres + gap and clock >= self.bus_free_at
        turned = clock >= self.last_readres + machine.t_rtw
        unread = clock >= self.last_read.get(command[1], LONG_AGO) + machine.t_ccd
        return turned and unread and clock >= self.bus_free_at

    def refuse(self, command: Word, index: int) -> None:
        if command[0] == "READRES" and not self.comps_since_readres:
            raise Refused(index)
        if command[0] != "COMP":
            return
        if len(self.open_groups) < self.machine.bank_groups or command[1] not in self.filled_at:
            raise Refused(index)

    def execute(self, command: Word, clock: int) -> None:
        machine = self.machine
        self.issue(clock, command[0])
        self.last_issue = clock
        if command[0] == "G_ACT":
            self.open_groups.add(command[1])
            self.last_act = clock
        elif command[0] == "COMP":
            self.last_comp = self.last_read[command[1]] = clock
            self.comps_since_readres += 1
        elif command[0] == "READRES":
            self.last_readres = clock
            self.comps_since_readres = 0
            self.transfers_end = max(self.transfers_end, clock + machine.t_cl + machine.t_bl)
        else:
            bursts = (command[2] + machine.burst_bytes - 1) // machine.burst_bytes
            self.bus_free_at = self.filled_at[command[1]] = clock + bursts * machine.t_ccd
            self.transfers_end = max(self.transfers_end, self.bus_free_at)

    def run(self, command: Word, index: int) -> None:
        self.refuse(command, index)
        clock = self.last_issue + 1
        if command[0] == "G_ACT" and (not self.open_groups or command[1] in self.open_groups):
            self.sweep(command, clock)
            return
        while True:
            if clock >= self.oldest_request + self.machine.t_refi * self.machine.max_postponed_refreshes:
                self.force(clock)
                continue
            if self.allowed(command, clock):
                break
            clock += 1
        self.execute(command, clock)

    def sweep(self, command: Word, clock: int) -> None:
        nothing_open = not self.open_groups
        if not nothing_open:
            self.precharge_from(max(self.last_act, self.last_comp))
            self.open_groups.clear()
        while True:
            can_refresh = self.can_activate(clock) if nothing_open else clock >= self.banks_closed_at
            if self.requested(clock) and can_refresh:
                self.refresh(clock)
            elif self.allowed(command, clock):
                break
            else:
                clock += 1
        self.execute(command, clock)

    def finish(self) -> int:
        end = max(self.last_issue, self.transfers_end)
        if not self.requested(end):
            return end
        clock = self.last_issue + 1
        if self.open_groups:
            self.precharge_from(max(self.last_act, self.last_comp))
            clock = max(clock, self.banks_closed_at)
        while not self.open_groups and not self.can_activate(clock):
            clock += 1
        while self.requested(end):
            clock = max(clock, self.oldest_request)
            self.refresh(clock)
            clock = self.banks_closed_at
            end = max(end, clock)
        return end


def simulate(commands: Sequence[Word], machine: Jedec) -> tuple[int, Counter[str], list[tuple[int, str]]]:
    """(cycles, commands issued by name, every issue as (clock, name)).

    Raises:
        Refused: with the index of the first command that the machine refuses.
    """
    channel = Channel(machine)
    channel.oldest_request = machine.t_refi
    for index, command in enumerate(commands):
        channel.run(command, index)
    cycles = channel.finish()
    return cycles, Counter(name for _, name in channel.log), sorted(channel.log)
