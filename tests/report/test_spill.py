"""Reports on activations that do not fit: the figures add up, and suffice for a replay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pimflow
from pimflow.compiled import CompiledModel
from pimflow.frontend.load import load_model
from pimflow.runtime.offload.run import ActivationPlan
from pimflow.runtime.offload.spill import Spill, channel_of
from pimflow.runtime.spending import STATIC
from support.offload import Clock, compiled_short
from support.schemas import check

PROCESS = "activations leave and come back"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled_short()[0].save(tmp_path_factory.mktemp("spill") / "out")


def short() -> tuple[CompiledModel, Spill]:
    return compiled_short()


def of_process(folder: Path) -> tuple[dict[int, str], list[dict[str, Any]], dict[str, Any]]:
    """Tracks by number, entries, and the overall metadata."""
    trace = json.loads((folder / "timeline.json").read_text())
    entries = trace["traceEvents"]
    (number,) = (e["pid"] for e in entries if e["name"] == "process_name" and e["args"]["name"] == PROCESS)
    own = [entry for entry in entries if entry["pid"] == number]
    return {e["tid"]: e["args"]["name"] for e in own if e["name"] == "thread_name"}, own, trace["otherData"]["spilled"]


def test_slices_add_up_to_the_time_and_the_energy(folder: Path) -> None:
    model, spill = short()
    tracks, entries, told = of_process(folder)
    run = spill.found.run
    slices = [entry for entry in entries if entry["ph"] == "X"]
    kernels = [entry for entry in slices if entry["cat"] in ("run", "again")]
    assert told["makespan_us"] == run.time_us
    assert sum(entry["dur"] for entry in kernels) == pytest.approx(run.time_us - run.stall_us, abs=1e-2)
    again = sum(entry["dur"] for entry in kernels if entry["cat"] == "again")
    assert run.recompute_us > 0
    assert run.recompute_us <= again + 1e-2
    moved = [entry for entry in slices if tracks[entry["tid"]] == "SSD"]
    assert sum(e["args"]["bytes"] for e in moved if e["cat"] == "store") == run.bytes_of("store", spill.trace)
    ends = [round(entry["ts"] + entry["dur"], 3) for entry in moved]
    assert all(entry["ts"] >= end for entry, end in zip(moved[1:], ends, strict=False)), "one at a time"
    assert model.machine.target.memory is not None
    ssd = model.machine.target.memory.ssd
    assert ssd is not None
    events_mj = sum(entry["args"]["energy_mj"] for entry in slices)
    static_mj = told["energy_mj"][STATIC]
    assert sum(told["energy_mj"].values()) == pytest.approx(events_mj + static_mj + ssd.idle_w * run.time_us * 1e-3)
    assert static_mj / run.time_us == pytest.approx(model.timeline.energy_mj[STATIC] / model.timeline.makespan_us)


def test_the_peak_of_live_bytes_is_as_promised(folder: Path) -> None:
    _, spill = short()
    _, entries, _ = of_process(folder)
    fixed = sum(buffer.bytes for buffer in spill.trace.buffers if buffer.fixed)
    levels = [entry["args"]["value"] for entry in entries if entry["name"] == "live bytes"]
    assert max(levels) == spill.found.run.peak_bytes + fixed <= spill.arena_bytes


def test_rows_are_all_that_a_replay_needs(folder: Path) -> None:
    """A tick-by-tick simulation of the rows of plan.json takes the same time and has the same peak."""
    model, spill = short()
    told = json.loads((folder / "plan.json").read_text())["memory"]["spill"]
    steps = {kernel.name: place for place, kernel in enumerate(spill.trace.kernels)}
    buffers = {buffer.name: number for number, buffer in enumerate(spill.trace.buffers)}
    rows = told["activations"]
    loads = [(buffers[row["name"]], steps[row["before"]]) for row in rows if row["becomes"] == "offloaded"]
    order = {transfer.buffer: place for place, transfer in enumerate(spill.found.run.transfers)}
    again = {
        buffers[row["name"]]: tuple(steps[step] for step in row["again"])
        for row in rows
        if row["becomes"] == "recomputed"
    }
    plan = ActivationPlan(tuple(sorted(loads, key=lambda load: (load[1], order[load[0]]))), again)
    channel = channel_of(model.machine.target)
    assert channel is not None
    time_us, peak = Clock(spill.trace, plan, channel, told["limit_bytes"], tick_us=0.05).run()
    assert told["time_us"] == pytest.approx(time_us, rel=0.05)
    assert peak == spill.found.run.peak_bytes


def test_nodes_show_the_fate_of_their_outputs(folder: Path) -> None:
    _, spill = short()
    graph = load_model(folder / "model.onnx", annotations=True)
    notes = {name: text for node in graph.nodes for key, text in node.tags for name in node.outputs if key == "spill"}
    plan, named = spill.found.plan, spill.trace.buffers
    assert {name for name, text in notes.items() if text.startswith("offloaded, loaded again before ")} == {
        named[buffer].name for buffer in plan.offloaded if named[buffer].name not in graph.inputs
    }
    assert {name for name, text in notes.items() if text.startswith("recomputed before ")} == {
        named[buffer].name for buffer in plan.recomputed
    }
    again = pimflow.load(folder)
    assert again.spill is not None
    assert again.spill.found == spill.found


def test_files_match_their_schemas(folder: Path) -> None:
    for kind in ("plan", "timeline", "memory"):
        check(json.loads((folder / f"{kind}.json").read_text()), kind)


def test_both_energies_are_shown() -> None:
    model, _ = short()
    (line,) = (line for line in model.summary().splitlines() if line.startswith("energy"))
    assert " if all activations are kept, " in line
    schedule = model.spilled_schedule
    assert schedule is not None
    assert model.document()["memory"]["spill"]["energy_mj"] == schedule.total_energy_mj > model.report.result.energy_mj
