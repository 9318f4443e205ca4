"""The results of a steady state, as figures, as text, and as a trace."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

import pimflow
from support.cli import Capture, document, run
from support.schemas import check


def test_throughput_from_the_command_line(capsys: Capture, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    asked = ("zoo:mobilenet-v3-small", "--objective", "throughput", "--no-check")
    found = document(capsys, "compile", *asked, "-o", folder)
    steady, baseline = found["steady_state"], found["baseline"]
    assert steady["interval_us"] == pytest.approx(max(steady["busy_us"].values()))
    assert steady["speedup"] == pytest.approx(baseline["time_us"] / steady["interval_us"])
    assert steady["speedup"] > found["result"]["speedup"]
    assert steady["bound_us"] <= steady["interval_us"] == pytest.approx(steady["bound_ratio"] * steady["bound_us"])
    assert steady["inferences_per_s"] == pytest.approx(1e6 / steady["interval_us"])
    result = found["result"]
    static_w = result["energy_parts_mj"]["static"]["board"] / result["time_us"]
    saved_mj = static_w * (result["time_us"] - steady["interval_us"])
    assert steady["energy_mj"] == pytest.approx(result["energy_mj"] - saved_mj)
    for name in ("plan", "timeline", "config"):
        check(json.loads((folder / f"{name}.json").read_text()), name)
    loaded = pimflow.load(folder)
    assert loaded.steady_report is not None
    assert loaded.steady_report.as_json() == steady
    assert f"{steady['in_flight']} inferences of" in loaded.summary()
    assert run("verify", folder) == 0
    assert "inferences ran in flight" in capsys.readouterr().out


def test_the_trace_shows_filling_steady_state_and_draining() -> None:
    compiled = pimflow.compile("zoo:mobilenet-v3-small", objective="throughput", check=False)
    steady = compiled.steady_state
    assert steady is not None
    events = compiled.chrome_trace()["traceEvents"]
    slices = [event for event in events if event["ph"] == "X" and event["cat"] in ("in flight", "phase")]
    by_track: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in slices:
        by_track.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in by_track.values():
        spans.sort()
        assert all(before[1] <= after[0] + 2e-3 for before, after in pairwise(spans))
    phases = {event["name"]: event["dur"] for event in slices if event["cat"] == "phase"}
    assert phases["steady state"] == pytest.approx(3 * steady.interval_us, abs=0.01)
    assert phases["fill"] == pytest.approx((steady.in_flight - 1) * steady.interval_us, abs=0.01)
    busy = sum(
        event["dur"] for event in slices if event["cat"] == "in flight" and event["name"].endswith("inference 0")
    )
    assert busy == pytest.approx(sum(steady.busy_us.values()), abs=0.5)


def test_a_plan_for_latency_has_no_steady_state() -> None:
    compiled = pimflow.compile("zoo:toy", check=False)
    assert compiled.steady_state is None
    assert compiled.memory_in_flight is None
    assert compiled.steady_report is None
    assert "steady_state" not in compiled.document()
    assert "interval" not in compiled.summary()
