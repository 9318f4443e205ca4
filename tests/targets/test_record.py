"""The description of a target in reports."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pimflow.data import decode
from pimflow.targets import TargetRecord, load_target, override, parse_target, to_toml

MACHINE = load_target("pimflow")
CHANGED = override(MACHINE, {"pim.banks": 32, "gpu.tiles": [[64, 64]]}, timing="artifact", buffers=1)


def test_a_machine_as_it_is() -> None:
    record = TargetRecord.of(MACHINE)
    assert record.overrides == ()
    assert record.sha256 == hashlib.sha256(to_toml(MACHINE).encode()).hexdigest()
    assert record.lines()[0] == ("machine", MACHINE.description)
    assert record.settings["pim"]["timing"] == "strict"
    assert record.settings["gpu"] == {"operand": "fp16"}


def test_overrides_are_shown_and_change_the_digest() -> None:
    record = TargetRecord.of(CHANGED)
    assert record.sha256 != TargetRecord.of(MACHINE).sha256
    (_, machine), (_, settings) = record.lines()
    assert machine == (
        "pimflow, but gpu.tiles = [[64, 64]] (not [[128, 128], [128, 64], [64, 64], [25...), "
        "pim.banks = 32 (not 16), pim.buffers = 1 (not 4), pim.timing.default = artifact (not strict)"
    )
    assert "timing artifact" in settings
    assert "buffers 1" in settings
    assert "PIMFlow (CGO" not in machine


def test_only_the_first_of_many_overrides_are_named() -> None:
    keys = [key for key in MACHINE.values if key.startswith("pim.timing.artifact")]
    changed = override(MACHINE, {key: MACHINE.values[key] + 1 for key in keys})
    assert f"{len(keys) - 8} more, all in the JSON" in TargetRecord.of(changed).lines()[0][1]


def test_a_target_that_is_read_back_has_its_overrides() -> None:
    record = decode(TargetRecord, TargetRecord.of(CHANGED).as_json())
    again = record.restored(parse_target(to_toml(CHANGED), "target.toml"))
    assert again == CHANGED
    assert again.overrides == CHANGED.overrides
    assert TargetRecord.of(again) == TargetRecord.of(CHANGED)


def test_the_base_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "pimflow"\ndescription = "of mine"\npim.banks = 32\n')
    assert TargetRecord.of(load_target(path)).lines()[0] == ("machine", "of mine (from pimflow)")
