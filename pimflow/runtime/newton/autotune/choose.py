"""Chooses the mapping of one matrix problem: Newton+, Newton++, or the best of the mapping space.

Candidates are ranked by a closed-form estimate; the shortlist is lowered and timed exactly, and the fastest wins.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import field, replace
from functools import cached_property
from typing import Annotated

from pimflow.codegen import ConvProblem, MatrixProblem
from pimflow.codegen.answers import Records
from pimflow.codegen.newton import Mapping, PimProgram, newton_mappings
from pimflow.codegen.newton.im2col import geometry
from pimflow.codegen.newton.lowering import Outline, outline
from pimflow.codegen.newton.published import channel_loads
from pimflow.data import Limits, decode, encode_json
from pimflow.errors import DataError
from pimflow.ir import Refusal
from pimflow.records import dataclass
from pimflow.runtime.newton.autotune.race import Cycles, Race
from pimflow.runtime.newton.autotune.space import Candidate, candidates
from pimflow.runtime.newton.bounds import lower_bound_us
from pimflow.runtime.newton.cost import PimCost, kernel_us, price
from pimflow.runtime.newton.profiles.base import TimingProfile
from pimflow.runtime.newton.timing.result import StreamTiming
from pimflow.runtime.newton.timing.streams import StreamCycles, StreamTimer

_SHORTLIST = 6  # candidates of `auto` with the best estimates to time exactly
_NEAR = 1.4  # also time the best candidate of each kind if its estimate is within this factor of the lowest
_THINNED_SHORTLIST = 3  # candidates to time whose fills hold fewer pixels than fit
_UNDERRATED = 2  # remaining candidates to time, ranked by estimates corrected by the error of their kind,
_UNDERRATED_NEAR = 1.02  # if the corrected estimate is within this factor of the fastest so far
_NEWTON_SHORTLIST = 3  # mappings of Newton+ or Newton++ to time

POLICIES = ("newton+", "newton++", "auto")


class MappingSearch:
    """Finds the fastest mappings on one machine under one timing profile; each problem is searched once.

    Args:
        profile: timing profile of the machine.
        family: searches on variants of the machine with fewer hardware options, by these options. All searches of a
            family share the dictionary, so that no variant is searched twice.
    """

    def __init__(self, profile: TimingProfile, family: dict[tuple[object, ...], MappingSearch] | None = None) -> None:
        self.profile = profile
        self.timer = StreamTimer(profile)
        self._family = {} if family is None else family
        self._known: dict[tuple[MatrixProblem, str], _Chosen | Refusal] = {}
        self._lower_bound_us: dict[MatrixProblem, float] = {}
        self._refused: dict[tuple[MatrixProblem, str], Refusal | None] = {}
        self._recalled: dict[str, str] = {}
        self._unsaved: list[tuple[MatrixProblem, str, _Chosen]] = []
        self._timed: dict[tuple[MatrixProblem, str], _Chosen] = {}

    def load_records(self, records: Records) -> None:
        """Adds the mappings and timings that other searches on the same machine found, as returned by `new_records`."""
        self._recalled.update(records)

    def new_records(self) -> Records:
        """The mappings chosen and the stream timings requested since the last call."""
        (unsaved, self._unsaved), (timed, self._timed) = (self._unsaved, []), (self._timed, {})
        mappings = {self._key(problem, policy): chosen.record for problem, policy, chosen in unsaved}
        timings = {self._key(*key, "streams"): chosen.timings_record for key, chosen in timed.items()}
        return mappings | timings

    def choose(self, problem: MatrixProblem, policy: str) -> PimCost | Refusal:
        """The cost of the fastest mapping that a policy allows, or why none fits.

        Args:
            problem: the matrix work.
            policy: "newton+", "newton++" or "auto".
        """
        chosen = self._chosen(problem, policy)
        if isinstance(chosen, Refusal):
            return chosen
        if not chosen.is_timed:
            first = chosen.equivalent or chosen
            self._timed[first.outline.problem, policy] = first
        return chosen.cost

    def other_order(self, problem: MatrixProblem, chosen: PimCost) -> PimCost | None:
        """The fastest likely mapping in window order if the chosen one is in column order, and vice versa; None if none
        fits."""
        if not self.profile.pim.any_slot_any_column or not isinstance(problem, ConvProblem):
            return None  # window order requires both
        equivalent, windows = _unpadded(problem), not chosen.mapping.window_block
        ranked = [
            entry for entry in candidates(equivalent, self.profile) if bool(entry.mapping.window_block) == windows
        ]
        if not ranked:
            return None
        race = Race(equivalent, self.profile, self.timer)
        race.try_mappings(entry.mapping for entry in _shortlist(ranked))
        race.try_other_order()
        race.try_rebalanced()
        found = self._winner(race)
        return None if isinstance(found, Refusal) else found.of(problem).cost

    def time_us(self, problem: MatrixProblem, policy: str) -> float | Refusal:
        """Like `choose`, but only the time in microseconds."""
        chosen = self._chosen(problem, policy)
        return chosen if isinstance(chosen, Refusal) else chosen.time_us

    def refusal(self, problem: MatrixProblem, policy: str) -> Refusal | None:
        """Why no mapping that a policy allows fits the machine; None if one fits.

        Times nothing if a mapping of Newton+ or Newton++ fits.
        """
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

    def lower_bound_us(self, problem: MatrixProblem) -> float:
        """A lower bound in microseconds on every mapping of a problem, whatever the policy."""
        known = self._lower_bound_us.get(problem)
        if known is None:
            known = self._lower_bound_us[problem] = lower_bound_us(problem, self.profile)
        return known

    def program(self, problem: MatrixProblem, policy: str) -> PimProgram | Refusal:
        """The program of the mapping that `choose` prices, or why none fits."""
        chosen = self._chosen(problem, policy)
        return chosen if isinstance(chosen, Refusal) else chosen.program

    def _chosen(self, problem: MatrixProblem, policy: str) -> _Chosen | Refusal:
        key = (problem, policy)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._find(problem, policy)
        return known

    def _find(self, problem: MatrixProblem, policy: str) -> _Chosen | Refusal:
        equivalent = _unpadded(problem)
        if equivalent == problem:
            return self._recall(problem, policy) or self._search_and_record(problem, policy)
        chosen = self._chosen(equivalent, policy)
        return chosen if isinstance(chosen, Refusal) else chosen.of(problem)

    def _recall(self, problem: MatrixProblem, policy: str) -> _Chosen | None:
        """The recorded choice for a problem; None if there is none or it does not fit the problem."""
        text = self._recalled.get(self._key(problem, policy)) if self._recalled else None
        if text is None:
            return None
        try:
            record: _Record = decode(_Record, json.loads(text))
        except (ValueError, DataError):
            return None
        outlined = outline(problem, record.mapping, self.profile.pim)
        if isinstance(outlined, Refusal):
            return None
        recalled = self._recall_timings(problem, policy, len(outlined.channel_classes))
        return _Chosen(outlined, self.timer, record.cycles, recalled=recalled)

    def _recall_timings(self, problem: MatrixProblem, policy: str, classes: int) -> tuple[StreamTiming, ...] | None:
        """The recorded timings of a problem's stream classes; None if there are none or their number differs."""
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

    def _search_and_record(self, problem: MatrixProblem, policy: str) -> _Chosen | Refusal:
        chosen = self._search(problem, policy)
        if not isinstance(chosen, Refusal):
            self._unsaved.append((problem, policy, chosen))
        return chosen

    def _search(self, problem: MatrixProblem, policy: str) -> _Chosen | Refusal:
        """The fastest of the likely mappings, or of all mappings if the banks have no room for any likely one."""
        race = Race(problem, self.profile, self.timer)
        newton = newton_mappings(problem, self.profile.pim, "newton+" if policy == "newton+" else "newton++")
        likely = self._likely(newton, problem)
        if policy != "auto":
            race.try_mappings(likely)
            if race.fastest is None:
                race.try_mappings(newton)
            return self._winner(race)
        ranked = candidates(problem, self.profile)
        timed: list[Candidate] = []
        for able in self._by_buffers(ranked):
            for parts in sorted({entry.buffer_parts for entry in able}):
                timed += self._try_auto(race, [entry for entry in able if entry.buffer_parts == parts])
            race.try_mappings(map(_reopening, likely))
            race.try_rebalanced()
            race.try_mappings(entry.mapping for entry in _underrated(able, timed, race))
            race.try_other_order()
            race.try_rebalanced()
        race.try_mappings(self._with_fewer_options(problem))
        if race.fastest is None:
            race.try_mappings(entry.mapping for entry in ranked)
            race.try_mappings(map(_reopening, newton))
        return self._winner(race)

    def _winner(self, race: Race) -> _Chosen | Refusal:
        won = race.fastest
        return race.refusal if won is None else _Chosen(won.outline, self.timer, won.cycles, won.channels)

    def _by_buffers(self, ranked: list[Candidate]) -> list[list[Candidate]]:
        """The candidates of machines with one buffer per channel, two, and so on: all that those machines would try is
        tried here too, so no buffer makes the choice slower. With a pool, that depends on the number of groups as well:
        there, `_with_fewer_options` has these machines."""
        pim = self.profile.pim
        if pim.buffer_pool:
            return [ranked]
        most = range(1, pim.buffers_per_channel + 1)
        return [[entry for entry in ranked if entry.fills_held <= held * entry.buffer_parts] for held in most]

    def _with_fewer_options(self, problem: MatrixProblem) -> Iterator[Mapping]:
        """The choices of `auto` on machines with one hardware option less, so no option makes the choice slower."""
        for pim in self.profile.pim.with_less:
            key = (pim.buffer_parts, pim.buffer_pool, pim.any_slot_any_column, pim.buffers_per_channel)
            if key not in self._family:
                self._family[key] = MappingSearch(self.profile.on(pim), self._family)
            chosen = self._family[key]._chosen(problem, "auto")
            if not isinstance(chosen, Refusal):
                yield chosen.outline.mapping

    def _try_auto(self, race: Race, ranked: list[Candidate]) -> list[Candidate]:
        """Tries the likeliest candidates for each number of buffers that a channel may hold, and returns them.

        The winners with fewer buffers compete too, so that more buffers never make the choice slower. The closed forms
        choose one order of READRES and GWRITE for all candidates; the best is timed with the other order as well.
        """
        full = [entry for entry in ranked if not entry.thinned]
        timed: list[Candidate] = []
        for held in sorted({entry.fills_held for entry in full}):
            likely = _shortlist([entry for entry in full if entry.fills_held <= held])
            race.try_mappings(entry.mapping for entry in likely)
            race.try_other_order()
            timed += likely
        thinned = [entry for entry in ranked if entry.thinned and entry.cycles <= _NEAR * ranked[0].cycles]
        race.try_mappings(entry.mapping for entry in thinned[:_THINNED_SHORTLIST])
        race.try_other_order()
        return timed + thinned[:_THINNED_SHORTLIST]

    def _likely(self, mappings: tuple[Mapping, ...], problem: MatrixProblem) -> tuple[Mapping, ...]:
        """The given Newton mappings that are fast judging by the rows and COMPs of the slowest channel, best first."""
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
    """A chosen mapping as it is stored; its cycles do not include the launch."""

    cycles: Annotated[int, Limits(above=0)]
    mapping: Mapping


@dataclass(frozen=True)
class _Chosen:
    """The fastest mapping of a problem; its program and its full cost are computed on demand.

    `cycles` are those of the slowest channel, including placement. `channels` holds the cycles of the first channel of
    each class of streams, if timed; `recalled` holds the recorded timings of these classes, if any. `equivalent` is the
    choice for an equivalent problem, whose streams are the same.
    """

    outline: Outline
    timer: StreamTimer
    cycles: int
    channels: dict[int, StreamCycles] = field(default_factory=dict)
    recalled: tuple[StreamTiming, ...] | None = None
    equivalent: _Chosen | None = None

    def of(self, problem: MatrixProblem) -> _Chosen:
        """The same choice for a problem with the same streams."""
        return replace(self, outline=replace(self.outline, problem=problem), equivalent=self)

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
        """The timing of each class of streams."""
        if self.equivalent is not None:
            return self.equivalent.timings
        if self.recalled is not None:
            return self.recalled
        first = (channels[0] for channels in self.outline.channel_classes)
        return tuple(self.timer.timing(self.outline, channel, self.channels.get(channel)) for channel in first)

    @property
    def is_timed(self) -> bool:
        """Whether the timings of its streams have been computed or recalled."""
        first = self.equivalent or self
        return first.recalled is not None or "timings" in vars(first)

    @property
    def time_us(self) -> float:
        """The time in microseconds, as in `cost`."""
        return kernel_us(self.cycles, self.timer.profile)

    @property
    def record(self) -> str:
        """The mapping and its cycles as one line of JSON."""
        return encode_json(_Record(self.cycles, self.outline.mapping))

    @property
    def timings_record(self) -> str:
        """The timings as one line of JSON."""
        return encode_json(self.timings)


def _unpadded(problem: MatrixProblem) -> MatrixProblem:
    """An equivalent problem with the same streams: as many source rows as the windows reach, and no padding rows."""
    if not isinstance(problem, ConvProblem):
        return problem
    reached = (problem.out_h - 1) * problem.strides[0] + problem.dilations[0] * (problem.kernel[0] - 1) + 1
    return replace(problem, in_h=reached, pads=(0, problem.pads[1], 0, problem.pads[3]))


def _reopening(mapping: Mapping) -> Mapping:
    """A mapping of Newton++ in the form that `auto` uses, which runs no COMP on a row that a refresh closed."""
    return replace(mapping, reopens_rows=True)


def _shortlist(ranked: list[Candidate]) -> list[Candidate]:
    """The candidates with the best estimates, and the best near ones of each kind, as errors differ by kind."""
    near = [entry for entry in _best_of_kinds(ranked) if entry.cycles <= _NEAR * ranked[0].cycles]
    return list({id(entry): entry for entry in (*ranked[:_SHORTLIST], *near)}.values())


def _best_of_kinds(ranked: list[Candidate]) -> list[Candidate]:
    first: dict[tuple[object, ...], Candidate] = {}
    for entry in ranked:
        first.setdefault(entry.kind, entry)
    return list(first.values())


def _underrated(ranked: list[Candidate], timed: list[Candidate], race: Race) -> list[Candidate]:
    """The likeliest of the candidates not timed, by estimates corrected by the smallest known error of their kind.

    Estimates of one kind err alike. Of the thinned candidates (whose fills hold fewer pixels than fit) only few kinds
    have been timed, so the best of every kind is included.
    """
    thinned = [entry for entry in ranked if entry.thinned and entry.cycles <= _NEAR * ranked[0].cycles]
    tried = {id(entry): entry for entry in timed}
    timed_or_bound = [(entry, race.known(entry.mapping)) for entry in tried.values()]
    others = _likeliest([entry for entry in ranked if id(entry) not in tried], _errors(timed_or_bound), race)
    if all(race.is_beaten(entry.mapping) for entry in others):
        return _best_of_kinds(thinned)
    while True:
        errors = _errors(timed_or_bound)
        likely = _likeliest(others, errors, race)[:_UNDERRATED]
        kinds = {entry.kind for entry in likely}
        unsure = {
            at
            for at, (entry, known) in enumerate(timed_or_bound)
            if not known.is_timed and entry.kind in kinds and _error(entry, known) == errors[entry.kind]
        }
        if not unsure:
            return [*_best_of_kinds(thinned), *likely]
        timed_or_bound = [
            (entry, race.time(entry.mapping) if at in unsure else known)
            for at, (entry, known) in enumerate(timed_or_bound)
        ]


def _likeliest(others: list[Candidate], errors: dict[tuple[object, ...], float], race: Race) -> list[Candidate]:
    """The candidates whose corrected estimates are near the fastest so far, best first."""
    near = _UNDERRATED_NEAR * (race.fastest.cycles if race.fastest else 0)
    corrected = [(entry.cycles * errors[entry.kind], at) for at, entry in enumerate(others) if entry.kind in errors]
    return [others[at] for cycles, at in sorted(corrected) if cycles <= near]


def _errors(known_cycles: list[tuple[Candidate, Cycles]]) -> dict[tuple[object, ...], float]:
    """For each kind, the smallest known ratio of actual to estimated cycles."""
    errors: dict[tuple[object, ...], float] = {}
    for entry, known in known_cycles:
        error = _error(entry, known)
        if error is not None:
            errors[entry.kind] = min(errors.get(entry.kind, error), error)
    return errors


def _error(entry: Candidate, known: Cycles) -> float | None:
    return None if known.cycles is None else known.cycles / entry.cycles
