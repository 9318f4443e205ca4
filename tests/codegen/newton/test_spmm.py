"""The aggregation's streams: the packing, the number of commands, and values against scipy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from pimflow.codegen.newton.commands import CommandCounts, Comp, GWrite, count_commands
from pimflow.codegen.newton.spmm import MAX_ITEMS, SpmmMapping, block_columns, lower_spmm, pack, roles
from pimflow.errors import CommandOrderError
from pimflow.ir import Refusal
from pimflow.runtime.newton.values import execute_spmm
from pimflow.sparse import Graph, statistics_of
from pimflow.targets import PimSpec
from support.newton.aggregation import Edges, drawn_edges, drawn_mappings, random_edges
from support.newton.plain_machine import run_stream
from support.newton.problems import PIM, machines
from support.values import relative_error

PLAIN = SpmmMapping(1, False, "hidden")


def one_channel(edges: Edges, pim: PimSpec = PIM) -> CommandCounts:
    program, _ = edges.program(PLAIN, pim)
    return count_commands(program.streams[0].body)


@settings(max_examples=25)
@given(st.data(), drawn_edges(), machines(), st.booleans())
def test_values_match_scipy(data: st.DataObject, edges: Edges, pim: PimSpec, weighted: bool) -> None:
    program, packing = edges.program(data.draw(drawn_mappings(pim)), pim)
    result = execute_spmm(program, packing, edges.features, edges.weight if weighted else None, "fp32")
    weight = edges.weight if weighted else np.ones(len(edges.col), np.float32)
    assert edges.error(result, weight) < 1e-6


@settings(max_examples=12)
@given(st.data(), drawn_edges(), machines())
def test_the_plain_machine_computes_the_same(data: st.DataObject, edges: Edges, pim: PimSpec) -> None:
    """Command by command, with fills and banks laid out by the test."""
    edges = replace(edges, features=edges.features[:, :40])
    program, packing = edges.program(data.draw(drawn_mappings(pim)), pim)
    width = edges.features.shape[1]
    partial = np.zeros((packing.units, -(-width // pim.banks) * pim.banks), np.float32)
    for channels in program.channel_groups:
        for channel in channels:
            run_stream(
                program.streams[channel], packing.contents(edges.weight), program.fill_banks(channel, edges.features),
                partial, bank_groups=pim.bank_groups, buffers=pim.fills_per_channel, buffer_slots=pim.buffer_columns,
            )  # fmt: skip
    result = packing.added(partial[:, :width], len(edges.rowptr) - 1)
    assert edges.error(result, edges.weight) < 1e-6


@settings(max_examples=20)
@given(drawn_edges(), machines())
def test_every_pair_of_ends_has_its_own_place(edges: Edges, pim: PimSpec) -> None:
    packing = pack(edges.rowptr, edges.col, pim)
    fill = packing.fill[packing.unit[packing.cell]]
    places = set(zip(fill.tolist(), packing.slot[packing.cell].tolist(), packing.lane.tolist(), strict=True))
    matrix = csr_matrix((np.ones(len(edges.col)), edges.col, edges.rowptr), (len(edges.rowptr) - 1, 1500), copy=True)
    matrix.sum_duplicates()
    assert len(places) == matrix.nnz
    destinations = np.repeat(np.arange(len(edges.rowptr) - 1), np.diff(edges.rowptr))
    assert (packing.destination[packing.unit[packing.cell]] == destinations).all()
    sources = (packing.block[fill] * packing.columns + packing.column[packing.cell]) * packing.lanes + packing.lane
    assert (sources == edges.col).all()
    if not pim.any_slot_any_column:
        assert (packing.slot == packing.column).all()


def test_commands_match_the_statistics() -> None:
    """A COMP for every group that holds an edge, a READRES for every block with one: nothing for empty ones."""
    edges = random_edges(1500, 200, 2000, 16, 3)
    rows = [np.sort(edges.col[a:b]) for a, b in zip(edges.rowptr[:-1], edges.rowptr[1:], strict=True)]
    graph = statistics_of(Graph.from_csr(edges.rowptr, np.concatenate(rows), 1500))
    assert graph.duplicates
    program, packing = edges.program(SpmmMapping(1, False, "hidden"), PIM)
    commands = [count_commands(stream.body) for stream in program.streams]
    assert sum(counts.comp for counts in commands) == packing.cells == graph.groups
    assert sum(counts.readres for counts in commands) == packing.units == graph.blocks
    assert graph.fills <= packing.fills <= 1.1 * graph.fills


def test_a_row_stays_open_for_all_destinations() -> None:
    dense = random_edges(512, 100, 1500, 16 * PIM.channels, 5)
    counts = one_channel(dense)
    assert counts.g_act == PIM.bank_groups
    assert counts.readres >= 99


def test_destinations_share_a_fill() -> None:
    """32 destinations, each with one group of its own, share one GWRITE; with the same group they cannot."""
    rowptr, apart = np.arange(33), np.arange(32) * 16
    features = np.ones((512, 16 * PIM.channels), np.float32)
    weight = np.ones(32, np.float32)
    assert one_channel(Edges(rowptr, apart, weight, features)).gwrite == 1
    assert one_channel(Edges(rowptr, apart % 16, weight, features)).gwrite == 32
    loose = replace(PIM, any_slot_any_column=True)
    assert one_channel(Edges(rowptr, apart % 16, weight, features), loose).gwrite == 1


def test_a_fill_writes_no_more_than_its_last_slot_in_use() -> None:
    features = np.ones((512, 16), np.float32)
    edges = Edges(np.array([0, 1]), np.array([40]), np.ones(1, np.float32), features)
    program, _ = edges.program(PLAIN, PIM)
    (gwrite,) = (command for command, _ in program.streams[0].expand() if isinstance(command, GWrite))
    assert gwrite.elements == 3 * 16


def test_dense_columns_are_loops() -> None:
    """The loop nest of a full row is short, however many COMPs it has."""
    edges = Edges(np.array([0, 512]), np.arange(512), np.ones(512, np.float32), np.ones((512, 16), np.float32))
    program, _ = edges.program(PLAIN, PIM)
    assert count_commands(program.streams[0].body).comp == block_columns(PIM) == 32
    assert len(program.streams[0].body) <= 1 + PIM.bank_groups + 2


@pytest.mark.parametrize(("features", "lanes", "tiles"), [(16, 16, 1), (100, 2, 1), (256, 1, 1), (400, 1, 2)])
def test_channels_divide_tiles_then_destinations(features: int, lanes: int, tiles: int) -> None:
    parts = roles(features, PLAIN, PIM)
    assert max(role.tiles for role in parts) == tiles
    assert {role.lanes for role in parts} == {lanes}
    covered = [role.tile + turn * role.stride for role in parts if role.lane == 0 for turn in range(role.tiles)]
    assert sorted(covered) == list(range(-(-features // PIM.banks)))


def test_streams_too_long_to_store_are_refused() -> None:
    edges = random_edges(16_000, 4_000, MAX_ITEMS // 16, 512, 1)
    refusal = lower_spmm(edges.problem, pack(edges.rowptr, edges.col, PIM), PLAIN, PIM)
    assert isinstance(refusal, Refusal)
    assert refusal.bound == MAX_ITEMS
    assert refusal.demand is not None
    assert refusal.demand > MAX_ITEMS
    assert "no two of them alike" in refusal.reason


def test_more_rows_than_the_banks_have_are_refused() -> None:
    edges = random_edges(5_000, 50, 400, 16, 1)
    packing = pack(edges.rowptr, edges.col, PIM)
    refusal = lower_spmm(edges.problem, packing, PLAIN, replace(PIM, rows=4))
    assert isinstance(refusal, Refusal)
    assert (refusal.demand, refusal.bound) == (10, 4)


def test_a_wrong_column_gives_a_wrong_value() -> None:
    """The streams alone determine the computed values."""
    edges = random_edges(600, 30, 90, 16, 2)
    program, packing = edges.program(PLAIN, PIM)
    right = execute_spmm(program, packing, edges.features, edges.weight, "fp32")
    stream = program.streams[0]
    (place, comp) = next((place, item) for place, item in enumerate(stream.body) if isinstance(item, Comp))
    moved = replace(comp, column=comp.column.plus(1 if comp.column.base < 31 else -1))
    body = (*stream.body[:place], moved, *stream.body[place + 1 :])
    wrong = replace(program, streams=(replace(stream, body=body), *program.streams[1:]))
    assert relative_error(execute_spmm(wrong, packing, edges.features, edges.weight, "fp32"), right) > 1e-3
    first = next(place for place, item in enumerate(stream.body) if isinstance(item, GWrite))
    bare = replace(stream, body=(*stream.body[:first], *stream.body[first + 1 :]))
    unfilled = replace(program, streams=(bare, *program.streams[1:]))
    with pytest.raises(CommandOrderError):
        execute_spmm(unfilled, packing, edges.features, edges.weight, "fp32")


def test_operands_are_rounded_as_the_machine_holds_them() -> None:
    edges = random_edges(300, 40, 500, 24, 8)
    program, packing = edges.program(PLAIN, PIM)
    matrix = csr_matrix((edges.weight, edges.col, edges.rowptr), (40, 300), copy=True)
    matrix.sum_duplicates()  # duplicates share one weight in a buffer
    assert matrix.nnz < len(edges.col)
    matrix.data = matrix.data.astype(np.float16).astype(np.float32)
    expected = np.asarray(matrix @ edges.features.astype(np.float16).astype(np.float32), np.float32)
    found = execute_spmm(program, packing, edges.features, edges.weight)
    assert relative_error(found, expected) < 1e-5
    assert relative_error(found, edges.by_scipy(edges.weight)) > 1e-5
