"""Profile `strict`: what JEDEC-style DRAM would allow.

Here "B waits x after A" means that B issues x cycles after A at the earliest.

Commands of the stream issue in order, one a cycle at most, the first at clock 1. PREA, REF and the G_ACTs that reopen
rows are inserted by the controller; they use the row command bus (row and column commands have a bus each, as in HBM)
and take no cycle from the stream's commands.

- G_ACT waits tFAW after any G_ACT, tRP after a PREA, tRFC after a REF; after a GWRITE, for the end of its bursts if the
  GWRITE latency is exposed, and not at all if it is hidden.
- A G_ACT to a bank group that is open starts a new sweep: PREA closes all banks first. PREA waits tRAS after the last
  G_ACT and tRTP after the last COMP, and not for commands that use no bank: the controller sees the sweep coming.
- COMP needs a row open in every bank group (every bank computes) and a buffer that was written. It waits tRCD after the
  last G_ACT, tCCD after a COMP, and for the end of the bursts of the GWRITE that fills its buffer.
- READRES needs a COMP since the last READRES. It waits tCCD + tDRAIN after a COMP, max(tBL, tCCD) after a READRES, and
  for the end of GWRITE bursts, since both move data on the channel's bus.
- GWRITE takes ceil(bytes / burst bytes) bursts of tCCD on the bus. It waits for the bursts of the GWRITE before, tRTW
  after a READRES (the bus turns round), and tCCD after the last COMP that reads the same buffer. So it overlaps with
  G_ACT, and with COMP only where a channel holds a second buffer.
- Refresh: a request every tREFI, served by a REF of tRFC with all banks precharged. Requests are served before a sweep
  opens (a REF goes before the first G_ACT if both may issue in the same cycle). A request that finds no such moment is
  postponed, up to the given number of intervals. The next request then forces it: before any further command, PREA,
  a REF for every request made, and G_ACTs that reopen the rows that were open.
- The end is when the last READRES burst (tCL + tBL) and the last GWRITE burst are over, and every request is served.
"""

from __future__ import annotations

from pimflow.codegen.newton.commands import Command, Comp, GAct, GWrite
from pimflow.runtime.newton.timing.rules import Finish, IllegalCommand, Rules, State, Step, Struck
from pimflow.targets import PimSpec

_READRES = 0
# A state: bank groups open (bit mask), buffers written (bit mask), whether latches hold results, then cycles from the
# last issue to: the end of all data transfers; the earliest G_ACT, PREA, COMP, READRES and GWRITE; then per buffer the
# earliest COMP that reads it, and the earliest GWRITE that fills it.
_OPEN, _WRITTEN, _LATCHED, _DUE, _ACT, _PRE, _COMP, _RES, _BUS, _BUFFERS = range(10)


class StrictRules(Rules):
    """Row state, one data bus per channel, postponed refresh."""

    def __init__(self, pim: PimSpec, gwrite_latency: str) -> None:
        super().__init__(pim)
        self._timing = timing = pim.timing.strict
        self.interval = timing.t_refi
        self._patience = timing.t_refi * timing.max_postponed_refreshes
        self._exposed = gwrite_latency == "exposed"
        self._element_bytes = pim.element_bytes
        self._all_open = (1 << pim.bank_groups) - 1
        # Codes: READRES, G_ACT per group, COMP per buffer, then GWRITEs by buffer and bursts as they turn up.
        self._first_comp = 1 + self._groups
        self._gwrites: list[tuple[int, int]] = []
        self._gwrite_codes: dict[tuple[int, int], int] = {}

    def initial(self) -> State:
        """Banks closed, buffers empty, everything ready at clock 1."""
        return self.state((0, 0, 0, 0, 1, 1 - self._timing.t_rp, 1, 1, 1) + (1,) * (2 * self._buffers))

    def code(self, command: Command) -> int:
        """The kind of command with its bank group, its buffer, its bursts."""
        if isinstance(command, (Comp, GWrite)) and not 0 <= command.buffer < self._buffers:
            return self.no_such(command)
        if isinstance(command, Comp):
            return self._first_comp + command.buffer
        if isinstance(command, GAct):
            return 1 + command.group if 0 <= command.group < self._groups else self.no_such(command)
        if not isinstance(command, GWrite):
            return _READRES
        bursts = -(-command.elements * self._element_bytes // self._timing.burst_bytes)
        key = command.buffer, bursts
        known = self._gwrite_codes.get(key)
        if known is None:
            known = self._gwrite_codes[key] = self._first_comp + self._buffers + len(self._gwrites)
            self._gwrites.append(key)
        return known

    def next_step(self, state: State, code: int) -> Step:
        """Issue as soon as the rules allow; a sweep serves requests made by then, other commands forced ones."""
        vector = state.vector
        self._refuse(vector, code)
        cycles = self._earliest(vector, code)
        sweep = self._starts_sweep(vector, code)
        threshold = cycles if sweep else cycles - self._patience
        preas = 1 if sweep and vector[_OPEN] else 0
        return Step(cycles, self._after(vector, code, cycles), threshold, preas)

    def strike(self, state: State, code: int, phase: int) -> Struck:
        """A sweep with the requests that it serves, or another command with a forced refresh."""
        vector = state.vector
        if self._starts_sweep(vector, code):
            return self._strike_sweep(vector, code, phase)
        preas = refs = reopened = 0
        cycles = self._earliest(vector, code)
        while phase + self._patience <= cycles:
            vector, phase, served = self._forced(vector, phase)
            refs += served
            preas += 1 if vector[_OPEN] else 0
            reopened += vector[_OPEN].bit_count()
            cycles = self._earliest(vector, code)
        return Struck(cycles, self._after(vector, code, cycles), phase - cycles, preas, refs, reopened)

    def finish(self, state: State, phase: int) -> Finish:
        """Serve every request made by the end of transfers, or by the end of such service."""
        vector, end, refs = state.vector, state.vector[_DUE], 0
        start = self._banks_ready(vector)
        while phase <= end:
            start = max(start, phase) + self._timing.t_rfc
            end = max(end, start)
            phase += self.interval
            refs += 1
        return Finish(end, 1 if refs and vector[_OPEN] else 0, refs)

    def _strike_sweep(self, vector: tuple[int, ...], code: int, phase: int) -> Struck:
        start, act, refs = self._banks_ready(vector), self._earliest(vector, code), 0
        while phase <= act:
            start = max(start, phase) + self._timing.t_rfc
            act = max(act, start)
            phase += self.interval
            refs += 1
        return Struck(act, self._after(vector, code, act), phase - act, 1 if vector[_OPEN] else 0, refs, 0)

    def _forced(self, vector: tuple[int, ...], phase: int) -> tuple[tuple[int, ...], int, int]:
        """Close, refresh, reopen: (vector, phase, REFs)."""
        timing, now = self._timing, phase + self._patience
        now = max(now, vector[_PRE]) + timing.t_rp if vector[_OPEN] else max(now, vector[_ACT])
        refs = 0
        while phase <= now:
            now += timing.t_rfc
            phase += self.interval
            refs += 1
        new = list(vector)
        new[_ACT] = max(now, vector[_ACT])
        groups = vector[_OPEN].bit_count()
        if groups:
            last = new[_ACT] + (groups - 1) * timing.t_faw
            new[_ACT], new[_PRE] = last + timing.t_faw, last + timing.t_ras
            new[_COMP] = max(vector[_COMP], last + timing.t_rcd)
        return tuple(new), phase, refs

    def _refuse(self, vector: tuple[int, ...], code: int) -> None:
        if code == _READRES and not vector[_LATCHED]:
            raise IllegalCommand("READRES of nothing: no COMP since the last READRES")
        buffer = code - self._first_comp
        if not 0 <= buffer < self._buffers:
            return
        if vector[_OPEN] != self._all_open:
            closed = [group for group in range(self._groups) if not vector[_OPEN] >> group & 1]
            raise IllegalCommand(f"COMP with no open row in bank group {', '.join(map(str, closed))}")
        if not vector[_WRITTEN] >> buffer & 1:
            raise IllegalCommand(f"COMP from buffer {buffer}, which was never written")

    def _starts_sweep(self, vector: tuple[int, ...], code: int) -> bool:
        if not 1 <= code < self._first_comp:
            return False
        return vector[_OPEN] == 0 or bool(vector[_OPEN] >> (code - 1) & 1)

    def _banks_ready(self, vector: tuple[int, ...]) -> int:
        """When all banks can be precharged at the earliest, not before the command that asks for it has its turn."""
        return max(1, vector[_PRE] + self._timing.t_rp) if vector[_OPEN] else vector[_ACT]

    def _earliest(self, vector: tuple[int, ...], code: int) -> int:
        """Cycles from the last issue to this command's, with no refresh."""
        if code == _READRES:
            return vector[_RES]
        if code < self._first_comp:
            sweep = self._starts_sweep(vector, code)
            return max(vector[_ACT], self._banks_ready(vector)) if sweep else vector[_ACT]
        buffer = code - self._first_comp
        if buffer < self._buffers:
            return max(vector[_COMP], vector[_BUFFERS + buffer])
        buffer, _ = self._gwrites[buffer - self._buffers]
        return max(vector[_BUS], vector[_BUFFERS + self._buffers + buffer])

    def _after(self, vector: tuple[int, ...], code: int, cycles: int) -> State:
        """The state after the command, issued so many cycles after the one before."""
        timing = self._timing
        new = [*vector[:_DUE], max(vector[_DUE] - cycles, 0), *(max(ready - cycles, 1) for ready in vector[_ACT:])]
        new[_PRE] = max(vector[_PRE] - cycles, 1 - timing.t_rp)
        if code == _READRES:
            new[_LATCHED] = 0
            new[_RES] = max(new[_RES], timing.t_bl, timing.t_ccd)
            new[_BUS] = max(new[_BUS], timing.t_rtw)
            new[_DUE] = max(new[_DUE], timing.t_cl + timing.t_bl)
        elif code < self._first_comp:
            group = 1 << (code - 1)
            new[_OPEN] = group if self._starts_sweep(vector, code) else vector[_OPEN] | group
            new[_ACT], new[_PRE] = timing.t_faw, timing.t_ras
            new[_COMP] = max(new[_COMP], timing.t_rcd)
        elif code < self._first_comp + self._buffers:
            free = _BUFFERS + self._buffers + code - self._first_comp
            new[_LATCHED] = 1
            new[_PRE] = max(new[_PRE], timing.t_rtp)
            new[_COMP] = timing.t_ccd
            new[_RES] = max(new[_RES], timing.t_ccd + timing.t_drain)
            new[free] = timing.t_ccd
        else:
            self._fill(new, *self._gwrites[code - self._first_comp - self._buffers])
        return self.state(tuple(new))

    def _fill(self, new: list[int], buffer: int, bursts: int) -> None:
        """A GWRITE just issued: the bus is busy, its buffer is ready after."""
        length = max(1, bursts * self._timing.t_ccd)
        new[_WRITTEN] |= 1 << buffer
        new[_BUS] = length
        new[_RES] = max(new[_RES], length)
        new[_DUE] = max(new[_DUE], length)
        new[_BUFFERS + buffer] = length
        if self._exposed:
            new[_ACT] = max(new[_ACT], length)
