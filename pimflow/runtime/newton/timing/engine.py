"""Exact timing of loop nests in time proportional to the number of loops and refreshes, not of commands.

Between refreshes, a loop is skipped by arithmetic (`nest.Chain`). The round in which a refresh strikes is found by
bisection and executed by descending to the command that admits it. The effect of such a round depends only on the state
and the phase before it, so it is cached, and its repetition costs only a look-up.
"""

from __future__ import annotations

from bisect import bisect_left

from pimflow.runtime.newton.timing.nest import Outcome, Repeat, Sequence, ShapeItem, Track, chain_of, plain
from pimflow.runtime.newton.timing.rules import Rules, State

MAX_CACHE_ENTRIES = 400_000
_FIRST_MARK = 8  # hops before the search for a period starts
_WIDEST = 32  # items of one sequence at most; longer sequences become trees


class Engine:
    """Times nests under one set of rules and caches all intermediate results.

    Args:
        rules: the timing rules.
        max_cache_entries: number of cached sequences, states and hops beyond which the engine is full.
    """

    def __init__(self, rules: Rules, max_cache_entries: int = MAX_CACHE_ENTRIES) -> None:
        self.rules = rules
        self._max_cache_entries = max_cache_entries
        self._sequences: dict[tuple[ShapeItem, ...], Sequence] = {}
        self._totals: dict[Sequence, tuple[int, int]] = {}
        self._hops = 0

    def sequence(self, items: tuple[ShapeItem, ...]) -> Sequence:
        """The interned sequence of these items."""
        known = self._sequences.get(items)
        if known is not None:
            return known
        if len(items) > _WIDEST:
            parts = (items[start : start + _WIDEST] for start in range(0, len(items), _WIDEST))
            return self.sequence(tuple(Repeat(self.sequence(part), 1) for part in parts))
        known = self._sequences[items] = Sequence(items)
        return known

    def total(self, sequence: Sequence) -> tuple[int, int]:
        """(cycles, tally) of a whole stream from clock 0."""
        known = self._totals.get(sequence)
        if known is not None:
            return known
        rules = self.rules
        done = self.advance(sequence, rules.initial(), rules.interval)
        end = rules.finish(done.state, done.phase)
        known = self._totals[sequence] = done.cycles + end.cycles, done.tally + end.tally
        return known

    def full(self) -> bool:
        """Whether the caches are so large that a new engine should replace this one."""
        return self._hops + len(self._sequences) + len(self._totals) + self.rules.size() > self._max_cache_entries

    def advance(self, sequence: Sequence, state: State, phase: int) -> Outcome:
        """Execute a sequence from a state and a phase, including refreshes."""
        cycles = tally = 0
        while True:
            run = plain(self.rules, sequence, state)
            if run.threshold < phase:
                return Outcome(cycles + run.cycles, run.state, phase - run.cycles, tally + run.tally)
            track = self._track(sequence, state)
            index = bisect_left(track.peaks, phase)
            skipped = track.cycles[index]
            done = self._struck(sequence.items[index], track.states[index], phase - skipped)
            cycles += skipped + done.cycles
            tally += track.tallies[index] + done.tally
            state, phase = done.state, done.phase
            sequence = self._tail(sequence, index + 1)

    def _struck(self, item: ShapeItem, state: State, phase: int) -> Outcome:
        if isinstance(item, int):
            return Outcome(*self.rules.strike(state, item, phase))
        return self._repeat(item.body, item.times, state, phase)

    def _repeat(self, body: Sequence, count: int, state: State, phase: int) -> Outcome:
        """Hop from refresh to refresh; when state and phase recur, skip whole periods (Brent's method)."""
        cycles = tally = rounds = hopped = 0
        mark, next_mark = Outcome(0, state, phase, 0, 0), _FIRST_MARK
        while rounds < count:
            hop = body.hops.get((state, phase))
            if hop is None or hop.rounds > count - rounds:
                hop = self._hop(body, count - rounds, state, phase)
            cycles += hop.cycles
            tally += hop.tally
            rounds += hop.rounds
            state, phase = hop.state, hop.phase
            hopped += 1
            if hopped == next_mark:
                mark, next_mark = Outcome(cycles, state, phase, tally, rounds), 2 * next_mark
            elif phase == mark.phase and state is mark.state:
                cycles, _, _, tally, rounds = _skip_periods(mark, Outcome(cycles, state, phase, tally, rounds), count)
        return Outcome(cycles, state, phase, tally, rounds)

    def _hop(self, body: Sequence, count: int, state: State, phase: int) -> Outcome:
        """Execute the rounds up to and including the first that a refresh strikes, or all `count` if none does."""
        chain = chain_of(self.rules, body, state)
        rounds = chain.first_struck(phase, count)
        cycles, now, tally = chain.before(rounds)
        if rounds == count:
            return Outcome(cycles, now, phase - cycles, tally, count)
        done = self.advance(body, now, phase - cycles)
        hop = Outcome(cycles + done.cycles, done.state, done.phase, tally + done.tally, rounds + 1)
        body.hops[state, phase] = hop
        self._hops += 1
        return hop

    def _track(self, sequence: Sequence, state: State) -> Track:
        track = sequence.tracks.get(state)
        if track is None:
            track = sequence.tracks[state] = Track(self.rules, sequence, state)
        return track

    def _tail(self, sequence: Sequence, start: int) -> Sequence:
        tail = sequence.tails.get(start)
        if tail is None:
            tail = sequence.tails[start] = self.sequence(sequence.items[start:])
        return tail


def _skip_periods(before: Outcome, now: Outcome, count: int) -> Outcome:
    """Add as many periods, each from `before` to `now`, as fit into `count` rounds."""
    times = (count - now.rounds) // (now.rounds - before.rounds)
    return Outcome(
        now.cycles + times * (now.cycles - before.cycles),
        now.state,
        now.phase,
        now.tally + times * (now.tally - before.tally),
        now.rounds + times * (now.rounds - before.rounds),
    )
