"""Targets as TOML text, with the comments and sources of the files that they come from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pimflow.targets import annotated, load_target, override, parse_target, target_names, target_text, to_toml
from pimflow.targets.schema import Target


@pytest.mark.parametrize("name", target_names())
def test_a_target_as_it_is_keeps_its_text_to_the_letter(name: str) -> None:
    assert annotated(load_target(name)) == target_text(name)


def test_changed_values_are_marked_and_the_rest_keeps_its_sources() -> None:
    changed = override("pimflow", {"pim.banks": 32, "pim.transfer_gb_per_s": 12}, timing="artifact")
    text = annotated(changed, {"pim.banks": "as measured"})
    assert parse_target(text, "m.toml") == changed
    before, after = (set(text.splitlines()) for text in (target_text("pimflow"), text))
    gone = {line.split("=")[0].strip() for line in before - after}
    assert gone == {"banks", "default", "description"}
    assert "banks = 32 # as measured; pimflow.toml has 16" in after
    assert 'default = "artifact" # overridden; pimflow.toml has strict' in after
    assert "transfer_gb_per_s = 12.0 # overridden; not in pimflow.toml" in after


def test_a_file_with_a_base_is_shown_whole_with_the_comments_of_both(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "pimflow"\npim.any_slot_any_column = true  # as HBM-PIM\n[gpu]\nsms = 40\n')
    text = target_text(path)
    assert parse_target(text, "mine.toml") == load_target(path)
    assert "any_slot_any_column = true # mine.toml: as HBM-PIM; pimflow.toml has false" in text
    assert "sms = 40 # mine.toml; pimflow.toml has 30" in text
    assert "channel_gb_per_s = 28.0   # [A] 14 Gb/s GDDR6, 16 bits per channel" in text
    assert "base =" not in text


def test_a_unit_of_another_kind_leaves_nothing_of_the_old_one() -> None:
    machine = load_target("pimflow").with_units(gpu=load_target("turing-pim").any_gpu)
    assert parse_target(annotated(machine), "m.toml") == machine


def test_tables_without_values_have_no_head() -> None:
    assert "[pim.energy]\n" not in to_toml(load_target("pimflow"))


@pytest.mark.parametrize("device", ["npu", "my npu", 'say "npu"', "a.b", "del\x7f", "é"])
def test_any_name_of_a_device_and_any_text_reads_back(device: str) -> None:
    base = load_target("pimflow")
    machine = replace(base.with_units(**{device: base.pim}), description=f"of {device}\n\t\\")
    assert isinstance(machine, Target)
    assert parse_target(to_toml(machine), "m.toml") == machine
