"""Chooses the mapping of one matrix problem: Newton+, Newton++, or the best of the mapping space.

Candidates are ranked by a closed-form estimate; the shortlist is lowered and timed exactly, and the fastest wins.
"""

from __future__ import annotations

from collections.abc import Iterable

from pimflow.codegen import PimProblem
from pimflow.codegen.newton import Mapping, PimProgram, lower, newton_mappings
from pimflow.codegen.newton.im2col import geometry
from pimflow.codegen.newton.published import channel_loads
from pimflow.errors import choice
from pimflow.ir import Refusal
from pimflow.runtime.newton.autotune.estimate import visit_costs
from pimflow.runtime.newton.autotune.space import Candidate, candidates
from pimflow.runtime.newton.cost import PimCost, price, time_classes, total_cycles
from pimflow.runtime.newton.timing import StreamTiming
from pimflow.targets import Target

_SHORTLIST = 6  # candidates of `auto` that are timed exactly
_NEAR = 1.4  # and the best of every kind whose estimate is within this factor of the least
_NEWTON_SHORTLIST = 3

POLICIES = ("newton+", "newton++", "auto")

_memo: dict[tuple[int, str], tuple[Target, dict[tuple[PimProblem, str], PimCost | Refusal]]] = {}


def choose_mapping(problem: PimProblem, target: Target, policy: str, profile: str | None = None) -> PimCost | Refusal:
    """The fastest mapping that a policy allows, priced; memoised for the life of the process.

    Args:
        problem: the matrix work.
        target: the machine.
        policy: "newton+", "newton++" or "auto", case-insensitive.
        profile: timing profile; the target's default if None. `auto` is searched anew for each.

    Raises:
        OptionError: no such policy or profile.
    """
    name = choice("mapping policy", policy, POLICIES)
    timing = (profile or target.pim.timing.default).lower()
    memo = _memo_of(target, timing)
    key = (problem, name)
    if key not in memo:
        memo[key] = _search(problem, target, name, timing)
    return memo[key]


def _memo_of(target: Target, profile: str) -> dict[tuple[PimProblem, str], PimCost | Refusal]:
    """The memo of this very target object (hashing a whole machine on every call would cost more than the look-up)."""
    key = id(target), profile
    entry = _memo.get(key)
    if entry is None or entry[0] is not target:
        if len(_memo) > 64:
            _memo.clear()
        entry = _memo[key] = (target, {})
    return entry[1]


def _search(problem: PimProblem, target: Target, policy: str, profile: str) -> PimCost | Refusal:
    """The best of the likely mappings; of all, where the banks have no room for any of those."""
    every = newton_mappings(problem, target.pim, "newton+" if policy == "newton+" else "newton++")
    likely = _likely(every, problem, target, profile)
    if policy == "auto":
        ranked = candidates(problem, target.pim, profile)
        every = (*(entry.mapping for entry in ranked), *every)
        likely = (*_shortlist(ranked), *likely)
    cost = _best(likely, problem, target, profile)
    return _best(every, problem, target, profile) if isinstance(cost, Refusal) else cost


def _shortlist(ranked: list[Candidate]) -> list[Mapping]:
    """The candidates with the best estimates, and the best of every kind, as estimates err differently by kind."""
    first: dict[tuple[object, ...], Candidate] = {}
    for entry in ranked:
        mapping = entry.mapping
        buffering = (mapping.order, mapping.fills_held, mapping.prefetch)
        layout = (mapping.tiles_per_row > 0, mapping.window_block > 0, mapping.groups[0].weight_groups is None)
        kind = (*buffering, *layout)
        first.setdefault(kind, entry)
    near = [entry for entry in first.values() if entry.cycles <= _NEAR * ranked[0].cycles]
    return list(dict.fromkeys(entry.mapping for entry in (*ranked[:_SHORTLIST], *near)))


def _likely(mappings: tuple[Mapping, ...], problem: PimProblem, target: Target, profile: str) -> tuple[Mapping, ...]:
    """Those of Newton++'s mappings that the slowest channel's rows and COMPs leave in the running, best first."""
    shape, costs = geometry(problem, target.pim), visit_costs(target.pim, profile, None)
    ranked: dict[tuple[tuple[int, int], ...], tuple[float, Mapping]] = {}
    for mapping in mappings:
        loads = channel_loads(mapping, shape)
        cycles = max(rows * (costs.sweep + costs.settle) + comps * costs.comp for rows, comps in loads)
        ranked.setdefault(tuple(sorted(set(loads))), (cycles, mapping))
    order = sorted(ranked.values(), key=lambda entry: entry[0])
    return tuple(mapping for cycles, mapping in order[:_NEWTON_SHORTLIST] if cycles <= 1.1 * order[0][0])


def _best(mappings: Iterable[Mapping], problem: PimProblem, target: Target, profile: str) -> PimCost | Refusal:
    """The fastest of some mappings by exact timing (of equals the first), or why the nearest miss does not fit."""
    best: tuple[int, PimProgram, tuple[StreamTiming, ...]] | None = None
    refusal: Refusal | None = None
    for mapping in mappings:
        program = lower(problem, mapping, target.pim)
        if isinstance(program, Refusal):
            if refusal is None or (program.gap or 0) < (refusal.gap or 0):
                refusal = program
            continue
        timings = time_classes(program, profile)
        cycles = total_cycles(program, timings)
        if best is None or cycles < best[0]:
            best = (cycles, program, timings)
    if best is None:
        return refusal or Refusal("no mapping of the policy fits the machine")
    return price(best[1], best[2], profile)
