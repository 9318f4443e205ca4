"""`pimflow trace`: text that times as the report says."""

from __future__ import annotations

from pathlib import Path

from support.cli import Capture, document, run


def test_a_trace_times_as_the_report_says(tmp_path: Path, capsys: Capture) -> None:
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
