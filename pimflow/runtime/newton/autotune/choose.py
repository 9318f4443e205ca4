"""Chooses the mapping of one matrix problem: Newton+, Newton++, or the best of the mapping space.

Candidates are ranked by a closed-form estimate; the shortlist is lowered and timed exactly, and the fastest wins.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import field, replace
from functools import cached_property
from itertools import accumulate
from typing import Annotated, NamedTuple

from pimflow.codegen import ConvProblem, MatrixProblem
from pimflow.codegen.answers import Records
from pimflow.codegen.newton import Mapping, PimProgram, newton_mappings
from pimflow.codegen.newton.im2col import Geometry, geometry
from pimflow.codegen.newton.lowering import Outline, outline
from pimflow.codegen.newton.published import channel_loads
from pimflow.data import Limits, decode, encode
from pimflow.errors import DataError
from pimflow.ir import Refusal
from pimflow.records import dataclass
from pimflow.runtime.newton.autotune.least import least_cycles
from pimflow.runtime.newton.autotune.rebalance import rebalanced
from pimflow.runtime.newton.autotune.space import Candidate, candidates
from pimflow.runtime.newton.bounds import least_us
from pimflow.runtime.newton.cost import PimCost, kernel_us, placement_cycles, price
from pimflow.runtime.newton.profiles.base import TimingProfile
from pimflow.runtime.newton.timing.result import StreamTiming
from pimflow.runtime.newton.timing.streams import StreamTimer, Taken

_SHORTLIST = 6  # candidates of `auto` that are timed exactly
_NEAR = 1.4  # and the best of every kind whose estimate is within this factor of the least
_THINNED_SHORTLIST = 3  # of those whose fills hold fewer pixels than fit
_UNDERRATED = 2  # of the others, by estimates corrected by what those of their kind err by
_UNDERRATED_NEAR = 1.02
_NEWTON_SHORTLIST = 3

POLICIES = ("newton+", "newton++", "auto")


class MappingSearch:
    """The fastest mappings on one machine under one timing profile, each searched once.

    Args:
        profile: of the machine.
        family: the searches on machines with fewer options of their hardware, of which some share theirs.
    """

    def __init__(self, profile: TimingProfile, family: dict[tuple[object, ...], MappingSearch] | None = None) -> None:
        self.profile = profile
        self.timer = StreamTimer(profile)
        self._family = {} if family is None else family
        self._known: dict[tuple[MatrixProblem, str], _Chosen | Refusal] = {}
        self._least_us: dict[MatrixProblem, float] = {}
        self._refused: dict[tuple[MatrixProblem, str], Refusal | None] = {}
        self._recalled: dict[str, str] = {}
        self._learnt: list[tuple[MatrixProblem, str, _Chosen]] = []
        self._timed: dict[tuple[MatrixProblem, str], _Chosen] = {}

    def recall(self, records: Records) -> None:
        """Takes what other searches chose and timed on the same machine, as `learnt` gave it."""
        self._recalled.update(records)

    def learnt(self) -> Records:
        """The mappings chosen since this was last asked, and the timings of streams that were asked for."""
        (learnt, self._learnt), (timed, self._timed) = (self._learnt, []), (self._timed, {})
        mappings = {self._key(problem, policy): chosen.record for problem, policy, chosen in learnt}
        timings = {self._key(*key, "streams"): chosen.timings_record for key, chosen in timed.items()}
        return mappings | timings

    def choose(self, problem: MatrixProblem, policy: str) -> PimCost | Refusal:
        """The fastest mapping that a policy allows, priced.

        Args:
            problem: the matrix work.
            policy: "newton+", "newton++" or "auto".
        """
        chosen = self._chosen(problem, policy)
        if isinstance(chosen, Refusal):
            return chosen
        if not chosen.is_timed:
            first = chosen.like or chosen
            self._timed[first.outline.problem, policy] = first
        return chosen.cost

    def other_order(self, problem: MatrixProblem, chosen: PimCost) -> PimCost | None:
        """The fastest likely mapping with window order if the chosen one has none, and without if it has it; None where
        none fits."""
        if not self.profile.pim.any_slot_any_column or not isinstance(problem, ConvProblem):
            return None  # which window order takes
        like, windows = _unpadded(problem), not chosen.mapping.window_block
        ranked = [entry for entry in candidates(like, self.profile) if bool(entry.mapping.window_block) == windows]
        if not ranked:
            return None
        race = _Race(like, self.profile, self.timer)
        race.enter(entry.mapping for entry in _shortlist(ranked))
        race.enter_other_order()
        race.enter_rebalanced()
        found = race.result()
        return None if isinstance(found, Refusal) else found.of(problem).cost

    def time_us(self, problem: MatrixProblem, policy: str) -> float | Refusal:
        """What `choose` says of the time alone."""
        chosen = self._chosen(problem, policy)
        return chosen if isinstance(chosen, Refusal) else chosen.time_us

    def refusal(self, problem: MatrixProblem, policy: str) -> Refusal | None:
        """Why no mapping that a policy allows fits the machine, or None. Where one fits, none is timed."""
        key = (problem, policy)
        if key not in self._refused:
            self._refused[key] = self._refusal(problem, policy)
        return self._refused[key]

    def _refusal(self, problem: MatrixProblem, policy: str) -> Refusal | None:
        newton = newton_mappings(problem, self.profile.pim, "newton+" if policy == "newton+" else "newton++")
        if not all(isinstance(outline(problem, mapping, self.profile.pim), Refusal) for mapping in newton):
            return None
        chosen = self._chosen(problem, policy)
        return chosen if isinstance(chosen, Refusal) else None

    def least_us(self, problem: MatrixProblem) -> float:
        """What no mapping of a problem is faster than, whatever the policy."""
        known = self._least_us.get(problem)
        if known is None:
            known = self._least_us[problem] = least_us(problem, self.profile)
        return known

    def program(self, problem: MatrixProblem, policy: str) -> PimProgram | Refusal:
        """What `choose` priced."""
        chosen = self._chosen(problem, policy)
        return chosen if isinstance(chosen, Refusal) else chosen.program

    def _chosen(self, problem: MatrixProblem, policy: str) -> _Chosen | Refusal:
        key = (problem, policy)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._choose_anew(problem, policy)
        return known

    def _choose_anew(self, problem: MatrixProblem, policy: str) -> _Chosen | Refusal:
        like = _unpadded(problem)
        if like == problem:
            return self._recall(problem, policy) or self._search_anew(problem, policy)
        chosen = self._chosen(like, policy)
        return chosen if isinstance(chosen, Refusal) else chosen.of(problem)

    def _recall(self, problem: MatrixProblem, policy: str) -> _Chosen | None:
        """What a mapping that was chosen before makes; None if none was, or none for this problem."""
        text = self._recalled.get(self._key(problem, policy))
        if text is None:
            return None
        try:
            record: _Record = decode(_Record, json.loads(text))
        except (ValueError, DataError):
            return None
        outlined = outline(problem, record.mapping, self.profile.pim)
        if isinstance(outlined, Refusal):
            return None
        recalled = self._recall_timings(problem, policy, len(outlined.alike))
        return _Chosen(outlined, self.timer, record.cycles, recalled=recalled)

    def _recall_timings(self, problem: MatrixProblem, policy: str, classes: int) -> tuple[StreamTiming, ...] | None:
        """What was timed of as many classes of streams; None if nothing was."""
        text = self._recalled.get(self._key(problem, policy, "streams"))
        if text is None:
            return None
        try:
            timings: tuple[StreamTiming, ...] = decode(tuple[StreamTiming, ...], json.loads(text))
        except (ValueError, DataError):
            return None
        return timings if len(timings) == classes else None

    def _key(self, problem: MatrixProblem, policy: str, what: str = "mapping") -> str:
        text = f"{what} {policy} {self.profile.pim.operand} {problem}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def _search_anew(self, problem: MatrixProblem, policy: str) -> _Chosen | Refusal:
        chosen = self._search(problem, policy)
        if not isinstance(chosen, Refusal):
            self._learnt.append((problem, policy, chosen))
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
        timed: list[Candidate] = []
        for parts in sorted({entry.buffer_parts for entry in ranked}):
            timed += self._enter_auto(race, [entry for entry in ranked if entry.buffer_parts == parts])
        race.enter(map(_reopening, likely))
        race.enter_rebalanced()
        race.enter(entry.mapping for entry in _underrated(ranked, timed, race))
        race.enter_other_order()
        race.enter_rebalanced()
        race.enter(self._with_less(problem))
        if race.best is None:
            race.enter(entry.mapping for entry in ranked)
            race.enter(map(_reopening, newton))
        return race.result()

    def _with_less(self, problem: MatrixProblem) -> Iterator[Mapping]:
        """What `auto` chooses on the machines with an option less: no option makes a choice slower."""
        for pim in self.profile.pim.with_less:
            key = (pim.buffer_parts, pim.buffer_pool, pim.any_slot_any_column, pim.buffers_per_channel)
            if key not in self._family:
                self._family[key] = MappingSearch(self.profile.on(pim), self._family)
            chosen = self._family[key]._chosen(problem, "auto")
            if not isinstance(chosen, Refusal):
                yield chosen.outline.mapping

    def _enter_auto(self, race: _Race, ranked: list[Candidate]) -> list[Candidate]:
        """The likeliest for every number of buffers that a channel may hold, and the other order of READRES and GWRITE.

        What wins with fewer buffers is in the race too, so that more of them never make the choice slower. Which order
        is better, the closed forms say of all alike; the best is timed with the other one as well.
        """
        full = [entry for entry in ranked if not entry.thinned]
        timed: list[Candidate] = []
        for held in sorted({entry.fills_held for entry in full}):
            likely = _shortlist([entry for entry in full if entry.fills_held <= held])
            race.enter(entry.mapping for entry in likely)
            race.enter_other_order()
            timed += likely
        thinned = [entry for entry in ranked if entry.thinned and entry.cycles <= _NEAR * ranked[0].cycles]
        race.enter(entry.mapping for entry in thinned[:_THINNED_SHORTLIST])
        race.enter_other_order()
        return timed + thinned[:_THINNED_SHORTLIST]

    def _likely(self, mappings: tuple[Mapping, ...], problem: MatrixProblem) -> tuple[Mapping, ...]:
        """Those of Newton++'s mappings that the slowest channel's rows and COMPs leave in the running, best first."""
        shape, costs = geometry(problem, self.profile.pim), self.profile.costs
        ranked: dict[frozenset[tuple[int, int]], tuple[float, Mapping]] = {}
        for mapping in mappings:
            loads = channel_loads(mapping, shape)
            cycles = max([rows * costs.sweep + comps * costs.comp for rows, comps in loads])
            ranked.setdefault(loads, (cycles, mapping))
        order = sorted(ranked.values(), key=lambda entry: entry[0])
        return tuple(mapping for cycles, mapping in order[:_NEWTON_SHORTLIST] if cycles <= 1.1 * order[0][0])


@dataclass(frozen=True)
class _Record:
    """A chosen mapping as it is kept: no launch is part of what it takes."""

    cycles: Annotated[int, Limits(above=0)]
    mapping: Mapping


@dataclass(frozen=True)
class _Chosen:
    """The fastest mapping of a problem; its program, and what that costs in all, when asked for.

    `cycles` are those of the slowest channel, placement included; `channels` say what the first of those with like
    streams take, if they have been timed; `recalled` are timings of these, if they are known; `like` is the choice for
    a problem whose streams are alike.
    """

    outline: Outline
    timer: StreamTimer
    cycles: int
    channels: dict[int, Taken] = field(default_factory=dict)
    recalled: tuple[StreamTiming, ...] | None = None
    like: _Chosen | None = None

    def of(self, problem: MatrixProblem) -> _Chosen:
        """The same of a problem that streams see alike."""
        return replace(self, outline=replace(self.outline, problem=problem), like=self)

    @cached_property
    def program(self) -> PimProgram:
        program = self.outline.program()
        if self.recalled is None:
            self.timer.check_addresses(program)
        return program

    @cached_property
    def cost(self) -> PimCost:
        return price(self.outline, self.timings, self.timer.profile)

    @cached_property
    def timings(self) -> tuple[StreamTiming, ...]:
        """Of every class of streams."""
        if self.like is not None:
            return self.like.timings
        if self.recalled is not None:
            return self.recalled
        first = (channels[0] for channels in self.outline.alike)
        return tuple(self.timer.timing(self.outline, channel, self.channels.get(channel)) for channel in first)

    @property
    def is_timed(self) -> bool:
        """Whether the timings of its streams have been told or recalled."""
        first = self.like or self
        return first.recalled is not None or "timings" in vars(first)

    @property
    def time_us(self) -> float:
        """As `cost` has it."""
        return kernel_us(self.cycles, self.timer.profile)

    @property
    def record(self) -> str:
        """As a text of one line."""
        return json.dumps(encode(_Record(self.cycles, self.outline.mapping)), separators=(",", ":"))

    @property
    def timings_record(self) -> str:
        """The same of the timings."""
        return json.dumps(encode(self.timings), separators=(",", ":"))


class _Told(NamedTuple):
    """Cycles of a mapping, None where it does not fit; and whether it was timed or a bound alone was told."""

    cycles: float | None
    is_timed: bool


@dataclass
class _Race:
    """The fastest mapping of a problem by exact timing, of equals the first; or why the nearest miss does not fit.

    `channels` say what channels of the fastest take, of those with like streams the first; `taken` is what every
    mapping takes that was entered, or takes at least where that is not faster than what has been timed; None where it
    does not fit.
    """

    problem: MatrixProblem
    profile: TimingProfile
    timer: StreamTimer
    best: Outline | None = None
    cycles: int | None = None
    refusal: Refusal | None = None
    channels: dict[int, Taken] = field(default_factory=dict)
    taken: dict[Mapping, _Told] = field(default_factory=dict)

    @cached_property
    def _shape(self) -> Geometry:
        return geometry(self.problem, self.profile.pim)

    def enter(self, mappings: Iterable[Mapping]) -> None:
        """Lowers and times some mappings, each once."""
        for mapping in mappings:
            if mapping in self.taken:
                continue
            least = self._least(mapping)
            slow = self._is_slow(least)
            self.taken[mapping] = _Told(least, False) if slow else self._time(mapping)

    def enter_other_order(self) -> None:
        """The fastest with the other order of a READRES and the next GWRITE, where it has one.

        Where each fill goes to the same buffer, one order takes longer for every fill: the closed forms say which,
        unless they are within a COMP of each other. (Of 5,000 that were timed, none was faster.)
        """
        best = self.best.mapping if self.best else None
        if best is None or best.order != "rows" or best.prefetch:
            return
        costs = self.profile.costs
        if best.fills_held > 1 or abs(costs.early - costs.plain) < costs.comp:
            self.enter([replace(best, early_fill=not best.early_fill)])

    def enter_rebalanced(self) -> None:
        """The fastest with shares by which its channel groups would end together, once."""
        if self.best is None:
            return
        ends = accumulate(group.channels for group in self.best.mapping.groups)
        starts = (end - group.channels for end, group in zip(ends, self.best.mapping.groups, strict=True))
        cycles = [
            max(
                (self.channels[at].cycles for at in range(start, start + group.channels) if at in self.channels),
                default=0,
            )
            for start, group in zip(starts, self.best.mapping.groups, strict=True)
        ]
        moved = rebalanced(self.best.mapping, cycles, self.best.shape.row_pixels)
        if moved is not None:
            self.enter([moved])
            self.enter_other_order()

    def result(self) -> _Chosen | Refusal:
        """The fastest."""
        if self.best is None or self.cycles is None:
            return self.refusal or Refusal("no mapping of the policy fits the machine")
        return _Chosen(self.best, self.timer, self.cycles, self.channels)

    def time(self, mapping: Mapping) -> _Told:
        """Times a mapping that was entered and of which a bound alone was told, slow or not."""
        told = self.taken[mapping] = self._time(mapping, fully=True)
        return told

    def is_beaten(self, mapping: Mapping) -> bool:
        """Whether a bound tells that a mapping is not faster than what has been timed."""
        return self._is_slow(self._least(mapping))

    def _least(self, mapping: Mapping) -> float:
        """What a mapping takes at least, told before it is laid out; 0 where nobody needs to know."""
        costs = self.profile.least_costs
        return 0.0 if self.cycles is None or costs is None else least_cycles(mapping, self._shape, costs, self.cycles)

    def _time(self, mapping: Mapping, fully: bool = False) -> _Told:
        """Of a mapping, its cycles; or as many as tell that it is not the fastest, unless it is to be timed `fully`."""
        outlined = outline(self.problem, mapping, self.profile.pim)
        if isinstance(outlined, Refusal):
            if self.refusal is None or (outlined.gap or 0) < (self.refusal.gap or 0):
                self.refusal = outlined
            return _Told(None, True)
        channels: dict[int, Taken] = {}
        told = self._cycles(outlined, channels, fully)
        if told.cycles is not None and not self._is_slow(told.cycles):
            self.best, self.cycles, self.channels = outlined, int(told.cycles), channels
        return told

    def _cycles(self, outlined: Outline, channels: dict[int, Taken], fully: bool) -> _Told:
        """Of the slowest channel, placement included; a bound where that is not faster than what is known.

        `channels` is told what the first of those with like streams take, placement apart.
        """
        placing = placement_cycles(outlined, self.profile)
        loads = sorted(((outlined.comps(channels[0]), channels[0]) for channels in outlined.alike), reverse=True)
        slowest = 0
        for comps, channel in loads:
            least = placing + max(slowest, comps * self.profile.comp_cycles)
            if not fully and self._is_slow(least):
                return _Told(least, False)
            channels[channel] = self.timer.taken(outlined, channel)
            slowest = max(slowest, channels[channel].cycles)
        return _Told(placing + slowest, True)

    def _is_slow(self, cycles: float) -> bool:
        """Whether so many cycles are not fewer than what has been timed."""
        return self.cycles is not None and cycles >= self.cycles


def _unpadded(problem: MatrixProblem) -> MatrixProblem:
    """The same problem with as many rows of the source as windows reach, none of them padding: streams are alike."""
    if not isinstance(problem, ConvProblem):
        return problem
    reached = (problem.out_h - 1) * problem.strides[0] + problem.dilations[0] * (problem.kernel[0] - 1) + 1
    return replace(problem, in_h=reached, pads=(0, problem.pads[1], 0, problem.pads[3]))


def _reopening(mapping: Mapping) -> Mapping:
    """One of Newton++'s mappings as one of `auto`'s, which run no COMP on a row that a refresh closed."""
    return replace(mapping, reopens_rows=True)


def _shortlist(ranked: list[Candidate]) -> list[Candidate]:
    """Those with the best estimates, and the best of every kind, as estimates err differently by kind."""
    near = [entry for entry in _best_of_kinds(ranked) if entry.cycles <= _NEAR * ranked[0].cycles]
    return list({id(entry): entry for entry in (*ranked[:_SHORTLIST], *near)}.values())


def _best_of_kinds(ranked: list[Candidate]) -> list[Candidate]:
    first: dict[tuple[object, ...], Candidate] = {}
    for entry in ranked:
        first.setdefault(entry.kind, entry)
    return list(first.values())


def _underrated(ranked: list[Candidate], timed: list[Candidate], race: _Race) -> list[Candidate]:
    """Of the others the likeliest, as estimates of one kind err alike: by what those that are timed err by at least.

    Those whose fills hold fewer pixels than fit have been timed of few kinds: of all others the best is likely.
    """
    thinned = [entry for entry in ranked if entry.thinned and entry.cycles <= _NEAR * ranked[0].cycles]
    entered = {id(entry): entry for entry in timed}
    told = [(entry, race.taken[entry.mapping]) for entry in entered.values()]
    others = _likeliest([entry for entry in ranked if id(entry) not in entered], _errors(told), race)
    if all(race.is_beaten(entry.mapping) for entry in others):
        return _best_of_kinds(thinned)
    while True:
        errors = _errors(told)
        likely = _likeliest(others, errors, race)[:_UNDERRATED]
        kinds = {entry.kind for entry in likely}
        unsure = {
            at
            for at, (entry, known) in enumerate(told)
            if not known.is_timed and entry.kind in kinds and _error(entry, known) == errors[entry.kind]
        }
        if not unsure:
            return [*_best_of_kinds(thinned), *likely]
        told = [(entry, race.time(entry.mapping) if at in unsure else known) for at, (entry, known) in enumerate(told)]


def _likeliest(others: list[Candidate], errors: dict[tuple[object, ...], float], race: _Race) -> list[Candidate]:
    """Those that may be near the fastest if estimates err so much by kind, the likeliest first."""
    near = _UNDERRATED_NEAR * (race.cycles or 0)
    corrected = [(entry.cycles * errors[entry.kind], at) for at, entry in enumerate(others) if entry.kind in errors]
    return [others[at] for cycles, at in sorted(corrected) if cycles <= near]


def _errors(told: list[tuple[Candidate, _Told]]) -> dict[tuple[object, ...], float]:
    """By kind, what estimates of those that were timed err by at least."""
    errors: dict[tuple[object, ...], float] = {}
    for entry, known in told:
        error = _error(entry, known)
        if error is not None:
            errors[entry.kind] = min(errors.get(entry.kind, error), error)
    return errors


def _error(entry: Candidate, told: _Told) -> float | None:
    return None if told.cycles is None else told.cycles / entry.cycles
