"""The strict rules in absolute time, clock by clock: the oracle of the fast engine.

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
    t_ccd_s: int = 2
    t_ccd_l: int = 3
    t_bl: int = 2
    t_drain: int = 2
    t_cl: int = 11
    t_cwl: int = 7
    t_wtr: int = 4
    t_rtw: int = 6
    t_mod: int = 0
    burst_bytes: int = 32
    t_refi: int = 1662
    t_rfc: int = 105
    max_postponed_refreshes: int = 8
    bank_groups: int = 4
    readres_bytes: int = 64
    exposed: bool = False


@dataclass
class Channel:
    machine: Jedec
    log: list[tuple[int, str]] = field(default_factory=list)
    bus: set[int] = field(default_factory=set)  # clocks at which a command issued
    open_groups: set[int] = field(default_factory=set)
    shut_groups: set[int] = field(default_factory=set)  # open for the stream, but closed by a refresh
    registers: bool = False
    last_issue: int = 0
    last_act: int = LONG_AGO
    last_comp: int = LONG_AGO
    last_read_burst: int = LONG_AGO
    last_write_burst: int = LONG_AGO
    precharged_at: int = LONG_AGO  # when the last PREA completes
    refreshed_at: int = LONG_AGO  # when the last REF completes
    loaded_at: int = LONG_AGO  # when the last GWRITE's data are in the buffer
    filled_at: dict[int, int] = field(default_factory=dict)
    last_use: dict[int, int] = field(default_factory=dict)
    transfers_end: int = 0
    oldest_request: int = 0
    comps_since_readres: int = 0

    def issue(self, clock: int, name: str) -> None:
        assert clock not in self.bus, "two commands in one cycle"
        self.bus.add(clock)
        self.log.append((clock, name))

    def burst(self) -> int:
        return max(self.machine.t_bl, self.machine.t_ccd_s)

    def bursts(self, size: int) -> int:
        count = 1
        while count * self.machine.burst_bytes < size:
            count += 1
        return count

    def with_banks(self, clock: int) -> int:
        """The clock delayed by a change of mode, which must follow the last burst of register access."""
        if not self.registers:
            return clock
        while clock <= max(self.last_read_burst, self.last_write_burst):
            clock += 1
        return clock + self.machine.t_mod

    def with_registers(self, clock: int) -> int:
        return clock if self.registers else clock + self.machine.t_mod

    def precharge(self, clock: int) -> None:
        """Issue PREA in the first free cycle from `clock` that tRAS and tRTP allow."""
        machine = self.machine
        while clock < self.last_act + machine.t_ras or clock < self.last_comp + machine.t_rtp or clock in self.bus:
            clock += 1
        clock = self.with_banks(clock)
        self.registers = False
        self.issue(clock, "PREA")
        self.precharged_at = clock + machine.t_rp

    def refresh(self, clock: int) -> None:
        self.issue(clock, "REF")
        self.refreshed_at = clock + self.machine.t_rfc
        self.oldest_request += self.machine.t_refi

    def can_activate(self, clock: int) -> bool:
        if self.machine.exposed and clock < self.loaded_at:
            return False
        return clock >= max(self.last_act + self.machine.t_faw, self.precharged_at, self.refreshed_at)

    def allowed(self, command: Word, clock: int) -> bool:
        """Whether all constraints of a command are met, except for modes and closed rows."""
        machine = self.machine
        if command[0] == "G_ACT":
            return self.can_activate(clock)
        if command[0] == "COMP":
            return clock >= self.last_act + machine.t_rcd and clock >= self.last_comp + machine.t_ccd_l
        if command[0] == "READRES":
            drained = clock >= self.last_comp + machine.t_ccd_l + machine.t_drain
            written = clock >= self.last_write_burst + machine.t_cwl + machine.t_bl + machine.t_wtr
            return drained and written and clock >= self.last_read_burst + self.burst()
        turned = clock >= self.last_read_burst + machine.t_rtw
        unread = clock >= self.last_use.get(command[1], LONG_AGO) + machine.t_ccd_l
        return turned and unread and clock >= self.last_write_burst + self.burst()

    def refuse(self, command: Word, index: int) -> None:
        if command[0] == "READRES" and not self.comps_since_readres:
            raise Refused(index)
        if command[0] != "COMP":
            return
        if len(self.open_groups | self.shut_groups) < self.machine.bank_groups or command[1] not in self.filled_at:
            raise Refused(index)

    def execute(self, command: Word, clock: int) -> None:
        machine = self.machine
        self.issue(clock, command[0])
        self.last_issue = clock
        self.registers = machine.t_mod > 0 and command[0] in ("GWRITE", "READRES")
        if command[0] == "G_ACT":
            self.open_groups.add(command[1])
            self.last_act = clock
        elif command[0] == "COMP":
            self.last_comp = self.last_use[command[1]] = clock
            self.comps_since_readres += 1
        elif command[0] == "READRES":
            self.last_read_burst = clock + (self.bursts(machine.readres_bytes) - 1) * self.burst()
            self.comps_since_readres = 0
            self.transfers_end = max(self.transfers_end, self.last_read_burst + machine.t_cl + machine.t_bl)
        else:
            self.last_write_burst = clock + (self.bursts(command[2]) - 1) * self.burst()
            self.loaded_at = self.filled_at[command[1]] = self.last_write_burst + machine.t_cwl + machine.t_bl
            self.transfers_end = max(self.transfers_end, self.loaded_at)

    def run(self, command: Word, index: int) -> None:
        self.refuse(command, index)
        rows = self.open_groups | self.shut_groups
        if command[0] == "G_ACT" and (not rows or command[1] in rows):
            self.sweep(command)
            return
        while True:
            limit = self.oldest_request + self.machine.t_refi * self.machine.max_postponed_refreshes
            acts, clock = self.plan(command)
            if clock < limit:
                break
            self.force(limit)
        for act in acts:
            self.issue(act, "G_ACT")
            self.last_act = act
        if acts:
            self.open_groups |= self.shut_groups
            self.shut_groups.clear()
        self.execute(command, clock)

    def plan(self, command: Word) -> tuple[list[int], int]:
        """(G_ACTs that reopen rows, issue of the command), if no refresh comes in between."""
        clock, acts = self.last_issue + 1, []
        if command[0] == "COMP" and self.shut_groups:
            while not self.can_activate(clock):
                clock += 1
            clock = self.with_banks(clock)
            acts = [clock + index * self.machine.t_faw for index in range(len(self.shut_groups))]
            clock = acts[-1] + self.machine.t_rcd
        while not self.allowed(command, clock):
            clock += 1
        if command[0] in ("GWRITE", "READRES"):
            return acts, self.with_registers(clock)
        clock = clock if acts else self.with_banks(clock)
        while command[0] == "COMP" and clock < self.filled_at[command[1]]:
            clock += 1
        return acts, clock

    def force(self, limit: int) -> None:
        """Close all rows and serve all requests; the stream waits until the last REF has issued."""
        clock = limit
        if self.open_groups:
            self.precharge(limit)
            clock = self.precharged_at
        else:
            while clock < self.refreshed_at:
                clock += 1
            clock = self.with_banks(clock)
        self.registers = False
        while True:
            self.refresh(clock)
            self.last_issue = clock
            if self.oldest_request > clock:
                break
            clock = self.refreshed_at
        self.shut_groups |= self.open_groups
        self.open_groups.clear()

    def sweep(self, command: Word) -> None:
        clock = self.last_issue + 1
        if self.open_groups:
            self.precharge(clock if self.registers else max(self.last_act, self.last_comp))
            closed_at, act_at = self.precharged_at, clock
        else:
            closed_at = self.with_banks(max(clock, self.refreshed_at))
            act_at = clock
            while not self.can_activate(act_at):
                act_at += 1
            act_at = self.with_banks(act_at)
        self.open_groups.clear()
        self.shut_groups.clear()
        while True:
            if self.oldest_request <= clock and clock >= max(closed_at, self.refreshed_at):
                self.refresh(clock)
            elif clock >= act_at and self.allowed(command, clock):
                break
            clock += 1
        self.execute(command, clock)

    def finish(self) -> int:
        end = max(self.last_issue, self.transfers_end)
        if self.oldest_request > end:
            return end
        clock = self.last_issue + 1
        if self.open_groups:
            self.precharge(clock if self.registers else max(self.last_act, self.last_comp))
            clock = max(clock, self.precharged_at)
        else:
            clock = self.with_banks(max(clock, self.refreshed_at))
        while self.oldest_request <= end:
            clock = max(clock, self.oldest_request)
            self.refresh(clock)
            clock = self.refreshed_at
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
