"""`pimflow inspect`: what can go to PIM, and why not."""

from __future__ import annotations

from support.cli import Capture, document, run


def test_inspect_says_why_not(capsys: Capture) -> None:
    report = document(capsys, "inspect", "zoo:toy")
    nodes = {node["name"]: node for node in report["nodes"]}
    assert nodes["conv1"]["can_pim"]
    assert not nodes["depthwise"]["can_pim"]
    assert "depthwise" in nodes["depthwise"]["reason"]
    assert run("inspect", "zoo:toy", "--text") == 0
    assert "conv1" in capsys.readouterr().out
