"""`pimflow inspect`: what can run on PIM, and why not."""

from __future__ import annotations

from pathlib import Path

from support.cli import Capture, document, run

EXPORTED = Path(__file__).parents[2] / "data" / "exported"


def test_inspect_lists_what_the_clean_ups_left_and_why(capsys: Capture) -> None:
    note = "fold-batch-norm: /layers.1/layers.1.0/layers.1.0.0/BatchNormalization: /Concat_1 cannot absorb it"
    assert note in document(capsys, "inspect", EXPORTED / "densenet.onnx")["notes"]
    assert run("inspect", EXPORTED / "densenet.onnx") == 0
    assert f"\n{note}\n" in capsys.readouterr().out
    assert document(capsys, "inspect", "zoo:toy")["notes"] == []


def test_inspect_says_why_not(capsys: Capture) -> None:
    report = document(capsys, "inspect", "zoo:toy")
    nodes = {node["name"]: node for node in report["nodes"]}
    assert nodes["conv1"]["can_pim"]
    assert not nodes["depthwise"]["can_pim"]
    assert "depthwise" in nodes["depthwise"]["reason"]
    assert run("inspect", "zoo:toy", "--text") == 0
    assert "conv1" in capsys.readouterr().out


def test_an_output_folder_is_inspected_with_its_machine_and_verification(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    assert run("compile", "zoo:toy", "--target", "hbm-pim", "-o", out, "--no-cache") == 0
    assert document(capsys, "inspect", out)["verification"] == []
    assert run("inspect", out) == 0
    assert "pimflow verify` checks it" in capsys.readouterr().out
    assert run("verify", out) == 0
    told = document(capsys, "inspect", out)
    (check,) = told.pop("verification")
    assert check["passed"]
    assert check["told"].startswith("1 output, largest relative error 0.0e+00")
    whole = document(capsys, "inspect", "zoo:toy", "--target", "hbm-pim")
    assert {key: told[key] for key in whole if key != "command"} == {k: v for k, v in whole.items() if k != "command"}
    assert run("inspect", out) == 0
    assert f"\nverified  {check['told']}\n" in capsys.readouterr().out


def test_an_output_folder_accepts_no_options(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    assert run("compile", "zoo:toy", "-o", out, "--no-cache") == 0
    capsys.readouterr()
    assert run("inspect", out, "--target", "hbm-pim") == 2
    assert "it has options of its own; leave them out" in capsys.readouterr().err
