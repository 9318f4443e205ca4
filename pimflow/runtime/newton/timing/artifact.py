"""Profile `artifact`: the published simulator's controller, as transitions instead of clock cycles.

Why this is exact. A command enters the queue every cycle and at most one issues, so arrivals never hold back the head:
command i issues at max(issue of i-1 + 1, its constraints). When the queue is looked at, it is empty only if the stream
is used up, so refresh mode goes on only after a READRES, or at the end. After a READRES issued at t, requests made by
t+1 are served before the next command: PREA at t+1 if a bank is open, then REF as soon as its constraints allow, and
again while requests are waiting in the cycle after a REF. After the last command, nothing but results that are still
to leave and requests that wait keeps the clock going; a request made in the cycle after the last REF is never seen.

The end of the trace is read in the cycle after its last command arrived. If every command issued in the cycle in which
it arrived, that is one cycle after the last issue; else it has been read by then.
"""

from __future__ import annotations

from pimflow.codegen.newton.commands import Command, Comp, GAct, GWrite
from pimflow.runtime.newton.timing.rules import NEVER, Finish, Rules, State, Step, Struck
from pimflow.targets import ArtifactTiming, PimSpec

_GWRITE, _COMP, _READRES, _PREA, _REF, _ACT = range(6)  # G_ACTi is _ACT + i
# A state: whether any bank is open, whether the last command was a READRES, whether every command so far issued in the
# cycle in which it arrived, cycles until the last result leaves, then readiness by code.
_OPEN, _READ, _PROMPT, _DUE, _FIRST = range(5)


class ArtifactRules(Rules):
    """The published controller. A state holds, per command, how many cycles after the last issue it may issue."""

    def __init__(self, pim: PimSpec, gwrite_latency: str) -> None:
        super().__init__(pim)
        self._timing = timing = pim.timing.artifact
        self.interval = timing.refresh_interval
        self._constraints = _constraints(timing, pim.bank_groups, gwrite_latency)

    def initial(self) -> State:
        """Everything may issue at clock 1."""
        return self.state((0, 0, 1, 0) + (1,) * (_ACT + self._groups))

    def code(self, command: Command) -> int:
        """The kind of command, with the bank group of a G_ACT."""
        if isinstance(command, Comp):
            return _COMP
        if isinstance(command, GAct):
            return _ACT + command.group if 0 <= command.group < self._groups else self.no_such(command)
        return _GWRITE if isinstance(command, GWrite) else _READRES

    def next_step(self, state: State, code: int) -> Step:
        """Issue as soon as constraints allow; behind a READRES, requests made by the cycle after it go first."""
        vector = state.vector
        cycles = vector[_FIRST + code]
        least = self._constraints[code]
        after = [max(ready - cycles, limit) for ready, limit in zip(vector[_FIRST:], least, strict=True)]
        due = self._timing.readres_latency if code == _READRES else max(vector[_DUE] - cycles, 0)
        is_open = 0 if code == _PREA else 1 if code >= _ACT else vector[_OPEN]
        prompt = int(vector[_PROMPT] and cycles == 1 and code not in (_PREA, _REF))
        threshold = 1 if vector[_READ] else NEVER
        return Step(cycles, self.state((is_open, int(code == _READRES), prompt, due, *after)), threshold, 0)

    def strike(self, state: State, code: int, phase: int) -> Struck:
        """PREA if a bank is open, a REF for every request that waits, then the command."""
        now = preas = refs = 0
        if state.vector[_OPEN]:
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
        cycles, state, _, _ = self.step(state, code)
        now += cycles
        return Struck(now, state, phase + refs * self.interval - now, preas, refs, 0)

    def finish(self, state: State, phase: int) -> Finish:
        """Serve requests until the end of the trace is read, the last result has left and none waits."""
        due, timing = max(state.vector[_DUE], state.vector[_PROMPT]), self._timing
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
                return Finish(now + more * max(1, timing.ref_to_act), preas, refs + more)
        return Finish(max(now, due), preas, refs)

    def _more_refs(self, now: int, phase: int, slack: int) -> int:
        """REFs that follow one at `now`, back to back, until no request was made by `slack` cycles after the last."""
        gap = max(1, self._timing.ref_to_act)
        return max(0, (now + slack - phase) // (self.interval - gap) + 1) if phase <= now + slack else 0


def _constraints(timing: ArtifactTiming, bank_groups: int, gwrite_latency: str) -> tuple[tuple[int, ...], ...]:
    """Row a, entry b: b may issue that many cycles after a at the earliest (1 where there is no constraint)."""
    table = [[1] * (_ACT + bank_groups) for _ in range(_ACT + bank_groups)]
    hidden = gwrite_latency == "hidden"
    next_gwrite = timing.gwrite_to_next_hidden if hidden else timing.gwrite_to_next_exposed
    for follower in (_GWRITE, *range(_ACT, _ACT + bank_groups)):
        table[_GWRITE][follower] = max(1, next_gwrite)
    table[_GWRITE][_COMP] = timing.gwrite_to_comp
    for act in range(_ACT, _ACT + bank_groups):
        table[act][_COMP] = timing.act_to_comp
        if act + 1 < _ACT + bank_groups:
            table[act][act + 1] = timing.act_to_act
    table[_COMP][_COMP] = timing.comp_to_comp
    table[_COMP][_READRES] = timing.comp_to_readres
    table[_READRES][_GWRITE] = timing.readres_to_gwrite
    for follower in (_ACT, _REF):
        table[_PREA][follower] = timing.pre_to_act
        table[_REF][follower] = timing.ref_to_act
    return tuple(tuple(row) for row in table)
