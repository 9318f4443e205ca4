"""Every candidate of a policy over the execution order of a graph, cheap and certain ones first.

A candidate covers whole units of the order (a node with the nodes fused into it), so no candidate's cost depends on
decisions about its neighbours. Candidates that the rewrites or a device refuse are never offered. Each file here is one
kind of decision; `KINDS` lists them in the order in which a time budget is best spent.

Pipelines, concurrent branches and splits of columns have too many versions in most graphs: some are listed, and the
search continues from those that it chooses (`variations`). In a small graph all are listed (docs/plans.md describes
them).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from pimflow.ir import Decision, Graph, Parallel
from pimflow.search.candidates import branches as concurrent
from pimflow.search.candidates import columns, divided, edges, inner, pipelines
from pimflow.search.candidates.base import MAX_REGION_NODES, Candidate, Destination, Scene, Varied
from pimflow.search.candidates.branches import branches
from pimflow.search.candidates.columns import column_splits
from pimflow.search.candidates.divided import divided_runs
from pimflow.search.candidates.edges import edge_splits
from pimflow.search.candidates.inner import k_splits
from pimflow.search.candidates.joined import joins
from pimflow.search.candidates.md_dp import MAX_FOLLOWERS, splits
from pimflow.search.candidates.merged import Merger
from pimflow.search.candidates.pieces import Cheapest, cuts, pieces, shifted
from pimflow.search.candidates.pipelines import patterns, runs, shorter_first, variations
from pimflow.search.candidates.placed import on_device, on_host
from pimflow.search.candidates.rejoined import rejoined
from pimflow.search.candidates.repeated import repeated
from pimflow.search.chain import Interval
from pimflow.search.policy import Policy, Space
from pimflow.search.pricing import Pricer

__all__ = ["KINDS", "Candidate", "Candidates"]

KINDS = (on_device, splits, column_splits, edge_splits, patterns, branches, runs)
"""The candidates that a space and a device other than the host offer; small spaces come first."""
Kind = Callable[[Scene, Space, Destination], Iterator[Candidate]]
Count = Callable[[Scene, Space, Destination, int], int]
_MANY: tuple[Count, ...] = (columns.versions, pipelines.versions, concurrent.versions)
MAX_VERSIONS = 8_000
"""Graphs with at most this many versions of pipelines, concurrent branches and splits of columns are searched
exhaustively, which takes a second or two."""
MAX_IN_FEWEST_STAGES = 4_000
"""Other graphs with at most this many versions in the smallest number of stages are searched exhaustively in that
number at the end."""


class Candidates:
    """Generates the candidates of a policy.

    Args:
        graph: cleaned up.
        policy: determines the candidates.
        pricer: determines which nodes can run where.
        exhaustive: whether to list every version if the graph is small.
        once: whether to list candidates only for the first of several equivalent stretches.
    """

    def __init__(
        self, graph: Graph, policy: Policy, pricer: Pricer, *, exhaustive: bool = False, once: bool = False
    ) -> None:
        self.policy = policy
        self.scene = Scene(graph, pricer)
        self.order = self.scene.order
        self._joined: set[Hashable] = set()
        self._windows: dict[bool, set[tuple[Decision, ...]]] = {False: set(), True: set()}
        """Neighbouring decisions that have been joined, by whether sums are divided: then there are more variations."""
        self._probes: set[Candidate] = set()
        self._rejoined: set[tuple[Decision, ...]] = set()
        self._repeated: set[tuple[Decision, ...]] = set()
        self._varied: set[tuple[Decision, ...]] = set()
        self._mergers = [Merger(self.scene, space) for space in policy.spaces if space.runs == "any"]
        self._exhaustive = exhaustive
        self._list_every_version(policy.spaces, MAX_VERSIONS)
        if once:
            self.scene.find_equivalents(self._reach(), concurrently=any(space.concurrent for space in policy.spaces))

    def _list_every_version(self, spaces: Sequence[Space], most: int) -> None:
        """From now on, list every version of the decisions that have at most so many in these spaces."""
        scene = self.scene
        scene.exhaustive = self._exhaustive and self._versions(_MANY, spaces, most) <= most
        scene.every_division = scene.exhaustive and self._versions((divided.versions,), spaces, most) <= most

    def __iter__(self) -> Iterator[Candidate]:
        for listed in self.rounds():
            yield from listed

    def rounds(self) -> Iterator[Iterator[Candidate]]:
        """First all candidates without divided sums and divided runs, then those, in rounds of their own.

        A search that proceeds step by step from its choices finishes a round before the next one, so the later rounds
        never lead away from a plan that is found without them.
        """
        self.scene.sums = self.scene.divided_runs = False
        yield chain(on_host(self.scene, self.policy.spaces), self._listed(KINDS, self.policy.spaces))
        self.scene.sums = self.scene.divides_sums
        if self.scene.sums and any(space.inner for space in self.policy.spaces):
            yield self._listed((k_splits,), self.policy.spaces)
        if any(space.runs == "any" for space in self.policy.spaces):
            self.scene.divided_runs = True
            yield self._listed((divided_runs,), self.policy.spaces)

    def in_fewest_stages(self) -> Iterator[Candidate]:
        """Every version with the smallest number of stages, if only then the graph has few enough of them."""
        spaces = tuple(replace(space, stages=(min(space.stages),)) for space in self.policy.spaces)
        if self.scene.exhaustive or spaces == self.policy.spaces:
            return
        self._list_every_version(spaces, MAX_IN_FEWEST_STAGES)
        if self.scene.exhaustive:
            kinds = (column_splits, branches, runs, *((k_splits,) if self.scene.sums else ()), divided_runs)
            yield from self._listed(kinds, spaces)

    def _listed(self, kinds: Sequence[Kind], spaces: Sequence[Space]) -> Iterator[Candidate]:
        for space in spaces:
            for kind in kinds:
                for destination in self.scene.destinations(space.choice):
                    yield from kind(self.scene, space, destination)

    def _reach(self) -> int:
        """A number of units larger than any candidate covers, except joined branches."""
        longest = max((2 * space.max_run for space in self.policy.spaces if space.runs != "none"), default=0)
        return 1 + max(longest, MAX_FOLLOWERS + 1, MAX_REGION_NODES)

    def shifts(self, candidate: Candidate) -> tuple[int, ...]:
        """The distances of the candidates equivalent to one that is the first of its kind, itself (0) included."""
        return self.scene.equivalents.shifts(candidate.start, candidate.stop)

    def first_equivalent(self, candidate: Candidate) -> Candidate:
        """The first candidate equivalent to a given one: it costs the same."""
        shift = self.scene.equivalents.shift(candidate.start, candidate.stop)
        if not shift:
            return candidate
        if isinstance(candidate, Varied):
            return self.scene.moved_variation(candidate, -shift)
        decisions = self.scene.moved(candidate.decisions, -shift)
        return Candidate(candidate.start - shift, candidate.stop - shift, decisions, candidate.certain)

    def _versions(self, kinds: Sequence[Count], spaces: Sequence[Space], most: int) -> int:
        """The number of versions of the kinds that have too many in most graphs; counting stops above `most`."""
        count = 0
        for space in spaces:
            for destination in self.scene.destinations(space.choice):
                for versions in kinds:
                    count += versions(self.scene, space, destination, most)
                    if count > most:
                        return count
        return count

    def variations(self, chosen: Interval[tuple[Decision, ...]]) -> Iterator[Candidate]:
        """Candidates one step away from a chosen one."""
        if chosen.payload not in self._varied:
            self._varied.add(chosen.payload)
            yield from variations(self.scene, self.policy, chosen)
        if self.scene.divided_runs:
            yield from divided.variations(self.scene, chosen)
        yield from columns.variations(self.scene, chosen)
        yield from inner.variations(self.scene, chosen)
        yield from edges.variations(self.scene, chosen)
        yield from concurrent.variations(self.scene, chosen)

    def deeper(self, refined: Candidate) -> Iterator[Candidate]:
        """Versions of a pipeline in more stages, which are worth a closer look only if it was."""
        yield from pipelines.deeper(self.scene, self.policy, refined)

    def probes(self, near: Interval[tuple[Decision, ...]]) -> Iterator[Candidate]:
        """A few versions of a pipeline that show whether there is a better one; each once."""
        if not any(space.runs == "any" for space in self.policy.spaces):
            return
        some = divided.variations(self.scene, near, halves=True) if self.scene.divided_runs else shorter_first(near)
        for candidate in some:
            if candidate not in self._probes:
                self._probes.add(candidate)
                yield candidate

    def pieces(self, chosen: Interval[tuple[Decision, ...]], cheapest: Cheapest) -> Iterator[Candidate]:
        """Joined decisions in which some nodes are decided as they would be by themselves."""
        yield from pieces(self.scene, chosen, cheapest)

    def cuts(self, chosen: Interval[tuple[Decision, ...]], cheapest: Cheapest) -> Iterator[Candidate]:
        """Both parts of joined decisions cut in two, and pipelines whose two parts are joined; each once."""
        concurrently = any(space.concurrent for space in self.policy.spaces)
        for candidate in cuts(self.scene, chosen, cheapest) if concurrently else ():
            key = self.scene.key(candidate)
            if key not in self._joined:
                self._joined.add(key)
                yield candidate

    def joins(self, chosen: Sequence[Interval[tuple[Decision, ...]]]) -> Iterator[tuple[Candidate, float]]:
        """Decisions of a cover joined without synchronisation between them, and variations of these, each once and with
        the cost of those decisions; about the first of equivalent stretches."""
        concurrently = any(space.concurrent for space in self.policy.spaces)
        seen = self._windows[self.scene.sums]
        for candidate, parts_cost in joins(self.scene, chosen, seen) if concurrently else ():
            key = self.scene.key(candidate)
            if key not in self._joined:
                self._joined.add(key)
                yield candidate, parts_cost

    def merges(self, chosen: Sequence[Interval[tuple[Decision, ...]]]) -> Iterator[Candidate]:
        """Consecutive decisions of a cover in one pipeline, whole or in part, and its pipelines in other stages."""
        for merger in self._mergers:
            yield from merger.candidates(chosen)

    def repeated(self, chosen: Sequence[Interval[tuple[Decision, ...]]]) -> Iterator[Candidate]:
        """Decisions of a cover about other stretches with the same nodes, unless the policy lists every decision."""
        if self._mergers:
            yield from repeated(self.scene, chosen, self._repeated)

    def rearranged(self, chosen: Sequence[Interval[tuple[Decision, ...]]], cheapest: Cheapest) -> Iterator[Candidate]:
        """Like `merges`, also in stages that no decision has, inside joined decisions, and with boundaries of joined
        decisions at other units."""
        concurrently = any(space.concurrent for space in self.policy.spaces)
        yield from self.merges(chosen)
        for merger in self._mergers:
            yield from merger.in_other_stages(chosen)
            for one in chosen if concurrently else ():
                if isinstance(one.payload[0], Parallel) and one.payload not in self._rejoined:
                    self._rejoined.add(one.payload)
                    yield from rejoined(self.scene, merger, one)
        yield from shifted(self.scene, chosen, cheapest) if concurrently else ()
