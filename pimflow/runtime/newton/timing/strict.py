"""Profile `strict`: what JEDEC-style DRAM would allow.

"B waits x after A" means that B issues at least x cycles after A. A burst takes max(tBL, tCCD_S) on the one data bus of
the channel. A fill is the time from the issue of a GWRITE until its data is in the buffer: for n bursts, (n - 1) bursts
+ tCWL + tBL. Every parameter is a key of `[pim.timing.strict]`.

One command bus: at most one command issues per cycle, whether from the stream or from the controller. The stream's
commands issue in order, the first at clock 1. The controller issues PREA, REF and the G_ACTs that reopen rows.

- G_ACT waits tFAW after any G_ACT, tRP after a PREA, tRFC after a REF, and, with exposed GWRITE latency, for the end of
  a fill.
- A G_ACT to a bank group that the stream has open, or while it has none open, starts a new sweep: PREA closes all
  banks first. PREA waits tRAS after the last G_ACT and tRTP after the last COMP, but not for commands that use no
  bank: the controller sees the sweep coming. If PREA could issue in the same cycle as a command of the stream, it
  issues in the next free cycle.
- COMP needs an open row in every bank group (every bank computes) and a buffer that was written. It waits tRCD after
  the last G_ACT, tCCD_L after a COMP (both read every bank group), and for the end of the fill of its buffer.
- READRES needs a COMP since the last READRES. Its results are `banks` times `result_bytes`, in whole bursts. It waits
  tCCD_L + tDRAIN after a COMP, for all bursts of the previous READRES, and tWTR after the end of a fill (the bus turns
  around from write to read).
- GWRITE moves its bytes in whole bursts. It waits for all bursts of the previous GWRITE, tRTW after the last burst of a
  READRES (from read to write), and tCCD_L after the last COMP that reads the same buffer. So it overlaps with G_ACT,
  and with COMP only if a channel holds a second buffer.
- Modes, if tMOD is not 0: COMP, G_ACT, PREA and REF work on banks, GWRITE and READRES on registers; the channel starts
  in bank mode. A command of the other mode issues tMOD later than it otherwise could. A bank command also waits
  tMOD + 1 after the last burst of the previous GWRITE or READRES (meanwhile a COMP waits for the fill of its buffer).
  If a sweep has to close rows while the channel is in register mode, this applies to its PREA, which then waits for the
  turn of its G_ACT.
- Refresh: a request every tREFI, served by a REF of tRFC with all banks precharged. A sweep serves all requests made
  by the cycle in which its G_ACT could issue: when the G_ACT has its turn, REFs issue tRP after PREA and tRFC apart. A
  request that finds no sweep is postponed by up to the given number of intervals; its limit is the cycle in which one
  more interval has gone by. A command that would issue in that cycle or later (a COMP after the G_ACTs that open rows
  for it) waits: PREA in that cycle or as soon as possible, a REF tRP later, and further REFs tRFC apart as long as
  requests are pending when one has issued. The stream resumes in the cycle after the last REF.
- Rows that a forced refresh closed are reopened when a COMP has its turn and no sweep has come since: a G_ACT for each
  of those bank groups, in the order of their numbers.
- A stream ends when the last bursts are over (of a READRES tCL + tBL after its turn on the bus, of a GWRITE with its
  fill), and every request made by then, or while such requests are served, is served.
"""

from __future__ import annotations

from pimflow.codegen.newton.commands import Command, Comp, GAct, GWrite
from pimflow.runtime.newton.timing import tally
from pimflow.runtime.newton.timing.rules import Finish, IllegalCommand, Rules, State, Step, Struck
from pimflow.targets import PimSpec

_READRES = 0
# A state: bank groups open, bank groups that a forced refresh closed, buffers written (bit masks), whether latches hold
# results, whether the channel is in register mode; then cycles from the last issue until: all data transfers are over;
# the last COMP is done (tCCD_L); the last REF is done (tRFC); an exposed GWRITE allows G_ACTs; register access is over.
# Then the earliest G_ACT, PREA, COMP, READRES and GWRITE; then for each buffer the earliest COMP that reads it, and for
# each buffer the earliest GWRITE that fills it.
_OPEN, _SHUT, _WRITTEN, _LATCHED, _REGISTERS, _DUE, _BUSY, _HELD, _FILLING, _ACCESS = range(10)
_ACT, _PRE, _COMP, _RES, _BUS, _BUFFERS = range(10, 16)
_Vector = tuple[int, ...]


class StrictRules(Rules):
    """Row state, one command bus and one data bus per channel, postponed refresh."""

    def __init__(self, pim: PimSpec, gwrite_latency: str) -> None:
        super().__init__(pim)
        self._timing = timing = pim.timing.strict
        self.interval = timing.t_refi
        self._patience = timing.t_refi * timing.max_postponed_refreshes
        self._exposed = gwrite_latency == "exposed"
        self._element_bytes = pim.element_bytes
        self._all_open = (1 << pim.bank_groups) - 1
        self._burst = timing.burst_cycles
        self._reading = self._burst * (
            timing.bursts(pim.banks * pim.result_bytes) - 1
        )  # to the last burst of a READRES
        # Codes: READRES, G_ACT per group, COMP per buffer, then GWRITEs by buffer and bursts as they first appear.
        self._first_comp = 1 + self._groups
        self._first_gwrite = self._first_comp + self._buffers
        self._gwrites: list[tuple[int, int]] = []
        self._gwrite_codes: dict[tuple[int, int], int] = {}

    def initial(self) -> State:
        """Banks closed, buffers empty, everything ready at clock 1."""
        return self.state((0,) * _ACT + (1, 1 - self._timing.t_rp, 1, 1, 1) + (1,) * (2 * self._buffers))

    def code(self, command: Command) -> int:
        """The kind of command with its bank group, or its buffer and bursts."""
        if isinstance(command, (Comp, GWrite)) and not 0 <= command.buffer < self._buffers:
            return self.no_such(command)
        if isinstance(command, Comp):
            return self._first_comp + command.buffer
        if isinstance(command, GAct):
            return 1 + command.group if 0 <= command.group < self._groups else self.no_such(command)
        if not isinstance(command, GWrite):
            return _READRES
        key = command.buffer, self._timing.bursts(command.elements * self._element_bytes)
        known = self._gwrite_codes.get(key)
        if known is None:
            known = self._gwrite_codes[key] = self._first_gwrite + len(self._gwrites)
            self._gwrites.append(key)
        return known

    def next_step(self, state: State, code: int) -> Step:
        """Issue as soon as the rules allow; a sweep admits requests made by then, other commands forced refreshes."""
        vector = state.vector
        self._refuse(vector, code)
        cycles = self._earliest(vector, code)
        sweep = self._starts_sweep(vector, code)
        spent = self._spent(vector, code, cycles)
        spent += tally.PREA * (sweep and vector[_OPEN] > 0) + self._reopened(vector, code)
        threshold = cycles if sweep else cycles - self._patience
        return Step(cycles, self._after(vector, code, cycles), threshold, spent)

    def strike(self, state: State, code: int, phase: int) -> Struck:
        """Execute a sweep with the requests that it serves, or another command with forced refreshes."""
        vector = state.vector
        undisturbed = self._earliest(vector, code)
        spent = self._spent(vector, code, undisturbed)
        if self._starts_sweep(vector, code):
            refs, now = self._served(self._precharged(vector), undisturbed, phase)
            spent += tally.delayed(undisturbed, now, vector[_BUSY])
            spent += tally.REF * refs + tally.PREA * bool(vector[_OPEN])
            return Struck(now, self._after(vector, code, now), phase + refs * self.interval - now, spent)
        before, cycles, busy = 0, undisturbed, vector[_BUSY]
        while phase + self._patience <= cycles:
            spent += tally.PREA * bool(vector[_OPEN])
            given, since = vector, phase
            vector, elapsed, refs = self._forced(vector, phase)
            rounds = 1
            if phase + refs * self.interval - elapsed == since and self._is_refreshed(given):
                rounds += (cycles - since - self._patience) // elapsed  # the wait shrinks by at most `elapsed` in each
                vector = self._refreshed(given, rounds * elapsed)
            spent += rounds * tally.REF * refs
            before, phase = before + rounds * elapsed, phase + rounds * (refs * self.interval - elapsed)
            cycles = self._earliest(vector, code)
        spent += tally.delayed(undisturbed, before + cycles, busy) + self._reopened(vector, code)
        return Struck(before + cycles, self._after(vector, code, cycles), phase - cycles, spent)

    def finish(self, state: State, phase: int) -> Finish:
        """Serve every request made by the end of transfers, or while such requests are served."""
        vector = state.vector
        refs, end = self._served(self._precharged(vector), vector[_DUE], phase)
        preas = 1 if refs and vector[_OPEN] else 0
        spent = tally.tail(end, vector[_BUSY], vector[_DUE])
        return Finish(end, spent + tally.PREA * preas + tally.REF * refs)

    def _served(self, start: int, end: int, phase: int) -> tuple[int, int]:
        """(REFs from `start` on for requests made by `end` or during these REFs, the new end after them)."""
        refs, each = 0, self._timing.t_rfc
        while phase <= end:
            behind = max(0, start - phase)  # REFs follow one another until none is pending
            count = max(1, -(-behind // (self.interval - each)))
            start = max(start, phase) + count * each
            end = max(end, start)
            if start <= phase + count * self.interval <= end:  # then each is over before the next request
                count += (end - phase) // self.interval - count
            phase += count * self.interval
            refs += count
        return refs, end

    def _forced(self, vector: _Vector, phase: int) -> tuple[_Vector, int, int]:
        """Close and refresh: (vector after the last REF, cycles to its issue, REFs)."""
        timing, limit = self._timing, phase + self._patience
        if vector[_OPEN]:
            now = self._with_banks(vector, max(limit, vector[_PRE])) + timing.t_rp
        else:
            now = self._with_banks(vector, max(limit, vector[_HELD]))
        # The fewest REFs, tRFC apart, that exceed the further requests made by the last of them.
        refs = max(1, (now - timing.t_rfc - phase) // (self.interval - timing.t_rfc) + 1)
        now += (refs - 1) * timing.t_rfc
        return self._refreshed(vector, now), now, refs

    def _refreshed(self, vector: _Vector, now: int) -> _Vector:
        """The vector relative to a REF that issues `now` cycles later, the last of a forced refresh."""
        new = self._later(vector, now)
        new[_OPEN], new[_SHUT], new[_REGISTERS] = 0, vector[_SHUT] | vector[_OPEN], 0
        new[_HELD], new[_PRE] = self._timing.t_rfc, 1 - self._timing.t_rp
        return tuple(new)

    def _is_refreshed(self, vector: _Vector) -> bool:
        """Whether the last command was a REF: a forced refresh then depends on its phase alone."""
        return (vector[_OPEN], vector[_REGISTERS], vector[_HELD]) == (0, 0, self._timing.t_rfc)

    def _refuse(self, vector: _Vector, code: int) -> None:
        if code == _READRES and not vector[_LATCHED]:
            raise IllegalCommand("READRES of nothing: no COMP since the last READRES")
        buffer = code - self._first_comp
        if not 0 <= buffer < self._buffers:
            return
        rows = vector[_OPEN] | vector[_SHUT]
        if rows != self._all_open:
            closed = [group for group in range(self._groups) if not rows >> group & 1]
            raise IllegalCommand(f"COMP with no open row in bank group {', '.join(map(str, closed))}")
        if not vector[_WRITTEN] >> buffer & 1:
            raise IllegalCommand(f"COMP from buffer {buffer}, which was never written")

    def _starts_sweep(self, vector: _Vector, code: int) -> bool:
        if not 1 <= code < self._first_comp:
            return False
        rows = vector[_OPEN] | vector[_SHUT]
        return rows == 0 or bool(rows >> (code - 1) & 1)

    def _reopened(self, vector: _Vector, code: int) -> int:
        """The tally of the G_ACTs that reopen rows for a COMP."""
        is_comp = self._first_comp <= code < self._first_gwrite
        return tally.REOPENED * vector[_SHUT].bit_count() if is_comp else 0

    def _with_banks(self, vector: _Vector, ready: int) -> int:
        """When a bank command issues that is otherwise ready at `ready`."""
        return max(ready, vector[_ACCESS]) + self._timing.t_mod if vector[_REGISTERS] else ready

    def _with_registers(self, vector: _Vector, ready: int) -> int:
        """When a register command issues that is otherwise ready at `ready`."""
        return ready if vector[_REGISTERS] else ready + self._timing.t_mod

    def _precharged(self, vector: _Vector) -> int:
        """The earliest cycle in which all banks are precharged, not before the requesting command has its turn."""
        if not vector[_OPEN]:
            return self._with_banks(vector, max(1, vector[_HELD]))
        turn = self._with_banks(vector, max(1, vector[_PRE])) if vector[_REGISTERS] else vector[_PRE]
        return max(1, turn + self._timing.t_rp)

    def _earliest(self, vector: _Vector, code: int) -> int:
        """Cycles from the last issue to the issue of this command, without a further refresh."""
        if code == _READRES:
            return self._with_registers(vector, vector[_RES])
        if code < self._first_comp:
            ready = max(vector[_ACT], vector[_FILLING], vector[_HELD])
            if vector[_OPEN] and self._starts_sweep(vector, code):
                return max(ready, self._precharged(vector))
            return self._with_banks(vector, ready)
        if code < self._first_gwrite:
            filled = vector[_BUFFERS + code - self._first_comp]
            if vector[_SHUT]:
                return max(vector[_COMP], filled, self._last_reopened(vector) + self._timing.t_rcd)
            return max(self._with_banks(vector, vector[_COMP]), filled)
        buffer, _ = self._gwrites[code - self._first_gwrite]
        return self._with_registers(vector, max(vector[_BUS], vector[_BUFFERS + self._buffers + buffer]))

    def _last_reopened(self, vector: _Vector) -> int:
        """When the last of the G_ACTs that reopen rows issues."""
        first = self._with_banks(vector, max(vector[_ACT], vector[_FILLING], vector[_HELD]))
        return first + (vector[_SHUT].bit_count() - 1) * self._timing.t_faw

    def _spent(self, vector: _Vector, code: int, cycles: int) -> int:
        """The tally up to a command's issue; a change of mode counts as the command itself, for a COMP as rows."""
        busy = vector[_BUSY]
        if code == _READRES or code >= self._first_gwrite:
            return tally.own(tally.FILL if code else tally.READOUT, cycles, busy)
        if code < self._first_comp:
            rows, filling = (self._with_banks(vector, ready) for ready in (vector[_ACT], vector[_FILLING]))
            if vector[_OPEN] and self._starts_sweep(vector, code):
                rows = max(vector[_ACT], self._precharged(vector))
            return tally.activation_of(cycles, busy, rows, filling)
        rows = self._with_banks(vector, vector[_COMP])
        ready = max(rows, vector[_BUFFERS + code - self._first_comp]) if vector[_SHUT] else cycles
        return tally.comp_of(min(cycles, ready), busy, rows) + tally.REFRESH * max(0, cycles - ready)

    def _later(self, vector: _Vector, cycles: int) -> list[int]:
        """The vector relative to a command that issues `cycles` after the previous one."""
        new = [*vector[:_DUE], *(max(ready - cycles, 0) for ready in vector[_DUE:_ACT])]
        new += [max(ready - cycles, 1) for ready in vector[_ACT:]]
        new[_PRE] = max(vector[_PRE] - cycles, 1 - self._timing.t_rp)
        if vector[_PRE] == cycles:  # the bus is taken
            new[_PRE] = 1
        return new

    def _after(self, vector: _Vector, code: int, cycles: int) -> State:
        """The state after a command that issued `cycles` after the previous one."""
        timing, new = self._timing, self._later(vector, cycles)
        new[_REGISTERS] = int(timing.t_mod > 0 and (code == _READRES or code >= self._first_gwrite))
        if code == _READRES:
            new[_LATCHED] = 0
            new[_RES] = max(new[_RES], self._reading + self._burst)
            new[_BUS] = max(new[_BUS], self._reading + timing.t_rtw)
            new[_DUE] = max(new[_DUE], timing.t_cl + self._reading + timing.t_bl)
            new[_ACCESS] = (self._reading + 1) * new[_REGISTERS]
        elif code < self._first_comp:
            self._open(new, vector, code)
        elif code < self._first_gwrite:
            self._compute(new, vector, code, cycles)
        else:
            self._fill(new, *self._gwrites[code - self._first_gwrite])
        return self.state(tuple(new))

    def _open(self, new: list[int], vector: _Vector, code: int) -> None:
        """Update `new` for a G_ACT that has just issued."""
        timing, group = self._timing, 1 << (code - 1)
        if self._starts_sweep(vector, code):
            new[_OPEN], new[_SHUT] = group, 0
        else:
            new[_OPEN] |= group
        new[_ACT], new[_PRE] = timing.t_faw, timing.t_ras
        new[_COMP] = max(new[_COMP], timing.t_rcd)

    def _compute(self, new: list[int], vector: _Vector, code: int, cycles: int) -> None:
        """Update `new` for a COMP that has just issued, with the G_ACTs that reopened rows for it."""
        timing = self._timing
        if vector[_SHUT]:
            ago = cycles - self._last_reopened(vector)
            new[_OPEN], new[_SHUT] = self._all_open, 0
            new[_ACT], new[_PRE] = max(timing.t_faw - ago, 1), max(timing.t_ras - ago, 1)
        new[_LATCHED] = 1
        new[_BUSY] = new[_COMP] = timing.t_ccd_l
        new[_PRE] = max(new[_PRE], timing.t_rtp)
        new[_RES] = max(new[_RES], timing.t_ccd_l + timing.t_drain)
        new[_BUFFERS + self._buffers + code - self._first_comp] = timing.t_ccd_l

    def _fill(self, new: list[int], buffer: int, bursts: int) -> None:
        """Update `new` for a GWRITE that has just issued: the bus is busy, and its buffer is ready afterwards."""
        timing = self._timing
        filled = (bursts - 1) * self._burst + timing.t_cwl + timing.t_bl
        new[_WRITTEN] |= 1 << buffer
        new[_BUS] = bursts * self._burst
        new[_RES] = max(new[_RES], filled + timing.t_wtr)
        new[_DUE] = max(new[_DUE], filled)
        new[_BUFFERS + buffer] = filled
        new[_ACCESS] = (filled - timing.t_cwl - timing.t_bl + 1) * new[_REGISTERS]
        if self._exposed:
            new[_FILLING] = filled
