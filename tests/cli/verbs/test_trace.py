"""`pimflow trace`: the text takes the time that the report gives."""

from __future__ import annotations

from pathlib import Path

from support.cli import Capture, assert_one_line, document, run


def test_a_trace_takes_the_time_in_the_report(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "out"
    plan = document(capsys, "compile", "zoo:toy", "-o", folder, "--policy", "pim", "--no-cache")
    nodes = {node["name"]: node for node in plan["nodes"]}
    name = max(nodes, key=lambda item: nodes[item]["pim_cycles"])
    cycles, comps = [], 0
    for channel in range(16):
        assert run("trace", folder, name, "--channel", str(channel)) == 0
        path = tmp_path / f"{channel}.pim"
        path.write_text(capsys.readouterr().out)
        (timed,) = document(capsys, "simulate", path)["traces"]
        cycles.append(timed["cycles"])
        comps += timed["commands"]["COMP"]
    assert max(cycles) == nodes[name]["pim_cycles"]
    assert comps == nodes[name]["commands"]["COMP"]


def test_for_a_node_without_commands_the_error_lists_others(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "out"
    assert run("-q", "compile", "zoo:toy", "-o", folder, "--policy", "pim", "--no-cache") == 0
    for node, words in {
        "depthwise": "node 'depthwise' does not run on PIM; those that do are conv1, conv2, linear",
        "linera": "no node 'linera' runs on PIM; did you mean 'linear'?",
        "x": "no node 'x' runs on PIM; those that do are conv1, conv2, linear",
    }.items():
        assert run("trace", folder, node) == 2
        assert_one_line(capsys, words)
    assert run("-q", "compile", "zoo:toy", "-o", folder, "--policy", "gpu", "--no-cache") == 0
    assert run("trace", folder, "conv1") == 2
    assert_one_line(capsys, "does not run on PIM; none does")
    assert run("-q", "compile", "zoo:toy", "-o", folder, "--policy", "pim", "--target", "rtx3090", "--no-cache") == 0
    assert run("trace", folder, "conv1") == 2
    assert_one_line(capsys, "node 'conv1' runs on CPU, not on PIM; none does")
