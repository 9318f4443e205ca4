"""Every candidate of a policy over the execution order of a graph, cheap and certain ones first.

A candidate covers whole units of the order (a node with what is fused into it), so no candidate's cost depends on what
is decided about its neighbours. Candidates that the rewrites refuse, or that PIM refuses, are never offered.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import permutations, product

from pimflow.ir import (
    Conv2d,
    Decision,
    Graph,
    Node,
    OnDevice,
    Parallel,
    Pipeline,
    SplitRows,
)
from pimflow.ir.analysis.regions import node_rows, pipeline_refusal
from pimflow.passes.apply_plan import why_not
from pimflow.search.chain import Interval
from pimflow.search.order import Unit, branches_of, execution_order, fork_joins, units_of
from pimflow.search.policy import Policy, Space
from pimflow.search.pricing import Pricer

MAX_FOLLOWERS = 8
SHORT_RUN = 4
MAX_REGION_NODES = 24
MAX_BRANCHES = 4


@dataclass(frozen=True)
class Candidate:
    """Decisions that cover the positions start .. stop-1 of the order.

    The `certain` ones alone make a plan: they are priced whatever the time budget.
    """

    start: int
    stop: int
    decisions: tuple[Decision, ...]
    certain: bool = False


class Candidates:
    """Makes the candidates of a policy, in the order in which a time budget is best spent: small spaces come first."""

    def __init__(self, graph: Graph, policy: Policy, pricer: Pricer) -> None:
        self.graph = graph
        self.policy = policy
        self.order = execution_order(graph)
        self.units = units_of(self.order)
        self._unit_at = {unit.start: index for index, unit in enumerate(self.units)}
        self._pricer = pricer
        self._host, self._device = pricer.costs.target.host, pricer.costs.target.devices[1]

    def __iter__(self) -> Iterator[Candidate]:
        yield from self._on_gpu()
        for space in self.policy.spaces:
            for phase in (self._on_pim, self._splits, self._patterns, self._branches, self._runs):
                yield from phase(space)

    def _on_gpu(self) -> Iterator[Candidate]:
        """Every unit on the GPU, but for those that the policy sends to PIM by force."""
        forced = [space for space in self.policy.spaces if not space.gpu]
        for unit in self.units:
            if not any(self._pricer.pim_capable(unit.anchor, space.mapping) for space in forced):
                yield Candidate(unit.start, unit.stop, self._on_host(unit.nodes), certain=True)

    def _on_host(self, nodes: Sequence[Node]) -> tuple[Decision, ...]:
        return tuple(OnDevice(node.name, self._host) for node in nodes)

    def _on_pim(self, space: Space) -> Iterator[Candidate]:
        for unit in self._pim_units(space):
            behind = self._on_host(unit.nodes[1:])
            decisions = (OnDevice(unit.anchor.name, self._device, space.mapping), *behind)
            yield Candidate(unit.start, unit.stop, decisions, certain=not space.gpu)

    def _pim_units(self, space: Space) -> Iterator[Unit]:
        return (unit for unit in self.units if self._pricer.pim_capable(unit.anchor, space.mapping))

    # ---- MD-DP

    def _splits(self, space: Space) -> Iterator[Candidate]:
        if space.split is None:
            return
        for unit in self._pim_units(space):
            rows = node_rows(self.graph, unit.anchor)
            for stop, followers in self._follower_runs(unit, space.mapping):
                for gpu_rows in row_counts(rows, space.split):
                    split = SplitRows(unit.anchor.name, gpu_rows, space.mapping, followers, self._device)
                    yield Candidate(unit.start, stop, (split,))

    def _follower_runs(self, unit: Unit, mapping: str) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Which elementwise neighbours follow the halves: (stop, their names), each stop at the end of a unit.

        What is fused into the node always follows: on the Concat it would be a kernel of its own.
        """
        followers: tuple[str, ...] = ()
        stop = unit.start
        for other in self._units_from(unit):
            longer = (*followers, *(node.name for node in other.nodes if node is not unit.anchor))
            if other.stop - unit.start > MAX_FOLLOWERS + len(unit.nodes):
                return
            if (
                why_not(self.graph, SplitRows(unit.anchor.name, 1, mapping, longer, self._device), self._host)
                is not None
            ):
                return
            followers, stop = longer, other.stop
            yield stop, followers

    def _units_from(self, unit: Unit) -> Iterator[Unit]:
        index = self._unit_at[unit.start]
        while index < len(self.units):
            yield self.units[index]
            index += 1

    # ---- pipelines

    def _patterns(self, space: Space) -> Iterator[Candidate]:
        """1x1 -> depthwise, depthwise -> 1x1 and 1x1 -> depthwise -> 1x1, bottom rows first so that halos are ready."""
        if space.runs != "patterns":
            return
        for run in self._neighbours(3):
            kinds = tuple(self._pattern_kind(unit, space.mapping) for unit in run)
            if kinds in _PATTERNS:
                devices = [self._device if kind == "pointwise" else self._host for kind in kinds]
                yield from self._pipelines(run, devices, space, bottom_first=True)

    def _pattern_kind(self, unit: Unit, mapping: str) -> str:
        op = unit.anchor.op
        if not isinstance(op, Conv2d):
            return "other"
        if op.kernel == (1, 1) and op.groups == 1 and self._pricer.pim_capable(unit.anchor, mapping):
            return "pointwise"
        channels = self.graph.shape(unit.anchor.inputs[0])[1]
        return "depthwise" if op.groups == channels > 1 else "other"

    def _runs(self, space: Space) -> Iterator[Candidate]:
        """Any run of neighbours that GPU and PIM share: what PIM can have goes there, all of it or every second one."""
        if space.runs != "any":
            return
        for run in self._neighbours(space.max_run):
            choices = self._device_choices(run, space.mapping)
            if choices and pipeline_refusal(self.graph, [node.name for unit in run for node in unit.nodes]) is None:
                for devices in choices:
                    yield from self._pipelines(run, devices, space, bottom_first=False)

    def _device_choices(self, run: Sequence[Unit], mapping: str) -> list[list[str]]:
        capable = [self._pricer.pim_capable(unit.anchor, mapping) for unit in run]
        choices: list[list[str]] = [[self._device if able else self._host for able in capable]]
        for parity in (0, 1):
            choices.append(
                [self._device if able and place % 2 == parity else self._host for place, able in enumerate(capable)]
            )
        return [list(choice) for choice in dict.fromkeys(map(tuple, choices)) if len(set(choice)) == 2]

    def _neighbours(self, longest: int) -> Iterator[tuple[Unit, ...]]:
        """Consecutive units, two or more, in which each reads what the one before makes.

        Units without a window or a product (a residual add) do not count towards the length.
        """
        for first in self.units:
            run: list[Unit] = []
            heavy = 0
            for unit in self._units_from(first):
                if run and not _reads(unit, run[-1]):
                    break
                heavy += _is_heavy(unit)
                if heavy > longest or len(run) > 2 * longest:
                    break
                run.append(unit)
                if len(run) > 1:
                    yield tuple(run)

    def _pipelines(
        self, run: Sequence[Unit], devices: Sequence[str], space: Space, *, bottom_first: bool
    ) -> Iterator[Candidate]:
        names = tuple(node.name for unit in run for node in unit.nodes)
        where = tuple(
            device if node is unit.anchor else self._host
            for unit, device in zip(run, devices, strict=True)
            for node in unit.nodes
        )
        rows = node_rows(self.graph, run[-1].nodes[-1])
        long = sum(map(_is_heavy, run)) > SHORT_RUN
        for stages in space.stages[:2] if long else space.stages:  # `variations` deepens the long ones that pay
            options = equal_stages(rows, stages)
            for stage_rows in options if space.runs == "patterns" else options[-1:]:  # `variations` finds the others
                pipeline = Pipeline(names, where, stage_rows, space.mapping, bottom_first)
                yield Candidate(run[0].start, run[-1].stop, (pipeline,))

    def variations(self, chosen: Interval[tuple[Decision, ...]]) -> Iterator[Candidate]:
        """Pipelines one step away from a chosen one: rows moved between stages, a stage cut in two, a device changed.

        Only for policies that allow any run. Stages need not be equal: a short first stage fills the pipeline sooner.
        """
        pipeline = chosen.payload[0]
        stages = {count for space in self.policy.spaces if space.runs == "any" for count in space.stages}
        if not isinstance(pipeline, Pipeline) or not stages:
            return
        for stage_rows in moved_rows(pipeline.stage_rows):
            yield Candidate(chosen.start, chosen.stop, (replace(pipeline, stage_rows=stage_rows),))
        for stage_rows in halved_stages(pipeline.stage_rows) if len(pipeline.stage_rows) + 1 in stages else ():
            yield Candidate(chosen.start, chosen.stop, (replace(pipeline, stage_rows=stage_rows),))
        for place, name in enumerate(pipeline.run):
            other = self._host if pipeline.devices[place] == self._device else self._device
            if other == self._host or self._pricer.pim_capable(self.graph.node(name), pipeline.choice):
                devices = (*pipeline.devices[:place], other, *pipeline.devices[place + 1 :])
                yield Candidate(chosen.start, chosen.stop, (replace(pipeline, devices=devices),))

    # ---- concurrent branches

    def _branches(self, space: Space) -> Iterator[Candidate]:
        if not space.concurrent:
            return
        for region in fork_joins(self.graph, self.order):
            if region.stop - region.start > MAX_REGION_NODES:
                continue
            starts = [unit.start for unit in self.units if region.start <= unit.start < region.stop]
            stops = [unit.stop for unit in self.units if region.start < unit.stop <= region.stop]
            for start, stop in ((start, stop) for start in starts for stop in stops if start < stop):
                yield from self._concurrent(start, stop, space)

    def _concurrent(self, start: int, stop: int, space: Space) -> Iterator[Candidate]:
        """The independent branches of a stretch, each with its products on PIM or all on the GPU."""
        branches = branches_of(self.graph, self.order[start:stop])
        if not 2 <= len(branches) <= MAX_BRANCHES:
            return
        capable = [any(self._pricer.pim_capable(node, space.mapping) for node in branch) for branch in branches]
        for choice in product((False, True), repeat=len(branches)):
            if any(on_pim and not able for on_pim, able in zip(choice, capable, strict=True)) or len(set(choice)) < 2:
                continue
            placed = tuple(
                tuple(self._placed(node, on_pim, space.mapping) for node in branch)
                for on_pim, branch in zip(choice, branches, strict=True)
            )
            yield Candidate(start, stop, (Parallel(placed),))

    def _placed(self, node: Node, on_pim: bool, mapping: str) -> OnDevice:
        if on_pim and self._pricer.pim_capable(node, mapping):
            return OnDevice(node.name, self._device, mapping)
        return OnDevice(node.name, self._host)


_PATTERNS = frozenset({("pointwise", "depthwise"), ("depthwise", "pointwise"), ("pointwise", "depthwise", "pointwise")})


def row_counts(rows: int, step: Fraction) -> tuple[int, ...]:
    """Rows that the GPU may get in a split of `rows`: ceil(multiple of step * rows), neither none nor all; 0: every."""
    if step == 0:
        return tuple(range(1, rows))
    counts = {math.ceil(multiple * step * rows) for multiple in range(1, math.ceil(1 / step))}
    return tuple(sorted(count for count in counts if 0 < count < rows))


def equal_stages(rows: int, stages: int) -> tuple[tuple[int, ...], ...]:
    """Stages as equal as can be, the larger ones first and the larger ones last; none if there are too few rows."""
    if rows < stages:
        return ()
    small, extra = divmod(rows, stages)
    first = (small + 1,) * extra + (small,) * (stages - extra)
    return (first,) if not extra else (first, first[::-1])


def _is_heavy(unit: Unit) -> bool:
    return not unit.anchor.op.is_elementwise


def moved_rows(stage_rows: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The same rows dealt to the stages a little differently: 1, 2 or 4 of them moved from one stage to another."""
    for source, target in permutations(range(len(stage_rows)), 2):
        for moved in (1, 2, 4):
            if stage_rows[source] > moved:
                rows = list(stage_rows)
                rows[source] -= moved
                rows[target] += moved
                yield tuple(rows)


def halved_stages(stage_rows: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The same rows with one stage cut in two, each stage in turn."""
    for place, rows in enumerate(stage_rows):
        if rows > 1:
            yield (*stage_rows[:place], rows // 2, rows - rows // 2, *stage_rows[place + 1 :])


def _reads(reader: Unit, maker: Unit) -> bool:
    made = {output for node in maker.nodes for output in node.outputs}
    return any(name in made for name in reader.anchor.inputs)
