"""`pimflow inspect`: what can run on PIM, and why not."""

from __future__ import annotations

from pathlib import Path

from support.cli import Capture, document, run

EXPORTED = Path(__file__).parents[2] / "data" / "exported"


def test_inspect_says_what_the_clean_ups_left_and_why(capsys: Capture) -> None:
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
