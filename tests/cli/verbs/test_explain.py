"""`pimflow explain`: a node of a folder, as text and as JSON."""

from __future__ import annotations

from pathlib import Path

from support.cli import Capture, assert_one_line, document, run


def test_a_node_of_a_folder(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "out"
    assert run("compile", "zoo:toy", "-o", folder, "--policy", "pim", "--no-cache") == 0
    found = document(capsys, "explain", folder, "conv1")
    assert found["node"]["name"] == "conv1"
    assert [item["what"] for item in found["alternatives"] if item["chosen"]] == ["PIM, auto"]
    assert run("explain", folder, "conv1") == 0
    assert "* PIM, auto" in capsys.readouterr().out
    assert run("explain", folder, "conv1", "-q") == 0
    assert capsys.readouterr().out == ""
    assert run("explain", folder, "conv7") == 2
    assert_one_line(capsys, "no node 'conv7'; did you mean 'conv")
