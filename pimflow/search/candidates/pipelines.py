"""Pipelines: runs of neighbours cut into stages along the rows, with devices working on different stages
concurrently."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, combinations, pairwise, permutations, product

from pimflow.ir import Conv2d, Decision, Pipeline
from pimflow.ir.analysis.regions import GrowingRun, node_rows
from pimflow.search.candidates.base import Candidate, Destination, Scene, is_heavy
from pimflow.search.chain import Interval
from pimflow.search.order import Unit, names_of
from pimflow.search.policy import Policy, Space

SHORT_RUN = 4
MAX_OPEN = 3
"""The maximum number of open branches in a run."""
_PATTERNS = frozenset({("pointwise", "depthwise"), ("depthwise", "pointwise"), ("pointwise", "depthwise", "pointwise")})


def patterns(scene: Scene, space: Space, destination: Destination) -> Iterator[Candidate]:
    """1x1 -> depthwise, depthwise -> 1x1 and 1x1 -> depthwise -> 1x1, bottom rows first so that halos are ready."""
    if space.runs != "patterns":
        return
    for run in neighbours(scene, 3, most_open=1):
        kinds = tuple(_pattern_kind(scene, unit, destination) for unit in run)
        if kinds in _PATTERNS and all(_follows(unit, before) for before, unit in pairwise(run)):
            devices = [destination.device if kind == "pointwise" else scene.host for kind in kinds]
            yield from _pipelines(scene, run, devices, space, destination, bottom_first=True)


def _follows(unit: Unit, before: Unit) -> bool:
    """Whether the anchor itself reads an output of the previous unit, not just a node that is fused into it."""
    return any(name in node.outputs for name in unit.anchor.inputs for node in before.nodes)


def _pattern_kind(scene: Scene, unit: Unit, destination: Destination) -> str:
    op = unit.anchor.op
    if not isinstance(op, Conv2d):
        return "other"
    if op.kernel == (1, 1) and op.groups == 1 and scene.can_run(unit.anchor, destination):
        return "pointwise"
    channels = scene.graph.shape(unit.anchor.inputs[0])[1]
    return "depthwise" if op.groups == channels > 1 else "other"


def runs(scene: Scene, space: Space, destination: Destination) -> Iterator[Candidate]:
    """Any run of neighbours that two devices share.

    In a small graph, every version of every run (`versions` counts them); otherwise all nodes that can leave the host
    do, or every second one, in as few equal stages as allowed, and `deeper` and `variations` find the others.
    """
    if space.runs != "any":
        return
    for run in cuttable(scene, neighbours(scene, space.max_run)):
        choices = _device_choices(scene, run, destination)
        if scene.exhaustive:
            yield from _every_version(scene, run, space, destination)
            continue
        for devices in choices:
            yield from _pipelines(scene, run, devices, space, destination, bottom_first=False)


def cuttable(scene: Scene, growing: Iterable[tuple[Unit, ...]]) -> Iterator[tuple[Unit, ...]]:
    """The runs that can be cut into stages by rows (`pipeline_refusal`); consecutive runs grow from the same first
    unit."""
    first, size, grown = None, 0, GrowingRun(scene.graph, scene.operand_reads)
    for run in growing:
        if run[0] is not first:
            first, size, grown = run[0], 0, GrowingRun(scene.graph, scene.operand_reads)
        for unit in run[size:]:
            for node in unit.nodes:
                grown.add(node)
        size = len(run)
        if grown.refusal is None and grown.is_read and node_rows(scene.graph, run[-1].nodes[-1]) >= 2:
            yield run


def versions(scene: Scene, space: Space, destination: Destination, most: int) -> int:
    """The number of pipelines of any run, devices times stages; counting stops above `most`."""
    count = 0
    for run in neighbours(scene, space.max_run) if space.runs == "any" else ():
        rows = node_rows(scene.graph, run[-1].nodes[-1])
        able = sum(scene.can_run(unit.anchor, destination) for unit in run)
        ways = 2**able - 1 - (able == len(run) and not _leave_kernels(scene, run, destination))
        count += ways * sum(math.comb(max(rows - 1, 0), stages - 1) for stages in space.stages)
        if count > most:
            break
    return count


def _every_version(scene: Scene, run: Sequence[Unit], space: Space, destination: Destination) -> Iterator[Candidate]:
    """All choices of devices, and all stages."""
    rows = node_rows(scene.graph, run[-1].nodes[-1])
    able = [(False, True) if scene.can_run(unit.anchor, destination) else (False,) for unit in run]
    for leaving in product(*able):
        devices = tuple(destination.device if leaves else scene.host for leaves in leaving)
        if not _are_shared(scene, run, devices, destination):
            continue
        placed = placed_on(scene, run, devices)
        for stages in space.stages:
            for stage_rows in all_stages(rows, stages):
                yield _pipeline(run, placed, stage_rows, destination, bottom_first=False)


def _device_choices(scene: Scene, run: Sequence[Unit], destination: Destination) -> list[tuple[str, ...]]:
    able = [scene.can_run(unit.anchor, destination) for unit in run]
    leaving = [able, *([can and place % 2 == parity for place, can in enumerate(able)] for parity in (0, 1))]
    choices = (tuple(destination.device if leaves else scene.host for leaves in choice) for choice in leaving)
    return [choice for choice in dict.fromkeys(choices) if _are_shared(scene, run, choice, destination)]


def _are_shared(scene: Scene, run: Sequence[Unit], devices: Sequence[str], destination: Destination) -> bool:
    """Whether both devices work on a run, the host at least on kernels that units leave to it."""
    return len(set(devices)) == 2 or (devices[0] != scene.host and _leave_kernels(scene, run, destination))


def _leave_kernels(scene: Scene, run: Sequence[Unit], destination: Destination) -> bool:
    return any(len(unit.nodes) > 1 and scene.leaves_kernels(unit, destination) for unit in run)


def neighbours(scene: Scene, longest: int, most_open: int = MAX_OPEN) -> Iterator[tuple[Unit, ...]]:
    """Runs of two or more consecutive units, each of which except the last is read by a later one.

    Units without a window or a product (a residual add) do not count towards the length.

    Args:
        scene: the units.
        longest: the maximum length of a run.
        most_open: how many units may wait for their readers at once: 1 in a chain, more with branches.
    """
    read_by = lru_cache(2 * longest + 1)(scene.read_by)  # a run from the next unit asks for the same ones
    for first in scene.equivalents.firsts:
        yield from _growing(scene.units_from(first), longest, most_open, read_by)


def is_run(scene: Scene, units: Sequence[Unit], longest: int) -> bool:
    """Whether consecutive units are one of the runs of `neighbours`."""
    return any(len(run) == len(units) for run in _growing(units, longest, MAX_OPEN, scene.read_by))


def _growing(
    units: Iterable[Unit], longest: int, most_open: int, read_by: Callable[[int], set[int]]
) -> Iterator[tuple[Unit, ...]]:
    """The runs that start with the first of consecutive units."""
    run: list[Unit] = []
    heavy = 0
    unread: set[int] = set()
    for unit in units:
        heavy += is_heavy(unit)
        unread = (unread - read_by(unit.start)) | {unit.start}
        if heavy > longest or len(run) > 2 * longest or len(unread) > most_open:
            break
        run.append(unit)
        if len(run) > 1 and len(unread) == 1:
            yield tuple(run)


def _pipelines(
    scene: Scene,
    run: Sequence[Unit],
    devices: Sequence[str],
    space: Space,
    destination: Destination,
    *,
    bottom_first: bool,
) -> Iterator[Candidate]:
    rows, placed = node_rows(scene.graph, run[-1].nodes[-1]), placed_on(scene, run, devices)
    long = sum(map(is_heavy, run)) > SHORT_RUN
    for stages in space.stages if space.runs == "patterns" else space.stages[:1]:
        options = equal_stages(rows, stages)
        for stage_rows in options if space.runs == "patterns" else options[-1:]:  # `variations` finds the others
            yield _pipeline(run, placed, stage_rows, destination, bottom_first=bottom_first)
    for stage_rows in () if long or space.runs == "patterns" else half_first(rows, space.stages[0]):
        yield _pipeline(run, placed, stage_rows, destination, bottom_first=bottom_first)


def placed_on(scene: Scene, run: Sequence[Unit], devices: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The nodes of a run, and their devices: fused nodes stay on the host."""
    where: list[str] = []
    for unit, device in zip(run, devices, strict=True):
        where.append(device)
        where += [scene.host] * (len(unit.nodes) - 1)
    return names_of(run), tuple(where)


def _pipeline(
    run: Sequence[Unit],
    placed: tuple[tuple[str, ...], tuple[str, ...]],
    stage_rows: tuple[int, ...],
    destination: Destination,
    *,
    bottom_first: bool,
) -> Candidate:
    pipeline = Pipeline(*placed, stage_rows, destination.choice, bottom_first)
    return Candidate(run[0].start, run[-1].stop, (pipeline,))


def variations(scene: Scene, policy: Policy, chosen: Interval[tuple[Decision, ...]]) -> Iterator[Candidate]:
    """Pipelines one step away from a chosen one: rows moved between stages, a stage cut in two, a device changed.

    Only for policies that allow any run. Stages need not be equal: a short first stage fills the pipeline sooner.
    """
    pipeline = chosen.payload[0]
    stages = {count for space in policy.spaces if space.runs == "any" for count in space.stages}
    if not isinstance(pipeline, Pipeline) or not stages:
        return
    if pipeline.host_rows:
        return
    for stage_rows in moved_rows(pipeline.stage_rows):
        yield Candidate(chosen.start, chosen.stop, (replace(pipeline, stage_rows=stage_rows),))
    for stage_rows in halved_stages(pipeline.stage_rows) if len(pipeline.stage_rows) + 1 in stages else ():
        yield Candidate(chosen.start, chosen.stop, (replace(pipeline, stage_rows=stage_rows),))
    elsewhere = next((device for device in pipeline.devices if device != scene.host), scene.devices[0])
    destination = Destination(elsewhere, pipeline.choice)
    for place, name in enumerate(pipeline.run):
        other = scene.host if pipeline.devices[place] == destination.device else destination.device
        if other == scene.host or scene.can_run(scene.graph.node(name), destination):
            devices = (*pipeline.devices[:place], other, *pipeline.devices[place + 1 :])
            yield Candidate(chosen.start, chosen.stop, (replace(pipeline, devices=devices),))


def deeper(scene: Scene, policy: Policy, refined: Candidate) -> Iterator[Candidate]:
    """Of a pipeline in equal stages that was worth a closer look, the version with one stage more.

    Long runs are offered in the two lowest numbers of stages only, and in the second one with a first stage half as
    large as the others too; `variations` deepens those that pay off.
    """
    pipeline = refined.decisions[0]
    if scene.exhaustive or not isinstance(pipeline, Pipeline) or pipeline.bottom_first or pipeline.host_rows:
        return
    rows, count = sum(pipeline.stage_rows), len(pipeline.stage_rows)
    counts = sorted({number for space in policy.spaces if space.runs == "any" for number in space.stages})
    if count not in counts or pipeline.stage_rows != equal_stages(rows, count)[-1]:
        return
    at, long = counts.index(count), sum(map(is_heavy, scene.units_within(refined.start, refined.stop))) > SHORT_RUN
    offered = [equal_stages(rows, more)[-1:] for more in (counts[:2] if long else counts)[at + 1 : at + 2]]
    if long and at == 1:
        offered.append(half_first(rows, count))
    for stage_rows in chain.from_iterable(offered):
        yield Candidate(refined.start, refined.stop, (replace(pipeline, stage_rows=stage_rows),))


def shorter_first(near: Interval[tuple[Decision, ...]]) -> Iterator[Candidate]:
    """A pipeline whose first stage, which fills it, is a quarter shorter, and whose other stages are equally longer."""
    pipeline = near.payload[0]
    if not isinstance(pipeline, Pipeline) or pipeline.bottom_first or pipeline.host_rows:
        return
    first, *others = pipeline.stage_rows
    moved = max(first // 4, 1)
    if first > moved:
        more = equal_stages(moved + len(others), len(others))[-1]
        rows = (first - moved, *(stage + rows - 1 for stage, rows in zip(others, more, strict=True)))
        yield Candidate(near.start, near.stop, (replace(pipeline, stage_rows=rows),))


def equal_stages(rows: int, stages: int) -> tuple[tuple[int, ...], ...]:
    """Stages as equal as possible, with the larger ones first and with the larger ones last; none if there are too few
    rows."""
    if rows < stages:
        return ()
    small, extra = divmod(rows, stages)
    first = (small + 1,) * extra + (small,) * (stages - extra)
    return (first,) if not extra else (first, first[::-1])


def half_first(rows: int, stages: int) -> tuple[tuple[int, ...], ...]:
    """Stages of which the first, which fills the pipeline, is about half as large as each other; none if there are too
    few rows, or if equal stages are the same."""
    cuts = [0, *(round(rows * (2 * stage - 1) / (2 * stages - 1)) for stage in range(1, stages + 1))]
    found = tuple(stop - start for start, stop in pairwise(cuts))
    return (found,) if min(found) > 0 and found not in equal_stages(rows, stages)[-1:] else ()


def all_stages(rows: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Every way to divide the rows into stages, none of them empty."""
    for cuts in combinations(range(1, rows), stages - 1):
        yield tuple(stop - start for start, stop in pairwise((0, *cuts, rows)))


def moved_rows(stage_rows: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The same rows divided slightly differently: 1, 2 or 4 of them moved from one stage to another."""
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
