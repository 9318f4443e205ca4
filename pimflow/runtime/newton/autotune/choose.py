"""Chooses the mapping of one matrix problem: Newton+, Newton++, or the best of the mapping space.

Candidates are ranked by a closed-form estimate; the shortlist is lowered and timed exactly, and the fastest wins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pimflow.codegen import MatrixProblem
from pimflow.codegen.newton import Mapping, PimProgram, lower, newton_mappings
from pimflow.codegen.newton.im2col import geometry
from pimflow.codegen.newton.published import channel_loads
from pimflow.ir import Refusal
from pimflow.runtime.newton.autotune.space import Candidate, candidates
from pimflow.runtime.newton.cost import PimCost, price, time_classes, total_cycles
from pimflow.runtime.newton.profiles.base import TimingProfile
from pimflow.runtime.newton.timing.result import StreamTiming
from pimflow.runtime.newton.timing.streams import StreamTimer

_SHORTLIST = 6  # candidates of `auto` that are timed exactly
_NEAR = 1.4  # and the best of every kind whose estimate is within this factor of the least
_NEWTON_SHORTLIST = 3

POLICIES = ("newton+", "newton++", "auto")


class MappingSearch:
    """The fastest mappings on one machine under one timing profile, each searched once."""

    def __init__(self, profile: TimingProfile) -> None:
        self.profile = profile
        self.timer = StreamTimer(profile)
        self._known: dict[tuple[MatrixProblem, str], PimCost | Refusal] = {}

    def choose(self, problem: MatrixProblem, policy: str) -> PimCost | Refusal:
        """The fastest mapping that a policy allows, priced.

        Args:
            problem: the matrix work.
            policy: "newton+", "newton++" or "auto".
        """
        key = (problem, policy)
        if key not in self._known:
            self._known[key] = self._search(problem, policy)
        return self._known[key]

    def _search(self, problem: MatrixProblem, policy: str) -> PimCost | Refusal:
        """The best of the likely mappings; of all, where the banks have no room for any of those."""
        every = newton_mappings(problem, self.profile.pim, "newton+" if policy == "newton+" else "newton++")
        likely = self._likely(every, problem)
        if policy == "auto":
            ranked = candidates(problem, self.profile)
            every = (*(entry.mapping for entry in ranked), *map(_reopening, every))
            likely = (*_shortlist(ranked, self.profile.pim.buffers_per_channel), *map(_reopening, likely))
        cost = self._best(likely, problem)
        return self._best(every, problem) if isinstance(cost, Refusal) else cost

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

    def _best(self, mappings: Iterable[Mapping], problem: MatrixProblem) -> PimCost | Refusal:
        """The fastest of some mappings by exact timing (of equals the first), or why the nearest miss does not fit."""
        best: tuple[int, PimProgram, tuple[StreamTiming, ...]] | None = None
        refusal: Refusal | None = None
        for mapping in mappings:
            program = lower(problem, mapping, self.profile.pim)
            if isinstance(program, Refusal):
                if refusal is None or (program.gap or 0) < (refusal.gap or 0):
                    refusal = program
                continue
            timings = time_classes(program, self.timer)
            cycles = total_cycles(program, timings, self.profile)
            if best is None or cycles < best[0]:
                best = (cycles, program, timings)
        if best is None:
            return refusal or Refusal("no mapping of the policy fits the machine")
        return price(best[1], best[2], self.profile)


def _reopening(mapping: Mapping) -> Mapping:
    """One of Newton++'s mappings as one of `auto`'s, which run no COMP on a row that a refresh closed."""
    return replace(mapping, reopens_rows=True)


def _shortlist(ranked: list[Candidate], buffers: int) -> list[Mapping]:
    """The likeliest candidates for every number of buffers that a channel may hold, each with either order of READRES.

    What is likely with fewer buffers is timed too, so that more of them never make the choice slower. Whether a GWRITE
    is better before or behind the READRES of the fill before it, estimates are too coarse to say.
    """
    likely: dict[Mapping, None] = {}
    for held in range(1, buffers + 1):
        likely |= dict.fromkeys(_likeliest([entry for entry in ranked if entry.mapping.fills_held <= held]))
    for mapping in tuple(likely):
        if mapping.order == "rows" and not mapping.prefetch:
            likely[replace(mapping, early_fill=False)] = None
    return list(likely)


def _likeliest(ranked: list[Candidate]) -> list[Mapping]:
    """The candidates with the best estimates, and the best of every kind, as estimates err differently by kind."""
    first: dict[tuple[object, ...], Candidate] = {}
    for entry in ranked:
        mapping = entry.mapping
        buffering = (mapping.order, mapping.fills_held, mapping.prefetch)
        layout = (mapping.tiles_per_row > 0, mapping.window_block > 0, mapping.groups[0].weight_groups is None)
        first.setdefault((*buffering, *layout), entry)
    near = [entry for entry in first.values() if entry.cycles <= _NEAR * ranked[0].cycles]
    return [entry.mapping for entry in (*ranked[:_SHORTLIST], *near)]
