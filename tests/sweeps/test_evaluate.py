"""Points: their identity and their results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import pimflow
from pimflow.data import Table
from pimflow.search import makespan_bound
from pimflow.sweeps import evaluate as module
from pimflow.sweeps.evaluate import Task, evaluate, key_of, machine_of
from pimflow.sweeps.study import Point

POINT = Point("zoo:toy", "", "pimflow", "md-dp", Table({"pim.channels": 8}))


def key(point: Point = POINT, model: str = "m", graph: str = "", **options: Any) -> str:
    return key_of(point, model, graph, options)


def task(*points: Point, **options: Any) -> Task:
    keys = tuple(key_of(point, "m", "", options) for point in points)
    return Task(points, keys, "m", "", options, ("pim.channels",))


def test_a_key_changes_with_every_relevant_value() -> None:
    others = [
        key(model="n"),
        key(graph="g"),
        key(replace(POINT, policy="auto")),
        key(replace(POINT, target="hbm-pim")),
        key(replace(POINT, values=Table({"pim.channels": 4}))),
        key(replace(POINT, values=Table({"pim.energy.strict.mac_pj": 9.0}))),
        key(replace(POINT, values=Table({"pim.channels": 40}))),
        key(replace(POINT, values=Table({"pim.channels": 41}))),
        key(grid=5),
    ]
    assert len({key(), *others}) == len(others) + 1


def test_a_key_does_not_depend_on_how_a_machine_is_spelled() -> None:
    spelled = Table({"gpu.sms": pimflow.load_target("pimflow").values["gpu.sms"], "pim.channels": 8})
    assert key(replace(POINT, values=spelled)) == key()
    named = Table({"pim.channels": 8, "description": "another"})
    assert key(replace(POINT, values=named)) == key()


def test_edited_code_has_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    monkeypatch.setattr(module, "code_fingerprint", lambda also: "edited")
    assert key() != before


@pytest.mark.parametrize("policy", ["md-dp", "auto"])
@pytest.mark.parametrize("target", ["pimflow", "hbm-pim"])
def test_figures_are_those_of_a_compilation(policy: str, target: str) -> None:
    """Units of one machine are reused for another; prices of one must never be used for the other."""
    points = [
        Point("zoo:toy", "", target, policy, Table(values))
        for values in ({}, {"pim.channels": 20}, {"gpu.clock_mhz": 900}, {"pim.channels": 20, "gpu.clock_mhz": 900})
    ]
    outcomes = [outcome for point in points for outcome in evaluate(task(point, grid=10))]
    assert len({outcome.figures["time_us"] for outcome in outcomes}) >= 3
    for point, outcome in zip(points, outcomes, strict=True):
        machine = pimflow.override(target, point.values)
        report = pimflow.compile("zoo:toy", target=machine, policy=policy, grid=10, use_cache=False).report
        assert outcome.status == "ok"
        assert outcome.figures["time_us"] == report.result.time_us
        assert outcome.figures["energy_mj"] == report.result.energy_mj
        assert outcome.figures["baseline_us"] == report.baseline.time_us
        assert outcome.machine == {"pim.channels": machine.values["pim.channels"]}


def test_inferences_in_flight_have_an_interval_of_their_own() -> None:
    points = replace(POINT, policy="pimflow"), replace(POINT, policy="gpu")
    for point in points:
        (alone,), (flying,) = (evaluate(task(point, objective=which)) for which in ("latency", "throughput"))
        assert alone.figures["interval_us"] == alone.figures["time_us"]
        assert alone.figures["rate_speedup"] == alone.figures["speedup"]
        interval = flying.figures["interval_us"]
        compiled = pimflow.compile(
            "zoo:toy", target=machine_of(point), policy=point.policy, objective="throughput", use_cache=False
        )
        steady = compiled.steady_report
        assert steady is not None
        assert interval == pytest.approx(steady.interval_us, abs=1e-3)
        assert (interval < flying.figures["time_us"]) == (point.policy == "pimflow")
        assert flying.figures["rate_speedup"] == pytest.approx(flying.figures["baseline_us"] / interval)


def test_invalid_points_are_an_outcome() -> None:
    wrong = [
        replace(POINT, values=Table({"pim.channels": 40})),
        replace(POINT, target="upmem", policy="newton+", values=Table({})),
    ]
    machine, policy = (evaluate(replace(task(point), shown=()))[0] for point in wrong)
    assert (machine.status, policy.status) == ("invalid", "invalid")
    assert "'pim.channels' must be below gpu.memory_channels" in machine.reason
    assert "newton+" in policy.reason
    assert machine.figures == {}


def test_a_bug_is_reported_and_does_not_end_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: object, **_more: object) -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr(module, "compare_graph", broken)
    (outcome,) = evaluate(task(POINT))
    assert (outcome.status, outcome.reason) == ("failed", "ZeroDivisionError: by zero")


def test_another_machine_needs_no_clean_up_and_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate(task(POINT))

    def refuse(*_arguments: object) -> None:
        raise AssertionError("computed again, or needlessly")

    for place, name in ((module, "tidy"), (module, "read_model"), (makespan_bound, "makespan_bound")):
        monkeypatch.setattr(place, name, refuse)
    (outcome,) = evaluate(task(replace(POINT, values=Table({"pim.channels": 12}))))
    assert outcome.status == "ok"


def test_passes_that_are_left_out_make_another_graph() -> None:
    plain, unfused = (evaluate(task(POINT, **options))[0] for options in ({}, {"disabled_passes": ["fuse-epilogues"]}))
    assert plain.figures["baseline_us"] < unfused.figures["baseline_us"]
