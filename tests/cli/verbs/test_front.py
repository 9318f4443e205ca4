"""`pimflow front`: time against energy."""

from __future__ import annotations

from support.cli import Capture, document, run


def test_front_prints_a_line_per_plan(capsys: Capture) -> None:
    found = document(capsys, "front", "zoo:mobilenet-v2", "--policy", "newton++")
    times, energies = ([point[key] for point in found["points"]] for key in ("time_us", "energy_mj"))
    assert times == sorted(times)
    assert energies == sorted(energies, reverse=True)
    assert found["policy"] == "newton++"
    assert run("front", "zoo:mobilenet-v2", "--policy", "newton++") == 0
    text = capsys.readouterr().out
    assert all(f"{energy:.2f}" in text for energy in energies)


def test_an_unknown_objective_is_one_line(capsys: Capture) -> None:
    assert run("compile", "zoo:toy", "--objective", "speed") == 2
    assert "'objective' is 'speed'" in capsys.readouterr().err
