"""Timed traces, as a table and as JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

import pimflow
from pimflow.codegen.backend import Backend
from pimflow.errors import OptionError
from pimflow.report.traces import report_traces
from pimflow.runtime.backends import units_of
from pimflow.runtime.newton.cost import PimCost
from pimflow.targets import load_target, override

TARGET = load_target("pimflow")


def test_a_trace_takes_the_time_of_its_layer(tmp_path: Path) -> None:
    compiled = pimflow.compile("zoo:toy", target=TARGET, policy="pim", use_cache=False)
    row = next(row for row in compiled.report.nodes if row.name == "conv2")
    files = []
    for channel in range(TARGET.pim.channels):
        files.append(str(tmp_path / f"{channel}.pim"))
        Path(files[-1]).write_text("".join(compiled.trace("conv2", channel)))
    report = report_traces(files, TARGET)
    assert max(trace.cycles for _, trace in report.traces) == row.cycles["pim"]
    documents = report.as_json()["traces"]
    assert [document["file"] for document in documents] == files
    for name, count in row.commands.items():
        assert sum(document["commands"][name] for document in documents) == count
    assert all(trace.energy_mj == document["energy_mj"] > 0 for (_, trace), document in zip(
        report.traces, documents, strict=True))  # fmt: skip
    on_pim_mj = sum(row.spent.energy_parts_mj["pim"].values())
    assert sum(document["energy_mj"] for document in documents) == pytest.approx(on_pim_mj)
    header, _, *lines = report.text().partition("\n\n")[0].splitlines()
    counters = ["GWRITE", "G_ACT", "COMP", "READRES", "PREA", "REF"]
    checks = ["comps", "on", "closed", "rows"]
    assert header.split() == ["file", "cycles", "time", "(us)", *counters, *checks, "energy", "(mJ)"]
    assert len(lines) == len(files)


def test_a_trace_of_auto_takes_the_time_of_its_layer_if_rows_are_reopened(tmp_path: Path) -> None:
    """Under the published rules, a controller that ignores closed rows is faster; its count of COMPs on closed rows
    explains it."""
    target = override(load_target("pimflow"), timing="artifact")
    compiled = pimflow.compile("zoo:mobilenet-v2", target=target, policy="auto", use_cache=False)
    assert compiled.report.violations == {"comps_on_closed_rows": 0}
    costs = {
        name: compiled.machine.costs.node_cost(compiled.graph, compiled.graph.node(name)).detail
        for name in compiled.programs
    }
    priced = [(name, cost) for name, cost in costs.items() if isinstance(cost, PimCost)]
    name, cost = max(priced, key=lambda pair: pair[1].ref if pair[1].mapping.order == "rows" else 0)
    file = tmp_path / "channel.pim"
    slowest = max(range(len(cost.channels)), key=lambda channel: cost.channels[channel].cycles)
    file.write_text("".join(compiled.trace(name, slowest)))
    published, reopening = (report_traces([str(file)], target, reopens_rows=reopens) for reopens in (False, True))
    assert reopening.traces[0][1].cycles == cost.cycles
    assert reopening.traces[0][1].violations == {"comps_on_closed_rows": 0}
    assert published.traces[0][1].violations["comps_on_closed_rows"] > 0
    assert published.traces[0][1].cycles < cost.cycles


def test_a_unit_whose_programs_have_no_text_says_so() -> None:
    unit = next(iter(units_of(TARGET).values()))
    with pytest.raises(OptionError, match="have no text form"):
        Backend.replay(unit, "conv.pim")
