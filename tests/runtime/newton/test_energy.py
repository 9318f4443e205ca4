"""Energy: the strict formula by hand (the published one is checked on the golden traces)."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pimflow.codegen.newton.commands import CommandCounts
from pimflow.runtime.newton.profiles import timing_profile
from pimflow.runtime.newton.timing.result import StreamTiming
from support.newton.streams import PIM

ONES = dataclasses.replace(
    PIM.energy.strict, activate_pj=1.0, column_read_pj=10.0, mac_pj=100.0, buffer_read_pj=1e3, buffer_write_pj=1e4,
    transfer_pj_per_byte=1e5, refresh_pj=1e6, static_mw=1.0,
)  # fmt: skip
PLAIN = dataclasses.replace(PIM, clock_mhz=1000.0, energy=PIM.energy.with_tables(strict=ONES))
TIMING = StreamTiming(5000, CommandCounts(gwrite=2, g_act=8, comp=64, readres=3), prea=2, ref=1, gwrite_bytes=320)


def test_strict_by_cause() -> None:
    parts = dict(timing_profile(PLAIN, "strict").energy(TIMING).parts_j)
    assert parts == pytest.approx(
        {
            "activation": 8 * 4 * 1e-12,  # four banks per G_ACT
            "column_read": 64 * 16 * 10e-12,  # every bank, every COMP
            "mac": 64 * 256 * 100e-12,  # 16 banks of 16 multipliers
            "buffer_read": 64 * 1e3 * 1e-12,  # one slot, broadcast
            "buffer_write": 10 * 1e4 * 1e-12,  # 320 bytes in bursts of 32
            "transfer": (320 + 3 * 64) * 1e5 * 1e-12,  # fills in, 16 fp32 results out per READRES
            "refresh": 1e6 * 1e-12,
            "static": 5e-6 * 1e-3,  # 5 us at 1 mW
        }
    )


def test_totals_and_units() -> None:
    energy = timing_profile(PIM, "strict").energy(TIMING)
    assert energy.total_j == pytest.approx(sum(joules for _, joules in energy.parts_j))
    assert energy.total_mj == sum(energy.parts_mj.values()) == pytest.approx(energy.total_j * 1e3)
    assert (energy + energy).total_mj == energy.times(2).total_mj == 2 * energy.total_mj
    assert tuple(energy.parts_mj) == tuple((energy + energy).parts_mj) == tuple(name for name, _ in energy.parts_j)


def test_the_profile_decides_and_every_count_matters() -> None:
    default, artifact, strict = (timing_profile(PIM, name).energy(TIMING) for name in (None, "artifact", "strict"))
    assert default == strict != artifact
    base = strict.total_j
    changes: tuple[dict[str, Any], ...] = ({"cycles": 6000}, {"ref": 2}, {"gwrite_bytes": 640})
    for change in changes:
        assert timing_profile(PIM, "strict").energy(dataclasses.replace(TIMING, **change)).total_j > base
    for field in ("g_act", "comp", "readres"):
        commands = dataclasses.replace(TIMING.commands, **{field: 100})
        assert timing_profile(PIM, "strict").energy(dataclasses.replace(TIMING, commands=commands)).total_j > base


def test_a_column_read_costs_more_than_its_macs_and_less_than_opening_the_row() -> None:
    energy = PIM.energy.strict
    assert energy.mac_pj * PIM.multipliers < energy.column_read_pj < energy.activate_pj
