"""A timing profile defined entirely in this file: one class, its two tables, and a target that contains them.

The profile takes a fixed number of cycles for every command, whatever came before, and has no refresh: these are the
simplest possible rules, so that a stream's cycles are a sum. docs/extending.md points here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

import pimflow
from pimflow.codegen.newton.commands import Command, Comp, GAct, GWrite
from pimflow.codegen.work import ConvProblem
from pimflow.errors import OptionError
from pimflow.ir.registry import scratch_registrations
from pimflow.report.layer import report_layer
from pimflow.runtime.newton.energy import EnergyBreakdown
from pimflow.runtime.newton.profiles import PROFILES
from pimflow.runtime.newton.profiles.base import TimingProfile, VisitCosts
from pimflow.runtime.newton.timing.result import StreamTiming
from pimflow.runtime.newton.timing.rules import NEVER, Finish, Rules, State, Step, Struck
from pimflow.runtime.newton.timing.tally import ACTIVATION, COMP, FILL, READOUT
from pimflow.runtime.newton.trace_timing import simulate_file
from pimflow.targets import PimSpec, Target, load_target, override, parse_target, target_text
from pimflow.targets.schema import ENERGIES, TIMINGS, TimingTable
from pimflow.targets.schema.unit import Amount, Count


@dataclass(frozen=True)
class FixedTiming(TimingTable):
    gwrite: Count
    g_act: Count
    comp: Count
    readres: Count


@dataclass(frozen=True)
class FixedEnergy:
    command_pj: Amount


PARTS = (FILL, ACTIVATION, COMP, READOUT)  # the part that a command's cycles are attributed to


class FixedRules(Rules):
    """Every command issues a fixed time after the previous one, which depends on its kind."""

    interval = 1 << 60

    def __init__(self, pim: PimSpec, timing: FixedTiming) -> None:
        super().__init__(pim)
        self._cycles = (timing.gwrite, timing.g_act, timing.comp, timing.readres)

    def initial(self) -> State:
        return self.state(())

    def code(self, command: Command) -> int:
        kinds = (GWrite, GAct, Comp)
        return next((code for code, kind in enumerate(kinds) if isinstance(command, kind)), len(kinds))

    def next_step(self, state: State, code: int) -> Step:
        cycles = self._cycles[code]
        return Step(cycles, state, NEVER, PARTS[code] * cycles)

    def strike(self, state: State, code: int, phase: int) -> Struck:
        raise AssertionError("no refresh is ever due")

    def finish(self, state: State, phase: int) -> Finish:
        return Finish(0, 0)


class FixedProfile(TimingProfile):
    name: ClassVar[str] = "fixed"

    @property
    def table(self) -> FixedTiming:
        table = self.pim.timing.tables["fixed"]
        assert isinstance(table, FixedTiming)
        return table

    def rules(self, gwrite_latency: str, reopens_rows: bool = True) -> FixedRules:
        return FixedRules(self.pim, self.table)

    def energy(self, timing: StreamTiming) -> EnergyBreakdown:
        commands = sum(timing.commands.as_json().values())
        return EnergyBreakdown((("command", commands * self.pim.energy.tables["fixed"].command_pj * 1e-12),))

    @property
    def comp_cycles(self) -> int:
        return self.table.comp

    def visit_costs(self) -> VisitCosts:
        table = self.table
        sweep = table.g_act * self.pim.bank_groups
        return VisitCosts(table.comp, table.gwrite, 0, table.gwrite, sweep, table.readres, 0, 0, table.readres, 0, 0, 0)


TABLES = """
[pim.timing.fixed]
gwrite = 20
g_act = 5
comp = 3
readres = 7

[pim.energy.fixed]
command_pj = 100.0
"""
CYCLES = {"GWRITE": 20, "G_ACT": 5, "COMP": 3, "READRES": 7}


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(TIMINGS, "fixed", FixedTiming)
    monkeypatch.setitem(ENERGIES, "fixed", FixedEnergy)
    with scratch_registrations():
        PROFILES.add("fixed", FixedProfile)
        yield


# ---- everything below only checks


def machine() -> Target:
    return override(parse_target(target_text("pimflow") + TABLES, "machine.toml"), timing="fixed")


def test_cycles_and_energy_follow_the_rules() -> None:
    report = report_layer(ConvProblem(1, 64, 96, 14, 14, (3, 3), pads=(1, 1, 1, 1)), machine()).as_json()
    assert report["timing"] == "fixed"
    for channel in report["channels"]:
        assert channel["cycles"] == sum(CYCLES[name] * count for name, count in channel["commands"].items())
    assert report["pim_cycles"] == max(channel["cycles"] for channel in report["channels"])
    assert report["energy_mj"] == pytest.approx(100e-9 * sum(report["commands"].values()))
    assert sum(report["cycles_spent"].values()) == report["pim_cycles"]


@pytest.mark.parametrize("policy", ["pim", "auto"])
def test_a_model_is_supported_end_to_end(policy: str, tmp_path: Path) -> None:
    compiled = pimflow.compile("zoo:toy", target=machine(), policy=policy, use_cache=False)
    assert compiled.programs
    assert compiled.verify(pim="values").passed
    rows = [row for row in compiled.report.nodes if row.mode == "pim"]
    assert rows
    compiled.save(tmp_path / "out")
    again = pimflow.load(tmp_path / "out")
    assert again.machine.target == compiled.machine.target
    assert again.timeline.makespan_us == pytest.approx(compiled.report.result.time_us)
    trace = tmp_path / "channel.pim"
    name = next(iter(compiled.programs))
    trace.write_text("".join(again.trace(name, 0)))
    timing = simulate_file(trace, machine().pim)
    assert timing.cycles == sum(CYCLES[command] * count for command, count in timing.commands.as_json().items())


def test_the_profile_is_known_by_name_where_a_target_has_its_tables() -> None:
    assert machine().pim.timing.default == "fixed"
    with pytest.raises(OptionError, match=r"unknown timing profile 'fixed'; .*choose one of artifact, strict"):
        override(load_target("pimflow"), timing="fixed")
    without_energy = (target_text("pimflow") + TABLES).replace("[pim.energy.fixed]\ncommand_pj = 100.0", "")
    with pytest.raises(pimflow.PimflowError, match=r"missing key 'pim\.energy\.fixed'"):
        parse_target(without_energy, "machine.toml")
