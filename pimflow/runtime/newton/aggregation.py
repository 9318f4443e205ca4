"""Aggregation over edges on Newton channels: what can run there, whether it can pay off, programs and values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pimflow.codegen.answers import EdgeDivision, Parts
from pimflow.codegen.newton.commands import CommandStream
from pimflow.codegen.newton.soundness import check_streams
from pimflow.codegen.newton.spmm import (
    Packing,
    SpmmMapping,
    SpmmProblem,
    SpmmProgram,
    block_columns,
    length_refusal,
    pack,
)
from pimflow.data import decode, encode
from pimflow.errors import DataError
from pimflow.ir import Array, Graph, Node, Refusal, Spmm
from pimflow.ir.analysis.content import content_of
from pimflow.records import dataclass
from pimflow.runtime.newton.spmm_cost import SpmmCost, fastest_program
from pimflow.runtime.newton.timing.streams import StreamTimer
from pimflow.sparse.checks import Longs
from pimflow.sparse.groups import GroupCounts, group_counts
from pimflow.targets import PimSpec

_Priced = tuple[SpmmProgram, SpmmCost] | Refusal


@dataclass(frozen=True)
class _Archived:
    """The archived form of a program, each part as tagged data."""

    problem: Any
    mapping: Any
    blocks: tuple[tuple[int, ...], ...]
    streams: Any


class Aggregations:
    """Prices aggregations on one machine under one timing profile, each once."""

    def __init__(self, timer: StreamTimer) -> None:
        self._timer = timer
        self._pim = timer.profile.pim
        self._edges: dict[str, tuple[Array, Array]] = {}
        self._packings: dict[str, Packing] = {}
        self._known: dict[tuple[SpmmProblem, str], _Priced] = {}

    def work(self, graph: Graph, node: Node) -> SpmmProblem | Refusal:
        """The work of an aggregation: it must sum rows of a matrix over edges, with weights, that are all constants."""
        op = node.op
        assert isinstance(op, Spmm)
        if op.reduce != "sum" or op.start or op.empty:
            return Refusal(f"its latches can only compute sums that start from zero (reduction: {op.reduce})")
        shape = graph.shape(node.inputs[0])
        if len(shape) != 2:
            return Refusal("its banks hold rows of a matrix, but the features have several heads")
        if not all(name in graph.constants for name in node.inputs[1:4] if name):
            return Refusal("its streams depend on edges and weights, which are only known when it runs")
        rowptr, col = (graph.constants[name] for name in node.inputs[1:3])
        if not len(col):
            return Refusal("there are no edges")
        digest = " ".join(str(part) for part in content_of(graph, node))
        self._edges.setdefault(digest, (rowptr, col))
        scaled = len(node.inputs) > 4 and bool(node.inputs[4])
        return SpmmProblem(digest, shape[0], len(rowptr) - 1, len(col), shape[1], scaled)

    def in_vain(self, problem: SpmmProblem, alone_us: float, beside_us: float, adding_us: float) -> Refusal | None:
        """Why no division of the edges is faster than the host alone, judging by COMPs and fills; None if one may be.

        A group of 16 sources and a tile of 16 features takes one COMP and one slot to fill, however few of the sources
        have an edge. The work is spread evenly over the channels, which take the densest groups first. The host takes
        its share of `beside_us` for the remaining edges, and `adding_us` to add up both parts. That share is an
        estimate, as the remaining rows may hit the cache more often; on every graph tried, PIM exceeded its bounds by
        more than that could save (`tests/runtime/newton/test_aggregation_refusals.py`).
        """
        counts = self._counts(problem)
        group_us = self._group_us(problem)
        whole_us = int(counts.pairs.sum()) * group_us
        if min(whole_us, _division_us(counts, group_us, beside_us) + adding_us) < alone_us:
            return None
        needed = group_us * problem.edges / alone_us
        left_us = alone_us - adding_us
        helping = group_us * problem.edges * (1 / left_us - 1 / beside_us) if left_us > 0 else math.inf
        beside = f", {helping:.1f} to help it" if helping < 0.95 * needed else ""
        had = counts.edges_per_group
        reason = (
            f"{had:.2f} edges a group of {self._pim.multipliers} sources, {needed:.1f} needed to be faster than "
            f"the host{beside}"
        )
        return Refusal(reason)

    def divisions(self, problem: SpmmProblem, beside_us: float) -> tuple[EdgeDivision, ...]:
        """Divisions of the edges by density of groups, sorted by the estimated time of PIM and the host's share."""
        counts = self._counts(problem)
        levels = np.flatnonzero(counts.pairs)
        groups = np.cumsum(counts.pairs[levels][::-1])[::-1]
        edges = np.cumsum((counts.pairs[levels] * levels)[::-1])[::-1]
        estimates = np.maximum(groups * self._group_us(problem), (1 - edges / counts.edges) * beside_us)
        comp_us = self._comp_us(problem)
        return tuple(
            EdgeDivision(self._pim.multipliers, int(levels[place]), int(groups[place]) * comp_us)
            for place in np.argsort(estimates[1:], kind="stable") + 1  # all edges on PIM is not a division
        )

    def lower_bound_us(self, problem: SpmmProblem) -> float:
        """A lower bound in microseconds: COMPs alone, spread evenly over the channels."""
        return int(self._counts(problem).pairs.sum()) * self._comp_us(problem)

    def _comp_us(self, problem: SpmmProblem) -> float:
        """Microseconds of one group's COMPs, spread evenly over the channels."""
        tiles = -(-problem.features // self._pim.banks)
        return tiles * self._timer.profile.comp_cycles / (self._pim.channels * self._pim.clock_mhz)

    def _counts(self, problem: SpmmProblem) -> GroupCounts:
        return group_counts(*self._edges[problem.edges_digest], self._pim.multipliers, block_columns(self._pim))

    def _group_us(self, problem: SpmmProblem) -> float:
        """The minimum time of one group in microseconds: its COMPs over all channels, and its slot in full fills.

        All channels that share a buffer wait for its fills, once for every tile that any of them has.
        """
        pim, costs = self._pim, self._timer.profile.visit_costs()
        tiles = -(-problem.features // pim.banks)
        slot = costs.fill_per_slot + costs.fill / block_columns(pim)
        numbers = [number for number in range(1, pim.buffers + 1) if pim.channels % number == 0]
        fills = min(-(-tiles * number // pim.channels) * slot / number for number in numbers)
        return (tiles * costs.comp / pim.channels + fills) / pim.clock_mhz

    def choose(self, problem: SpmmProblem, policy: str) -> SpmmCost | Refusal:
        """The cost of the fastest program that a policy allows."""
        known = self._priced(problem, policy)
        return known if isinstance(known, Refusal) else known[1]

    def program(self, problem: SpmmProblem, policy: str) -> SpmmProgram | Refusal:
        """The program that `choose` prices."""
        known = self._priced(problem, policy)
        return known if isinstance(known, Refusal) else known[0]

    def _priced(self, problem: SpmmProblem, policy: str) -> _Priced:
        key = (problem, policy)
        if key not in self._known:
            self._known[key] = self._price(problem, policy)
        return self._known[key]

    def _price(self, problem: SpmmProblem, policy: str) -> _Priced:
        rowptr, col = self._edges[problem.edges_digest]
        counts = self._counts(problem)
        too_long = length_refusal(problem, self._pim, self._pim.buffers, counts.runs + counts.units)
        if too_long is not None:
            return too_long
        if problem.edges_digest not in self._packings:
            self._packings[problem.edges_digest] = pack(rowptr, col, self._pim)
        return fastest_program(problem, self._packings[problem.edges_digest], policy, self._timer)

    def time_parts_us(self, problem: SpmmProblem, policy: str) -> Parts:
        """The launch, writing features, and the cycles of the slowest channel by part, in microseconds."""
        cost = self.choose(problem, policy)
        if isinstance(cost, Refusal):
            raise ValueError(cost.reason)
        parts = cost.parts
        spent = {"placement": cost.placement_cycles, "COMP": parts.comp, "fill": parts.fill}
        spent |= {"activation": parts.activation, "readout": parts.readout, "refresh": parts.refresh}
        return {"launch": cost.launch_us, **{name: cycles / self._pim.clock_mhz for name, cycles in spent.items()}}

    def partial_bytes(self, problem: SpmmProblem, policy: str) -> int:
        """Bytes of results that the host adds up or scales; 0 if the rows of results are final."""
        cost = self.choose(problem, policy)
        if isinstance(cost, Refusal) or not (cost.is_partial or problem.scaled):
            return 0
        return cost.units * problem.features * self._pim.result_bytes


def aggregate(program: SpmmProgram, inputs: Sequence[Array | None], operand: str) -> Array:
    """The value of a node: the results of the streams, added up by destination and scaled."""
    from pimflow.runtime.newton.values import execute_spmm

    features, rowptr, col, weight, scale = (*inputs, None, None)[:5]
    assert features is not None
    assert rowptr is not None
    assert col is not None
    sums = execute_spmm(program, pack(rowptr, col, program.pim), features, weight, operand)
    if scale is not None:
        sums = sums * np.asarray(scale, np.float32)[:, None]
    return sums.astype(features.dtype)


def rounded_edges(inputs: Sequence[Array | None], operand: str) -> tuple[Array | None, ...]:
    """The inputs with features and weights rounded to the operands' type; scale factors are applied outside.

    Edges with the same ends share one weight in a buffer: the first of them gets the rounded sum, the others get 0.
    """
    from pimflow.runtime.newton.values import round_to

    features, rowptr, col, *others = inputs
    assert features is not None
    assert rowptr is not None
    assert col is not None
    if others and others[0] is not None:
        sums = np.zeros(len(col), np.float32)
        np.add.at(sums, _first_alike(rowptr, col), others[0])
        others[0] = round_to(sums, operand)
    return (round_to(features, operand), rowptr, col, *others)


def _first_alike(rowptr: Array, col: Array) -> Longs:
    """For each edge, the index of the first edge with the same ends."""
    row = np.repeat(np.arange(len(rowptr) - 1), np.diff(rowptr))
    order = np.lexsort((col, row))
    differs = (np.diff(row[order], prepend=-1) != 0) | (np.diff(col[order], prepend=-1) != 0)
    first = np.empty(len(col), np.int64)
    first[order] = order[differs][np.cumsum(differs) - 1]
    return first


def archive_aggregation(program: SpmmProgram) -> Any:
    """A program as JSON values, without the location of its features."""
    parts = {name: encode(getattr(program, name), tagged=True) for name in ("problem", "mapping", "streams")}
    return {**parts, "blocks": encode(program.blocks)}


def restore_aggregation(data: Any, pim: PimSpec) -> SpmmProgram:
    """The program that `archive_aggregation` archived, with its features from row 0 on.

    Raises:
        DataError: the data is not a program for this machine.
    """
    archived = decode(_Archived, data)
    problem = decode(SpmmProblem, archived.problem, tagged=True, path="problem")
    mapping = decode(SpmmMapping, archived.mapping, tagged=True, path="mapping")
    streams = decode(tuple[CommandStream, ...], archived.streams, tagged=True, path="streams")
    if not 0 < mapping.groups <= pim.buffers or pim.channels % mapping.groups:
        raise DataError("'mapping' does not fit the machine")
    check_streams(streams, pim)
    if len(archived.blocks) != mapping.groups:
        raise DataError("'blocks' and 'mapping' have different numbers of groups")
    return SpmmProgram(problem, mapping, pim, archived.blocks, streams)


def _division_us(counts: GroupCounts, group_us: float, beside_us: float) -> float:
    """A lower bound on the time of any division of edges: the densest groups on PIM, the rest in parallel."""
    done_us, left = 0.0, 1.0
    for edges in range(len(counts.pairs) - 1, 0, -1):
        groups = int(counts.pairs[edges])
        level_us, share = groups * group_us, groups * edges / counts.edges
        if done_us + level_us >= (left - share) * beside_us:
            part = (left * beside_us - done_us) / (level_us + share * beside_us)
            return done_us + part * level_us
        done_us, left = done_us + level_us, left - share
    return done_us
