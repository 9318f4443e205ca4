"""Tables of where time and energy are spent: each adds up to the run's total."""

from __future__ import annotations

import re

import pytest

import pimflow
from pimflow.compiled import CompiledModel
from pimflow.errors import OptionError
from pimflow.report import breakdown
from pimflow.report.breakdown import QUANTITIES, breakdown_text


@pytest.fixture(scope="module", params=["artifact", "strict"])
def model(request: pytest.FixtureRequest) -> CompiledModel:
    target = pimflow.load_target("pimflow" if request.param == "artifact" else "hbm-pim")
    return pimflow.compile("zoo:toy", target=target, policy="pim", use_cache=False)


def tables(model: CompiledModel, by: str, verbose: bool = False) -> list[list[list[str]]]:
    """The cells of the three tables, headers first."""
    text = breakdown_text(model.report, model.machine.target.devices, by, verbose=verbose)
    blocks = [[line for line in block.splitlines() if set(line) - set("- ")] for block in text.split("\n\n")]
    return [[re.split(r"  +", line.strip()) for line in block] for block in blocks[:3]]


def column(table: list[list[str]], name: str) -> list[float]:
    index = table[0].index(name)
    return [float(row[index].rstrip(" %").replace(",", "").replace("-", "0") or 0) for row in table[1:]]


@pytest.mark.parametrize(("by", "unit"), [("energy", "mJ"), ("time", "us")])
def test_every_table_adds_up(model: CompiledModel, by: str, unit: str) -> None:
    result = model.report.result
    whole = {"energy": result.energy_mj, "time": result.time_us}[by]
    parts, ops, nodes = tables(model, by)
    total = parts.pop()
    assert total[0] == "total"
    assert float(total[1]) == pytest.approx(whole, rel=1e-4)
    for table in (parts, ops, nodes):
        assert sum(column(table, unit)) == pytest.approx(whole, rel=1e-3)
        assert sum(column(table, "%")) == pytest.approx(100, abs=1)
    for table in (ops, nodes):
        amounts = column(table, unit)
        assert amounts == sorted(amounts, reverse=True)
        for place in ("GPU", "PIM"):
            in_place = sum(column([parts[0], *(row for row in parts[1:] if row[0] == place)], unit))
            assert sum(column(table, f"{place} {unit}")) == pytest.approx(in_place, abs=1e-3 * whole)
    assert [row[0] for row in nodes[1:]] == [
        row.name
        for row in sorted(model.report.nodes, key=lambda row: -(row.energy_mj if by == "energy" else row.share_us))
        if row.time_us
    ]


def test_omitted_rows_are_summarised_in_one_line(model: CompiledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    every = tables(model, "energy")[2]
    monkeypatch.setattr(breakdown, "NODES_SHOWN", 2)
    _, _, few = tables(model, "energy")
    assert few[:3] == every[:3]
    assert few[3][0] == f"{len(every) - 3} more (-v shows them)"
    assert sum(map(float, (row[1] for row in few[3:]))) == pytest.approx(sum(column(every, "mJ")[2:]), rel=1e-3)
    assert tables(model, "energy", verbose=True)[2] == every


def test_only_energy_and_time_are_broken_down(model: CompiledModel) -> None:
    with pytest.raises(OptionError, match="unknown quantity 'power'"):
        model.summary(by="power")
    for by in QUANTITIES:
        assert "speedup" in model.summary(by=by)
