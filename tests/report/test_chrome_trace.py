"""The Chrome trace: nested slices, a limit with a note, byte-stable files."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pimflow
from pimflow.report import chrome_trace as traces
from pimflow.report.chrome_trace import slice_facts
from pimflow.runtime.spending import event_costs
from pimflow.runtime.timeline import Timeline, build_timeline
from pimflow.targets import load_target
from support.jobs import Job, costs_of, graph_of


def timeline_of(jobs: list[Job]) -> Timeline:
    return build_timeline(graph_of(jobs), load_target("pimflow"), costs_of(jobs))


def chrome_trace(*given: Any, **named: Any) -> dict[str, Any]:
    """The trace with its entries in a list."""
    trace = traces.chrome_trace(*given, **named)
    return {**trace, "traceEvents": list(trace["traceEvents"])}


def slices(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


TITLES = {"gpu": "GPU stream", "pim": "PIM channels"}
JOBS = [
    Job("a", "gpu", 5.5),
    Job("b", "pim", 3.25, stage=1),
    Job("free", "gpu", 0, ("a", "b")),
    Job("c", "gpu", 2, ("free",), region=1),
]


def test_slices_carry_times_and_their_tracks() -> None:
    trace = chrome_trace(timeline_of(JOBS), TITLES, "toy")
    found = {event["name"]: (event["ts"], event["dur"], event["args"]) for event in slices(trace)}
    assert found == {
        "a": (0, 5.5, {"region": 0}),
        "b": (0, 3.25, {"region": 0, "stage": 1}),
        "c": (5.5, 2, {"region": 1}),
        "region 0": (0, 5.5, {}),
    }
    named = {event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"}
    assert named == {"toy", "GPU stream", "PIM channels", "Regions"}
    assert all(event["tid"] != event["pid"] for event in slices(trace))  # viewers mark such a thread as "main"
    energy_mj = {"gpu": 15, "pim": 3.25}
    assert trace["otherData"] == {"format": "pimflow-timeline/1", "makespan_us": 7.5, "energy_mj": energy_mj}


def test_arguments_of_slices_add_up_to_what_is_drawn_and_spent() -> None:
    target = load_target("pimflow")
    target = target.with_units(pim=replace(target.pim, transfer_gb_per_s=16.0))
    model = pimflow.compile("zoo:toy", target=target, policy="pim", use_cache=False)
    costs = model.machine.costs
    events = event_costs(model.graph, model.timeline, costs)
    trace = chrome_trace(model.timeline, costs.titles, costs=events)
    drawn = [event for event in slices(trace) if event["args"]]
    assert {event["cat"] for event in drawn} == {"gpu", "pim", "transfer"}
    spent = trace["otherData"]["energy_mj"]["static"]
    for event in drawn:
        args = event["args"]
        assert sum(args["time_parts_us"].values()) == pytest.approx(event["dur"], abs=1e-3)
        assert sum(args["energy_parts_mj"].values()) == args["energy_mj"]
        assert model.graph.node(event["name"]).kind == args["op"]
        spent += args["energy_mj"]
    assert {"load", "store"} <= {part for event in drawn for part in event["args"]["time_parts_us"]}
    assert spent == pytest.approx(model.report.result.energy_mj, rel=1e-12)
    assert sum(event["args"]["share_us"] for event in drawn) == pytest.approx(model.report.result.time_us)


@given(st.lists(st.floats(0.0001, 30.0), min_size=1, max_size=30))
@settings(max_examples=50)
def test_slices_on_a_track_do_not_overlap_after_rounding(durations: list[float]) -> None:
    jobs = [Job(f"j{i}", "pim" if i % 3 else "gpu", time, (), i // 4) for i, time in enumerate(durations)]
    ends: dict[int, int] = {}
    for event in sorted(slices(chrome_trace(timeline_of(jobs), TITLES)), key=lambda event: event["ts"]):
        start, duration = round(event["ts"] * 1000), round(event["dur"] * 1000)  # Perfetto counts in nanoseconds
        assert start >= ends.get(event["tid"], 0)
        ends[event["tid"]] = start + duration


def test_events_beyond_the_cap_are_left_out_with_a_note() -> None:
    jobs = [Job(f"j{i}", "gpu", 1, region=i) for i in range(20)]
    trace = chrome_trace(timeline_of(jobs), TITLES, max_events=5)
    assert [event["name"] for event in slices(trace)] == [f"j{i}" for i in range(5)]
    assert trace["otherData"]["events_left_out"] == 15
    assert [event["name"] for event in trace["traceEvents"] if event["ph"] == "i"] == ["15 later events are left out"]


@pytest.fixture(scope="module")
def trace() -> tuple[pimflow.CompiledModel, dict[str, Any]]:
    """A network with nodes split between two devices, and pipelines."""
    model = pimflow.compile("zoo:mobilenet-v2", policy="pimflow", use_cache=False, check=False)
    return model, model.chrome_trace()


def counter(trace: dict[str, Any], name: str) -> list[tuple[float, float]]:
    return [(event["ts"], event["args"]["value"]) for event in trace["traceEvents"] if event.get("name") == name]


def area(levels: list[tuple[float, float]]) -> float:
    return sum(level * (after - before) for (before, level), (after, _) in pairwise(levels))


def test_counters_add_up_to_what_is_reported(trace: tuple[pimflow.CompiledModel, dict[str, Any]]) -> None:
    model, found = trace
    assert area(counter(found, "power, W")) * 1e-3 == pytest.approx(model.report.result.energy_mj, rel=1e-4)
    moved = sum(event["args"].get("bytes", 0) for event in slices(found) if event["cat"] == "gpu")
    assert area(counter(found, "host memory, GB/s")) * 1e3 == pytest.approx(moved, rel=1e-3)
    live = counter(found, "live bytes")
    assert max(level for _, level in live) == model.memory.live_bytes
    assert live[-1][0] == pytest.approx(model.timeline.makespan_us, abs=1e-3)
    assert live[-1][1] == 0


def test_a_units_slice_has_the_bytes_of_its_operands_and_results(
    trace: tuple[pimflow.CompiledModel, dict[str, Any]],
) -> None:
    model, found = trace
    on_unit = [event for event in slices(found) if event["cat"] == "pim"]
    assert on_unit
    for event in on_unit:
        node = model.graph.node(event["name"])
        assert event["args"]["bytes"] == 2 * sum(
            model.graph.value(name).elements for name in {*node.inputs, node.output}
        )


def test_channels_work_within_their_units_slice(trace: tuple[pimflow.CompiledModel, dict[str, Any]]) -> None:
    _, found = trace
    whole = {event["name"]: event for event in slices(found) if event["cat"] == "pim"}
    channels: dict[str, list[dict[str, Any]]] = {}
    for event in slices(found):
        if event["cat"] == "channel":
            channels.setdefault(event["name"], []).append(event)
    assert channels.keys() == whole.keys()
    for name, lanes in channels.items():
        last = max(lane["ts"] + lane["dur"] for lane in lanes)
        assert last == pytest.approx(whole[name]["ts"] + whole[name]["dur"], abs=2e-3)
        assert min(lane["ts"] for lane in lanes) >= whole[name]["ts"]
        assert len({lane["tid"] for lane in lanes}) == len(lanes) <= 16
    process = next(event["pid"] for event in slices(found) if event["cat"] == "channel")
    named = {event["args"]["name"] for event in found["traceEvents"] if event["ph"] == "M" and event["pid"] == process}
    assert named == {"PIM channels", *(f"channel {number}" for number in range(16))}


def test_arrows_join_slices_on_two_devices(trace: tuple[pimflow.CompiledModel, dict[str, Any]]) -> None:
    _, found = trace
    ends: dict[int, dict[str, dict[str, Any]]] = {}
    for event in found["traceEvents"]:
        if event["ph"] in "sf":
            ends.setdefault(event["id"], {})[event["ph"]] = event
    assert {arrow["s"]["name"] for arrow in ends.values()} == {"split", "stage"}
    for arrow in ends.values():
        start, finish = arrow["s"], arrow["f"]
        assert start["tid"] != finish["tid"]
        assert start["ts"] <= finish["ts"]
        joined = [slice_at(found, event) for event in (start, finish)]
        same_origin = joined[0]["args"]["origin"] == joined[1]["args"]["origin"]
        assert same_origin == (start["name"] == "split")
        assert joined[0]["args"]["region"] == joined[1]["args"]["region"]


def slice_at(trace: dict[str, Any], end: dict[str, Any]) -> dict[str, Any]:
    (found,) = [
        event
        for event in slices(trace)
        if (event["pid"], event["tid"]) == (end["pid"], end["tid"])
        and round(event["ts"] * 1e3) <= round(end["ts"] * 1e3) < round((event["ts"] + event["dur"]) * 1e3)
    ]
    return found


def test_no_operand_is_looked_at_for_arrows_where_everything_runs_on_one_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = pimflow.compile("zoo:toy", policy="gpu", use_cache=False, check=False)
    monkeypatch.setattr("pimflow.report.tracks._sources", None)
    kinds = {entry["ph"] for entry in compiled.trace_in_pieces()["traceEvents"]}
    assert "X" in kinds
    assert not kinds & {"s", "f"}


def test_slices_describe_their_node(trace: tuple[pimflow.CompiledModel, dict[str, Any]]) -> None:
    model, found = trace
    rows = {row.name: row for row in model.report.nodes}
    made: dict[str, float] = {}
    for event in slices(found):
        if event["cat"] not in ("gpu", "pim"):
            continue
        args = event["args"]
        row = rows[args["origin"]]
        assert args["why"] == row.why
        assert ("commands" in args) == ("cycles" in args) == (event["cat"] == "pim")
        if event["cat"] == "pim":
            made[row.name] = made.get(row.name, 0.0) + args["fraction"]
    assert made == pytest.approx({name: row.fractions["pim"] for name, row in rows.items() if row.fractions["pim"]})


def test_channels_fill_the_remaining_capacity(trace: tuple[pimflow.CompiledModel, dict[str, Any]]) -> None:
    model, _ = trace
    costs = model.machine.costs
    facts = slice_facts(model.graph, model.report, costs)
    few = chrome_trace(model.timeline, costs.titles, facts=facts, max_events=150)
    assert len([event for event in slices(few) if event["cat"] != "region"]) == 150
