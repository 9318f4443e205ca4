"""Memory tiers: optional, checked against each other, and preserved by everything that copies or writes a target."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from pimflow.errors import TargetError
from pimflow.targets import TargetRecord, load_target, override, parse_target, to_toml
from pimflow.targets.schema import GpuMemory, HostMemory, Memory, PcieLink

MACHINE = load_target("rtx3090")
ALL = cast("Memory", load_target("a100-ssd").memory)


def with_link(**changes: Any) -> Memory:
    """Tiers with another link."""
    return replace(ALL, pcie=replace(cast("PcieLink", ALL.pcie), **changes))


def test_a_target_without_tiers_is_unchanged() -> None:
    plain = load_target("pimflow")
    assert plain.memory is None
    assert not any(key.startswith("memory") for key in plain.values)
    assert "[memory" not in to_toml(plain)


def test_written_and_read_again_they_are_the_same() -> None:
    for name in ("rtx3090", "a100-ssd"):
        target = load_target(name)
        assert target.memory is not None
        assert parse_target(to_toml(target), "again.toml") == target
        assert replace(target, memory=None) != target


def test_a_file_may_change_one_tier_of_its_base() -> None:
    derived = parse_target('base = "rtx3090"\n[memory.pcie]\ncopy_gb_per_s = 24.6\n', "fast.toml")
    assert derived.memory is not None
    assert derived.memory.pcie is not None
    assert derived.memory.pcie.copy_gb_per_s == 24.6
    assert derived.memory.pcie.request_bytes == 128
    assert derived.description == "rtx3090 with memory.pcie.copy_gb_per_s = 24.6"


def test_a_file_may_add_tiers_to_a_base_without() -> None:
    text = 'base = "pimflow"\n[memory.gpu]\ncapacity_gib = 6\nreserved_gib = 0.5\n'
    derived = parse_target(text, "small.toml")
    assert derived.memory == Memory(GpuMemory(6.0, 0.5))
    assert derived.memory.gpu.usable_bytes == int(5.5 * 2**30)
    assert "memory.gpu.capacity_gib = 6.0" in derived.description


def test_overrides_are_remembered_and_taken_back() -> None:
    changed = override("rtx3090", {"memory.host.capacity_gib": 16, "memory.pcie.copy_us": 0})
    assert [change.key for change in changed.overrides] == ["memory.host.capacity_gib", "memory.pcie.copy_us"]
    again = TargetRecord.of(changed).restored(parse_target(to_toml(changed), "target.toml"))
    assert again.memory == changed.memory
    assert again.overrides == changed.overrides


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        (replace(ALL, pcie=None), "missing key 'memory.pcie'"),
        (replace(ALL, host=None), "missing key 'memory.host'"),
        (replace(ALL, gpu=GpuMemory(2, 2)), "'memory.gpu.reserved_gib' is 2; the GPU has 2 GiB in all"),
        (replace(ALL, gpu=GpuMemory(-1, 0)), "'memory.gpu.capacity_gib' is -1"),
        (3, "'memory' is an int; it must be a Memory"),
        (with_link(sector_bytes=48), "'memory.pcie.request_bytes' is 128, not a multiple of sector_bytes, 48"),
        (with_link(mapped_gib=1.0), "missing key 'memory.pcie.lookup_ns'"),
        (with_link(lookup_ns=20.0), "missing key 'memory.pcie.mapped_gib'"),
    ],
)
def test_invalid_values_of_a_target_made_in_python_are_reported(memory: Memory, message: str) -> None:
    with pytest.raises(TargetError) as caught:
        replace(MACHINE, memory=memory)
    assert message in str(caught.value)


def test_no_unit_is_called_memory() -> None:
    text = 'base = "pimflow"\n[memory]\nkind = "newton"\n'
    with pytest.raises(TargetError, match=r"unknown key 'memory\.kind'"):
        parse_target(text, "odd.toml")


def test_summaries_name_the_tiers() -> None:
    assert ALL.summary == "40 GiB on the GPU, 512 GiB in the host, 6400 GB on SSDs"
    assert Memory(GpuMemory(8, 1)).summary == "8 GiB on the GPU"
    assert ALL.summary in load_target("a100-ssd")._repr_html_()
    host = cast("HostMemory", ALL.host)
    assert host.capacity_bytes == 512 << 30
