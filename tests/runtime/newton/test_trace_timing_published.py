"""Published traces: the oracle, the engine over nests and the text timer all agree with the published simulator."""

from __future__ import annotations

import pytest

from pimflow.codegen.newton.commands import CommandStream
from pimflow.runtime.newton.trace_timing import simulate_file
from support.newton import oracle_artifact
from support.newton.published_traces import CASES, COUNTS, EXPECTED, expected, path, read_trace
from support.newton.streams import PIM, artifact_word
from support.newton.timing import time_stream


def test_all_published_traces_exist_and_differ() -> None:
    assert len(EXPECTED) == 34
    assert len({expected(*case)["cycles"] for case in CASES}) > 60


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_oracle(name: str) -> None:
    words = [artifact_word(command) for command in read_trace(path(name), PIM)]
    for latency, gwrite_to_next in (("hidden", 1), ("exposed", 64)):
        want = expected(name, latency)
        machine = oracle_artifact.Published(gwrite_to_next=gwrite_to_next)
        cycles, issued, _ = oracle_artifact.simulate(words, machine)
        acts = sum(issued[f"G_ACT{group}"] for group in range(4))
        counts = (issued["GWRITE"], acts, issued["COMP"], issued["READRES"], issued["PREA"], issued["REF"])
        assert (cycles, *counts) == (want["cycles"], *(want[key] for key in COUNTS))


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_engine(name: str) -> None:
    whole = CommandStream(0, tuple(read_trace(path(name), PIM)))
    for latency in ("hidden", "exposed"):
        want = expected(name, latency)
        timing = time_stream(whole, PIM, "artifact", latency)
        counts = timing.commands
        got = (counts.gwrite, counts.g_act, counts.comp, counts.readres, timing.prea, timing.ref)
        assert (timing.cycles, *got) == (want["cycles"], *(want[key] for key in COUNTS))


@pytest.mark.parametrize(("name", "latency"), CASES)
def test_text_timer_with_energy_to_six_digits(name: str, latency: str) -> None:
    want = expected(name, latency)
    result = simulate_file(path(name), PIM, "artifact", latency)
    document = result.as_json()
    names = ("GWRITE", "G_ACT", "COMP", "READRES", "PREA", "REF")
    assert document["cycles"] == want["cycles"]
    assert document["commands"] == {key: want[key.lower()] for key in names}
    energy = {("total" if part == "Total" else part): f"{joules:.6g}" for part, joules in want["energy_j"].items()}
    got = {**dict(result.energy.parts_j), "total": result.energy.total_j}
    assert {part: f"{joules:.6g}" for part, joules in got.items()} == energy
    assert document["energy_parts_mj"] == {part: joules * 1e3 for part, joules in result.energy.parts_j}
    assert document["energy_mj"] == sum(document["energy_parts_mj"].values())
    assert document["time_us"] == document["cycles"] / PIM.clock_mhz
