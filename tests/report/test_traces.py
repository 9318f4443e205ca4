"""Traces on the clock, as a table and as JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

import pimflow
from pimflow.codegen.backend import Backend
from pimflow.errors import OptionError
from pimflow.report.traces import report_traces
from pimflow.runtime.backends import units_of
from pimflow.targets import load_target

TARGET = load_target("pimflow")


def test_a_trace_takes_what_its_layer_takes(tmp_path: Path) -> None:
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
    header, _, *lines = report.text().splitlines()
    counters = ["GWRITE", "G_ACT", "COMP", "READRES", "PREA", "REF"]
    assert header.split() == ["file", "cycles", "time", "(us)", *counters, "energy", "(mJ)"]
    assert len(lines) == len(files)


def test_a_unit_whose_programs_have_no_text_says_so() -> None:
    unit = next(iter(units_of(TARGET).values()))
    with pytest.raises(OptionError, match="have no text form"):
        Backend.replay(unit, "conv.pim")
