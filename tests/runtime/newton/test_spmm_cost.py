"""Cycles of aggregations against the step-by-step oracles, and the fastest way to divide them among channels."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pimflow.codegen.newton.commands import CommandStream
from pimflow.codegen.newton.spmm import SpmmMapping, pack
from pimflow.ir import Refusal
from pimflow.runtime.newton.spmm_cost import SpmmCost, fastest_program, spmm_cost
from pimflow.sparse.groups import split_dense
from pimflow.targets import PimSpec, load_target
from support.newton import oracle_artifact, oracle_strict
from support.newton.aggregation import Edges, dense_blocks, drawn_edges, drawn_mappings, random_edges
from support.newton.streams import PIM, artifact_word, strict_word
from support.newton.timing import time_stream, timer


def oracle(stream: CommandStream, pim: PimSpec, timing: str) -> tuple[int, Counter[str]]:
    commands = [command for command, _ in stream.expand()]
    if timing == "artifact":
        machine = oracle_artifact.Published(reopens_rows=True)
        return oracle_artifact.simulate([artifact_word(command) for command in commands], machine)[:2]
    jedec = oracle_strict.Jedec(**dataclasses.asdict(pim.timing.strict), readres_bytes=pim.banks * pim.result_bytes)
    return oracle_strict.simulate([strict_word(command) for command in commands], jedec)[:2]


@pytest.mark.parametrize("timing", ["strict", "artifact"])
@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@given(data=st.data(), edges=drawn_edges())
def test_cycles_match_the_oracles(timing: str, data: st.DataObject, edges: Edges) -> None:
    program, packing = edges.program(data.draw(drawn_mappings(PIM)), PIM)
    cost = spmm_cost(program, packing, timer(PIM, timing))
    slowest = 0
    for entry in program.classes:
        cycles, issued = oracle(entry.stream, PIM, timing)
        found = time_stream(entry.stream, PIM, timing, "hidden", True)
        assert (found.cycles, found.ref, found.prea) == (cycles, issued["REF"], issued["PREA"])
        for channel in entry.channels:  # the streams of a class take as long as its first one
            assert time_stream(program.streams[channel], PIM, timing, "hidden", True) == found
        slowest = max(slowest, cycles)
    assert cost.cycles == slowest
    assert cost.comps_on_closed_rows == 0
    assert cost.parts.total == cost.cycles


@pytest.mark.parametrize("timing", ["strict", "artifact"])
def test_cycles_of_dense_groups_match_the_oracles(timing: str) -> None:
    """As a split leaves them: rows without an edge, neighbouring columns in loops."""
    edges = dense_blocks(3, 64, 0.8, 400, 24)
    dense, _ = split_dense(edges.rowptr, edges.col, 16, 13)
    assert 0 < len(dense.col) < len(edges.col)
    part = replace(edges, rowptr=dense.rowptr, col=dense.col, weight=edges.weight[dense.positions])
    program, packing = part.program(SpmmMapping(2, True, "hidden"), PIM)
    found = spmm_cost(program, packing, timer(PIM, timing))
    assert found.cycles == max(oracle(entry.stream, PIM, timing)[0] for entry in program.classes)
    rows = np.repeat(np.arange(192), np.diff(edges.rowptr))
    _, sizes = np.unique(rows * 12 + edges.col // 16, return_counts=True)
    assert found.commands.comp == 2 * np.count_nonzero(sizes >= 13), "24 features are two tiles"


def best(edges: Edges, policy: str, pim: PimSpec = PIM, timing: str = "strict") -> SpmmCost:
    found = fastest_program(edges.problem, pack(edges.rowptr, edges.col, pim), policy, timer(pim, timing))
    assert not isinstance(found, Refusal), found
    return found[1]


@pytest.mark.parametrize("width", [16, 256])
@pytest.mark.parametrize("timing", ["strict", "artifact"])
def test_the_closed_forms_number_of_groups_is_near_the_best(width: int, timing: str) -> None:
    edges = random_edges(2048, 80, 1000, width, 7)
    clock = timer(PIM, timing)
    exact = [
        spmm_cost(*edges.program(SpmmMapping(number, early, "hidden"), PIM), clock).time_us
        for number in (1, 2, 4)
        for early in (False, True)
    ]
    assert best(edges, "auto", timing=timing).time_us <= 1.1 * min(exact)


def test_features_are_written_into_the_banks_every_time() -> None:
    """32 columns of 16 sources x 16 banks x 2 bytes per block, in bursts of 32 bytes; every channel holds a tile."""
    edges = random_edges(1024, 64, 500, 256, 1)
    cost = best(edges, "newton+")
    bus = PIM.timing.strict
    assert cost.placement_cycles == 2 * 512 * 16 * 2 // 32 * 2 + bus.t_rcd + bus.t_rp
    assert cost.time_us == pytest.approx((cost.placement_cycles + cost.cycles) / PIM.clock_mhz)
    assert cost.energy_parts_mj["placement"] > 0


def test_hidden_fills_and_more_buffers_are_no_slower() -> None:
    edges = random_edges(4096, 200, 3000, 16, 4)
    assert best(edges, "auto").time_us < best(edges, "newton+").time_us


@pytest.mark.parametrize("target", ["aim-gddr6", "hbm-pim", "turing-pim"])
def test_other_machines(target: str) -> None:
    pim = load_target(target).pim
    cost = best(random_edges(1200, 70, 800, 40, 6), "auto", pim)
    assert cost.commands.comp > 0
    assert cost.rows > 0
