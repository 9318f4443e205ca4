"""The timing shape of a loop nest: interned sequences of command codes and counted loops, with cached timing.

Interning makes equal bodies one object, within a stream and across streams, so each is analysed once.
"""

from __future__ import annotations

from bisect import bisect_left

from pimflow.records import NamedTuple
from pimflow.runtime.newton.timing.rules import NEVER, Rules, State, Step


class Repeat(NamedTuple):
    """A sequence executed `times` times."""

    body: Sequence
    times: int


ShapeItem = int | Repeat


class Plain(NamedTuple):
    """The outcome of executing a sequence from one state without a refresh."""

    cycles: int
    state: State
    threshold: int  # a refresh strikes if the phase before the sequence is at most this
    tally: int


class Outcome(NamedTuple):
    """The outcome of executing a sequence, or `rounds` repetitions of it, from one state and phase."""

    cycles: int
    state: State
    phase: int
    tally: int
    rounds: int = 1


class Sequence:
    """Items in order. Only `Engine.sequence` creates sequences; those with equal items are the same object."""

    __slots__ = ("chains", "hops", "items", "plains", "tails", "tracks")

    def __init__(self, items: tuple[ShapeItem, ...]) -> None:
        self.items = items
        self.plains: dict[State, Plain] = {}
        self.chains: dict[State, Chain] = {}
        self.tracks: dict[State, Track] = {}
        self.tails: dict[int, Sequence] = {}
        self.hops: dict[tuple[State, int], Outcome] = {}


class Chain:
    """A sequence repeated from one state without a refresh: soon its states repeat.

    Lists are indexed by round: `states[i]`, `cycles[i]` and `tallies[i]` are those before round i; `peaks[i]` is the
    highest threshold of rounds 0..i, counted from the start of round 0. The lists end when a state recurs; later rounds
    follow by arithmetic.
    """

    __slots__ = ("body", "crests", "cycles", "lead", "outcomes", "peaks", "rules", "seen", "states", "tallies")

    def __init__(self, rules: Rules, body: Sequence, state: State) -> None:
        self.rules = rules
        self.body = body
        self.states = [state]
        self.cycles = [0]
        self.tallies = [0]
        self.peaks: list[int] = []
        self.seen = {state: 0}
        self.lead = -1  # the first round of the period; -1 until it is known
        self.crests: list[int] = []  # peaks within the first period alone
        self.outcomes: dict[int, Plain] = {}  # by number of rounds

    def outcome(self, rounds: int) -> Plain:
        """The outcome of a number of rounds (>= 1), cached."""
        known = self.outcomes.get(rounds)
        if known is None:
            cycles, state, tally = self.before(rounds)
            known = self.outcomes[rounds] = Plain(cycles, state, self.threshold(rounds), tally)
        return known

    def grow(self) -> None:
        """Add a round to the lists; only while no state has recurred."""
        cycles, state, threshold, tally = plain(self.rules, self.body, self.states[-1])
        peak = threshold + self.cycles[-1] if threshold > NEVER else NEVER
        self.peaks.append(max(peak, self.peaks[-1]) if self.peaks else peak)
        self.crests.append(peak)
        self.states.append(state)
        self.cycles.append(self.cycles[-1] + cycles)
        self.tallies.append(self.tallies[-1] + tally)
        if state in self.seen:
            self._close(self.seen[state])
        else:
            self.seen[state] = len(self.states) - 1

    def _close(self, lead: int) -> None:
        self.lead = lead
        crests: list[int] = []
        for peak in self.crests[lead:]:
            crests.append(max(peak, crests[-1]) if crests else peak)
        self.crests = crests

    def before(self, rounds: int) -> tuple[int, State, int]:
        """(cycles, state, tally) after a number of rounds."""
        while rounds >= len(self.states) and self.lead < 0:
            self.grow()
        if rounds < len(self.states):
            return self.cycles[rounds], self.states[rounds], self.tallies[rounds]
        lead, last = self.lead, len(self.states) - 1
        periods, rest = divmod(rounds - lead, last - lead)
        index = lead + rest
        return (
            self.cycles[index] + periods * (self.cycles[last] - self.cycles[lead]),
            self.states[index],
            self.tallies[index] + periods * (self.tallies[last] - self.tallies[lead]),
        )

    def threshold(self, rounds: int) -> int:
        """The highest threshold of the first `rounds` (>= 1) rounds, counted from the start of round 0."""
        while rounds > len(self.peaks) and self.lead < 0:
            self.grow()
        if rounds <= len(self.peaks):
            return self.peaks[rounds - 1]
        period = len(self.crests)
        periods, rest = divmod(rounds - 1 - self.lead, period)
        if self.crests[-1] == NEVER:
            return self.peaks[-1]
        length = self.cycles[-1] - self.cycles[self.lead]
        partial = self.crests[rest] + periods * length if self.crests[rest] > NEVER else NEVER
        return max(self.peaks[-1], self.crests[-1] + (periods - 1) * length, partial)

    def first_struck(self, phase: int, limit: int) -> int:
        """The first round below `limit` that admits a refresh; `limit` if there is none."""
        peaks = self.peaks
        while self.lead < 0 and len(peaks) < limit and (not peaks or peaks[-1] < phase):
            self.grow()
        if peaks and peaks[-1] >= phase:
            return min(bisect_left(peaks, phase), limit)
        if self.lead < 0 or self.crests[-1] == NEVER:
            return limit
        length = self.cycles[-1] - self.cycles[self.lead]
        periods = -((self.crests[-1] - phase) // length)
        index = bisect_left(self.crests, phase - periods * length)
        return min(self.lead + periods * len(self.crests) + index, limit)


class Track:
    """A sequence executed item by item from one state without a refresh; lists as in `Chain`, indexed by item."""

    __slots__ = ("cycles", "peaks", "states", "tallies")

    def __init__(self, rules: Rules, sequence: Sequence, state: State) -> None:
        self.cycles = [0]
        self.states = [state]
        self.tallies = [0]
        self.peaks: list[int] = []
        for item in sequence.items:
            cycles, after, threshold, tally = plain_item(rules, item, self.states[-1])
            peak = threshold + self.cycles[-1] if threshold > NEVER else NEVER
            self.peaks.append(max(peak, self.peaks[-1]) if self.peaks else peak)
            self.cycles.append(self.cycles[-1] + cycles)
            self.states.append(after)
            self.tallies.append(self.tallies[-1] + tally)


def plain(rules: Rules, sequence: Sequence, state: State) -> Plain:
    """The outcome of a sequence from a state without a refresh, cached."""
    known = sequence.plains.get(state)
    if known is not None:
        return known
    total, now, highest, tally = 0, state, NEVER, 0
    for item in sequence.items:
        cycles, now, threshold, more = plain_item(rules, item, now)
        if threshold > NEVER:
            highest = max(highest, total + threshold)
        total += cycles
        tally += more
    known = sequence.plains[state] = Plain(total, now, highest, tally)
    return known


def plain_item(rules: Rules, item: ShapeItem, state: State) -> Step | Plain:
    """The outcome of one item from a state without a refresh."""
    if isinstance(item, int):
        return state.steps.get(item) or rules.step(state, item)
    return chain_of(rules, item.body, state).outcome(item.times)


def chain_of(rules: Rules, body: Sequence, state: State) -> Chain:
    """The chain of a body from a state, cached."""
    chain = body.chains.get(state)
    if chain is None:
        chain = body.chains[state] = Chain(rules, body, state)
    return chain
