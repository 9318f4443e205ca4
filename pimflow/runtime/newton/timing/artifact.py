"""Profile `artifact`: the published simulator's controller, as transitions instead of clock cycles.

Why this is exact: a command enters the queue every cycle and at most one issues, so arrivals never delay the head of
the queue. Command i issues at max(issue of i-1 + 1, its constraints). The controller finds the queue empty only at the
end of the stream, so it enters refresh mode only after a READRES, or at the end. After a READRES issued at t, requests
made by t+1 are served before the next command: PREA at t+1 if a bank is open, then REF as soon as its constraints
allow, and again while requests are pending in the cycle after a REF. After the last command, only results that have yet
to leave and pending requests keep the clock running; a request made in the cycle after the last REF is never seen.

The end of the trace is read in the cycle after its last command arrived. If every command issued in the cycle in which
it arrived, that is one cycle after the last issue; otherwise the end has been read by the last issue.

The published controller has no row state: after a refresh it continues with COMPs although all rows are closed. With
`reopens_rows` it reopens them, which is the only unpublished rule: before a COMP, a G_ACT for every bank group that a
refresh has closed and the stream has not opened since, in order. These and all other G_ACTs (in the published
controller only G_ACT0) wait for the end of the refresh, and obey the same constraints as the G_ACTs of the stream.
"""

from __future__ import annotations

from pimflow.codegen.newton.commands import Command, Comp, GAct, GWrite
from pimflow.runtime.newton.timing import tally
from pimflow.runtime.newton.timing.rules import NEVER, Finish, Rules, State, Step, Struck
from pimflow.targets import ArtifactTiming, PimSpec

_GWRITE, _COMP, _READRES, _PREA, _REF, _ACT = range(6)  # G_ACTi is _ACT + i
# A state: bank groups open (bit mask); bank groups that a refresh closed and that are reopened before the next COMP
# (bit mask); whether the last command was a READRES; whether every command so far issued in the cycle in which it
# arrived. Then cycles from the last issue until: the last result leaves; the last COMP is done (tCCD); a refresh is
# over; a GWRITE allows G_ACTs; a GWRITE allows COMPs. Then the earliest issue of each command code.
_OPEN, _SHUT, _READ, _PROMPT, _DUE, _BUSY, _HELD, _FILLING, _FILLED, _FIRST = range(10)


class ArtifactRules(Rules):
    """The published controller. A state holds the earliest issue of each command, in cycles after the last issue."""

    def __init__(self, pim: PimSpec, gwrite_latency: str, reopens_rows: bool) -> None:
        super().__init__(pim)
        self._timing = timing = pim.timing.artifact
        self.interval = timing.refresh_interval
        self._reopens = reopens_rows
        self._all_open = (1 << pim.bank_groups) - 1
        hidden = gwrite_latency == "hidden"
        self._next_gwrite = max(1, timing.gwrite_to_next_hidden if hidden else timing.gwrite_to_next_exposed)
        self._constraints = _constraints(timing, pim.bank_groups, self._next_gwrite)

    def initial(self) -> State:
        """Everything may issue at clock 1."""
        return self.state((0, 0, 0, 1, 0, 0, 0, 0, 0) + (1,) * (_ACT + self._groups))

    def code(self, command: Command) -> int:
        """The kind of command, with the bank group of a G_ACT."""
        if isinstance(command, Comp):
            return _COMP
        if isinstance(command, GAct):
            return _ACT + command.group if 0 <= command.group < self._groups else self.no_such(command)
        return _GWRITE if isinstance(command, GWrite) else _READRES

    def next_step(self, state: State, code: int) -> Step:
        """Issue as soon as constraints allow; after a READRES, requests made by the next cycle go first."""
        threshold = 1 if state.vector[_READ] else NEVER
        if code == _COMP and state.vector[_SHUT]:
            return self._reopened(state)._replace(threshold=threshold)
        cycles = self._wait(state.vector, code)
        spent = self._spent(state.vector, code, cycles)
        if code == _COMP and state.vector[_OPEN] != self._all_open:
            spent += tally.CLOSED
        return Step(cycles, self._after(state.vector, code, cycles), threshold, spent)

    def strike(self, state: State, code: int, phase: int) -> Struck:
        """PREA if a bank is open, a REF for every pending request, then the command."""
        undisturbed, vector = self._wait(state.vector, code), state.vector
        now = preas = refs = 0
        if vector[_OPEN]:
            now, state, _, _ = self.step(state, _PREA)
            preas = 1
        cycles, state, _, _ = self.step(state, _REF)
        now += cycles
        more = self._more_refs(now, phase + self.interval, 1)
        while refs < more:
            cycles, after, _, _ = self.step(state, _REF)
            times = more - refs if after is state else 1
            now += times * cycles
            refs += times
            state = after
        refs += 1
        last = self.step(state, code)
        now += last.cycles
        spent = self._spent(vector, code, undisturbed) + tally.delayed(undisturbed, now, vector[_BUSY])
        spent += tally.counts(last.tally) + tally.PREA * preas + tally.REF * refs
        return Struck(now, last.state, phase + refs * self.interval - now, spent)

    def finish(self, state: State, phase: int) -> Finish:
        """Serve requests until the end of the trace is read, the last result has left and no request is pending."""
        timing, busy = self._timing, state.vector[_BUSY]
        due = max(state.vector[_DUE], state.vector[_PROMPT])
        ref_ready = state.vector[_FIRST + _REF]
        bank_open = bool(state.vector[_OPEN])
        now = preas = refs = 0
        while phase <= max(now, due):
            start = max(now + 1, phase)
            if bank_open:
                ref_ready = max(ref_ready, start + timing.pre_to_act)
                start, bank_open, preas = start + 1, False, 1
            now = max(start, ref_ready)
            ref_ready = now + timing.ref_to_act
            phase += self.interval
            refs += 1
            if now >= due:
                more = self._more_refs(now, phase, 0)
                now += more * max(1, timing.ref_to_act)
                refs += more
                break
        return Finish(max(now, due), tally.tail(max(now, due), busy, due) + tally.PREA * preas + tally.REF * refs)

    def _more_refs(self, now: int, phase: int, slack: int) -> int:
        """How many REFs follow one at `now` back to back, until none was requested by `slack` cycles after the last."""
        gap = max(1, self._timing.ref_to_act)
        return max(0, (now + slack - phase) // (self.interval - gap) + 1) if phase <= now + slack else 0

    def _reopened(self, state: State) -> Step:
        """The step of a COMP with a G_ACT before it for every bank group that a refresh closed."""
        undisturbed, vector = self._wait(state.vector, _COMP), state.vector
        now = 0
        groups = [group for group in range(self._groups) if vector[_SHUT] >> group & 1]
        for code in (*(_ACT + group for group in groups), _COMP):
            step = self.step(state, code)
            now += step.cycles
            state = step.state
        spent = self._spent(vector, _COMP, undisturbed) + tally.delayed(undisturbed, now, vector[_BUSY])
        return Step(now, state, NEVER, spent + tally.counts(step.tally) + tally.REOPENED * len(groups))

    def _wait(self, vector: tuple[int, ...], code: int) -> int:
        """Cycles from the last issue to the issue of this command."""
        if code >= _ACT:
            held = vector[_HELD] if self._reopens or code == _ACT else 0
            return max(vector[_FIRST + code], vector[_FILLING], held)
        return max(vector[_FIRST + code], vector[_FILLED] if code == _COMP else 0)

    def _spent(self, vector: tuple[int, ...], code: int, cycles: int) -> int:
        """The tally of the cycles up to a command's issue."""
        if code >= _ACT:
            return tally.activation_of(cycles, vector[_BUSY], vector[_FIRST + code], vector[_FILLING])
        if code == _COMP:
            return tally.comp_of(cycles, vector[_BUSY], vector[_FIRST + code])
        return tally.own(tally.FILL if code == _GWRITE else tally.READOUT, cycles, vector[_BUSY])

    def _after(self, vector: tuple[int, ...], code: int, cycles: int) -> State:
        """The state after a command that issued `cycles` after the previous one."""
        open_groups, shut, timing = vector[_OPEN], vector[_SHUT], self._timing
        due, busy, held, filling, filled = (max(ready - cycles, 0) for ready in vector[_DUE:_FIRST])
        least = self._constraints[code]
        after = [max(ready - cycles, limit) for ready, limit in zip(vector[_FIRST:], least, strict=True)]
        if code == _PREA:
            open_groups, shut = 0, shut | open_groups if self._reopens else 0
        elif code == _REF:
            held = timing.ref_to_act
        elif code == _READRES:
            due = timing.readres_latency
        elif code == _COMP:
            busy = timing.comp_to_comp
        elif code == _GWRITE:
            filling, filled = self._next_gwrite, max(filled, timing.gwrite_to_comp)
        else:
            group = 1 << code - _ACT
            open_groups, shut = open_groups | group, shut & ~group
        prompt = int(vector[_PROMPT] and cycles == 1 and code not in (_PREA, _REF))
        flags = open_groups, shut, int(code == _READRES), prompt
        return self.state((*flags, due, busy, held, filling, filled, *after))


def _constraints(timing: ArtifactTiming, bank_groups: int, next_gwrite: int) -> tuple[tuple[int, ...], ...]:
    """Row a, entry b: the minimum number of cycles from a to b (1 where there is no constraint).

    Other kinds of commands that wait for a GWRITE or a REF are not in the table but in the state.
    """
    table = [[1] * (_ACT + bank_groups) for _ in range(_ACT + bank_groups)]
    table[_GWRITE][_GWRITE] = next_gwrite
    for act in range(_ACT, _ACT + bank_groups):
        table[act][_COMP] = timing.act_to_comp
        if act + 1 < _ACT + bank_groups:
            table[act][act + 1] = timing.act_to_act
    table[_COMP][_COMP] = timing.comp_to_comp
    table[_COMP][_READRES] = timing.comp_to_readres
    table[_READRES][_GWRITE] = timing.readres_to_gwrite
    table[_PREA][_ACT] = table[_PREA][_REF] = timing.pre_to_act
    table[_REF][_REF] = timing.ref_to_act
    return tuple(tuple(row) for row in table)
