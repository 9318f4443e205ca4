"""Chooses the mapping of one matrix problem: Newton+, Newton++, or the best of the mapping space.

Candidates are ranked by a closed-form estimate; the shortlist is lowered and timed exactly, and the fastest wins.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

from pimflow.codegen import MatrixProblem
from pimflow.codegen.backend import Records
from pimflow.codegen.newton import Mapping, PimProgram, newton_mappings
from pimflow.codegen.newton.im2col import geometry
from pimflow.codegen.newton.lowering import Outline, outline
from pimflow.codegen.newton.published import channel_loads
from pimflow.data import decode, encode
from pimflow.errors import DataError
from pimflow.ir import Refusal
from pimflow.runtime.newton.autotune.rebalance import rebalanced
from pimflow.runtime.newton.autotune.space import Candidate, candidates
from pimflow.runtime.newton.cost import PimCost, kernel_us, placement_cycles, price, time_classes
from pimflow.runtime.newton.profiles.base import TimingProfile
from pimflow.runtime.newton.timing.streams import StreamTimer

_SHORTLIST = 6  # candidates of `auto` that are timed exactly
_NEAR = 1.4  # and the best of every kind whose estimate is within this factor of the least
_THINNED_SHORTLIST = 3  # of those whose fills hold fewer pixels than fit
_NEWTON_SHORTLIST = 3

POLICIES = ("newton+", "newton++", "auto")


class MappingSearch:
    """The fastest mappings on one machine under one timing profile, each searched once."""

    def __init__(self, profile: TimingProfile) -> None:
        self.profile = profile
        self.timer = StreamTimer(profile)
        self._known: dict[tuple[MatrixProblem, str], _Chosen | Refusal] = {}
        self._recalled: dict[str, str] = {}
        self._learnt: dict[str, str] = {}

    def recall(self, records: Records) -> None:
        """Takes the mappings that other searches chose on the same machine, as `learnt` gave them."""
        self._recalled.update(records)

    def learnt(self) -> Records:
        """The mappings chosen since this was last asked."""
        learnt, self._learnt = self._learnt, {}
        return learnt

    def choose(self, problem: MatrixProblem, policy: str) -> PimCost | Refusal:
        """The fastest mapping that a policy allows, priced.

        Args:
            problem: the matrix work.
            policy: "newton+", "newton++" or "auto".
        """
        chosen = self._chosen(problem, policy)
        return chosen if isinstance(chosen, Refusal) else chosen.cost

    def time_us(self, problem: MatrixProblem, policy: str) -> float | Refusal:
        """What `choose` says of the time alone."""
        chosen = self._chosen(problem, policy)
        return chosen if isinstance(chosen, Refusal) else chosen.time_us

    def program(self, problem: MatrixProblem, policy: str) -> PimProgram | Refusal:
        """What `choose` priced."""
        chosen = self._chosen(problem, policy)
        return chosen if isinstance(chosen, Refusal) else chosen.program

    def _chosen(self, problem: MatrixProblem, policy: str) -> _Chosen | Refusal:
        key = (problem, policy)
        if key not in self._known:
            self._known[key] = self._recall(problem, policy) or self._search_anew(problem, policy)
        return self._known[key]

    def _recall(self, problem: MatrixProblem, policy: str) -> _Chosen | None:
        """What a mapping that was chosen before makes; None if none was, or none for this problem."""
        text = self._recalled.get(self._key(problem, policy))
        if text is None:
            return None
        try:
            mapping: Mapping = decode(Mapping, json.loads(text))
        except (ValueError, DataError):
            return None
        outlined = outline(problem, mapping, self.profile.pim)
        return None if isinstance(outlined, Refusal) else _Chosen(outlined, self.timer)

    def _key(self, problem: MatrixProblem, policy: str) -> str:
        text = f"{policy} {self.profile.pim.operand} {problem}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def _search_anew(self, problem: MatrixProblem, policy: str) -> _Chosen | Refusal:
        chosen = self._search(problem, policy)
        if not isinstance(chosen, Refusal):
            mapping = encode(chosen.outline.mapping)
            self._learnt[self._key(problem, policy)] = json.dumps(mapping, separators=(",", ":"))
        return chosen

    def _search(self, problem: MatrixProblem, policy: str) -> _Chosen | Refusal:
        """The best of the likely mappings; of all, where the banks have no room for any of those."""
        race = _Race(problem, self.profile, self.timer)
        newton = newton_mappings(problem, self.profile.pim, "newton+" if policy == "newton+" else "newton++")
        likely = self._likely(newton, problem)
        if policy != "auto":
            race.enter(likely)
            if race.best is None:
                race.enter(newton)
            return race.result()
        ranked = candidates(problem, self.profile)
        for parts in sorted({entry.buffer_parts for entry in ranked}):
            self._enter_auto(race, [entry for entry in ranked if entry.buffer_parts == parts])
        race.enter(map(_reopening, likely))
        race.enter_rebalanced()
        if race.best is None:
            race.enter(entry.mapping for entry in ranked)
            race.enter(map(_reopening, newton))
        return race.result()

    def _enter_auto(self, race: _Race, ranked: list[Candidate]) -> None:
        """The likeliest for every number of buffers that a channel may hold, and the other order of READRES and GWRITE.

        What wins with fewer buffers is in the race too, so that more of them never make the choice slower. Which order
        is better, the closed forms say of all alike; the best is timed with the other one as well.
        """
        full = [entry for entry in ranked if not entry.thinned]
        for held in sorted({entry.fills_held for entry in full}):
            race.enter(_shortlist([entry for entry in full if entry.fills_held <= held]))
            race.enter_other_order()
        thinned = [entry for entry in ranked if entry.thinned and entry.cycles <= _NEAR * ranked[0].cycles]
        race.enter(entry.mapping for entry in thinned[:_THINNED_SHORTLIST])
        race.enter_other_order()

    def _likely(self, mappings: tuple[Mapping, ...], problem: MatrixProblem) -> tuple[Mapping, ...]:
        """Those of Newton++'s mappings that the slowest channel's rows and COMPs leave in the running, best first."""
        shape, costs = geometry(problem, self.profile.pim), self.profile.visit_costs()
        ranked: dict[tuple[tuple[int, int], ...], tuple[float, Mapping]] = {}
        for mapping in mappings:
            loads = channel_loads(mapping, shape)
            cycles = max(rows * costs.sweep + comps * costs.comp for rows, comps in loads)
            ranked.setdefault(tuple(sorted(set(loads))), (cycles, mapping))
        order = sorted(ranked.values(), key=lambda entry: entry[0])
        return tuple(mapping for cycles, mapping in order[:_NEWTON_SHORTLIST] if cycles <= 1.1 * order[0][0])


@dataclass(frozen=True)
class _Chosen:
    """The fastest mapping of a problem; its program, and what that costs in all, when asked for.

    `cycles` are those of the slowest channel, placement included, if they are known.
    """

    outline: Outline
    timer: StreamTimer
    cycles: int | None = None

    @cached_property
    def program(self) -> PimProgram:
        return self.outline.program()

    @cached_property
    def cost(self) -> PimCost:
        return price(self.program, time_classes(self.program, self.timer), self.timer.profile)

    @property
    def time_us(self) -> float:
        """As `cost` has it."""
        return self.cost.time_us if self.cycles is None else kernel_us(self.cycles, self.timer.profile)


@dataclass
class _Race:
    """The fastest mapping of a problem by exact timing, of equals the first; or why the nearest miss does not fit.

    `channels` are the cycles of channels of the fastest, of those with like streams of the first.
    """

    problem: MatrixProblem
    profile: TimingProfile
    timer: StreamTimer
    best: Outline | None = None
    cycles: int | None = None
    refusal: Refusal | None = None
    channels: dict[int, int] = field(default_factory=dict)
    entered: set[Mapping] = field(default_factory=set)

    def enter(self, mappings: Iterable[Mapping]) -> None:
        """Lowers and times some mappings, each once."""
        for mapping in mappings:
            if mapping not in self.entered:
                self.entered.add(mapping)
                self._time(mapping)

    def enter_other_order(self) -> None:
        """The fastest with the other order of a READRES and the next GWRITE, where it has one."""
        best = self.best.mapping if self.best else None
        if best is not None and best.order == "rows" and not best.prefetch:
            self.enter([replace(best, early_fill=not best.early_fill)])

    def enter_rebalanced(self) -> None:
        """The fastest with shares by which its channel groups would end together, once."""
        if self.best is None:
            return
        ends = accumulate(group.channels for group in self.best.mapping.groups)
        starts = (end - group.channels for end, group in zip(ends, self.best.mapping.groups, strict=True))
        cycles = [
            max((self.channels.get(start + index, 0) for index in range(group.channels)), default=0)
            for start, group in zip(starts, self.best.mapping.groups, strict=True)
        ]
        moved = rebalanced(self.best.mapping, cycles, self.best.shape.row_pixels)
        if moved is not None:
            self.enter([moved])
            self.enter_other_order()

    def result(self) -> _Chosen | Refusal:
        """The fastest."""
        if self.best is None:
            return self.refusal or Refusal("no mapping of the policy fits the machine")
        return _Chosen(self.best, self.timer, self.cycles)

    def _time(self, mapping: Mapping) -> None:
        outlined = outline(self.problem, mapping, self.profile.pim)
        if isinstance(outlined, Refusal):
            if self.refusal is None or (outlined.gap or 0) < (self.refusal.gap or 0):
                self.refusal = outlined
            return
        channels: dict[int, int] = {}
        cycles = self._cycles(outlined, channels)
        if cycles is not None:
            self.best, self.cycles, self.channels = outlined, cycles, channels

    def _cycles(self, outlined: Outline, channels: dict[int, int]) -> int | None:
        """Of the slowest channel, placement included; None if that is not faster than what has been timed.

        `channels` is told what the first of those with like streams take, placement apart.
        """
        placing = placement_cycles(outlined, self.profile)
        loads = sorted(((outlined.comps(channels[0]), channels[0]) for channels in outlined.classes), reverse=True)
        slowest = 0
        for comps, channel in loads:
            if self._is_slow(placing + max(slowest, comps * self.profile.comp_cycles)):
                return None
            channels[channel] = self.timer.cycles(outlined, channel)
            slowest = max(slowest, channels[channel])
        return None if self._is_slow(placing + slowest) else placing + slowest

    def _is_slow(self, cycles: float) -> bool:
        """Whether so many cycles are not fewer than what has been timed."""
        return self.cycles is not None and cycles >= self.cycles


def _reopening(mapping: Mapping) -> Mapping:
    """One of Newton++'s mappings as one of `auto`'s, which run no COMP on a row that a refresh closed."""
    return replace(mapping, reopens_rows=True)


def _shortlist(ranked: list[Candidate]) -> list[Mapping]:
    """The candidates with the best estimates, and the best of every kind, as estimates err differently by kind."""
    first: dict[tuple[object, ...], Candidate] = {}
    for entry in ranked:
        first.setdefault(entry.kind, entry)
    near = [entry for entry in first.values() if entry.cycles <= _NEAR * ranked[0].cycles]
    return [entry.mapping for entry in (*ranked[:_SHORTLIST], *near)]
