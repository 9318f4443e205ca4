"""A target with some values overridden."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pimflow.errors import ArgumentError, OptionError, TargetError
from pimflow.targets import Target, load_target, override, parse_values

MACHINE = load_target("pimflow")

KNOBS: dict[str, tuple[dict[str, Any], Callable[[Target], Any], Any]] = {
    "timing": ({"timing": "Artifact"}, lambda target: target.pim.timing.default, "artifact"),
    "gwrite latency": ({"gwrite_latency": "EXPOSED"}, lambda target: target.pim.gwrite_latency, "exposed"),
    "buffers": ({"buffers": 16}, lambda target: target.pim.buffers, 16),
    "buffers per channel": ({"buffers_per_channel": 64}, lambda target: target.pim.buffers_per_channel, 64),
    "channels": ({"pim_channels": 31}, lambda target: target.pim.channels, 31),
}


@pytest.mark.parametrize("knob", KNOBS)
def test_an_override_changes_its_value(knob: str) -> None:
    options, read, value = KNOBS[knob]
    assert read(MACHINE) != value
    assert read(override(MACHINE, **options)) == value


def test_the_gpu_computes_in_another_type_where_it_has_kernels_for_it() -> None:
    turing = override(load_target("turing-pim"), gpu_operand="FP32")
    assert (turing.any_gpu.operand, turing.any_gpu.element_bytes) == ("fp32", 4)
    assert turing.pim == load_target("turing-pim").pim
    assert override(turing, gpu_operand="fp16") == load_target("turing-pim")
    with pytest.raises(OptionError, match="unknown operand 'fp32'"):
        override(MACHINE, gpu_operand="fp32")
    with pytest.raises(OptionError, match="unknown operand 'bf16'"):
        override(turing, gpu_operand="bf16")


def test_without_overrides_it_is_the_same_machine() -> None:
    assert override(MACHINE) is MACHINE


def test_fewer_channels_have_no_more_buffers_than_channels() -> None:
    assert override(MACHINE, pim_channels=2).pim.buffers == 2
    assert override(MACHINE, pim_channels=2, buffers=1).pim.buffers == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timing": "strikt"}, "did you mean 'strict'"),
        ({"gwrite_latency": "shown"}, "choose one of hidden, exposed"),
        ({"buffers": 0}, "buffers 0 is out of range; this target takes 1 to 16"),
        ({"buffers": 17}, "buffers 17 is out of range; this target takes 1 to 16"),
        ({"pim_channels": 8, "buffers": 9}, "this target takes 1 to 8"),
        ({"buffers_per_channel": 65}, "this target takes 1 to 64"),
        ({"pim_channels": 0}, "pim-channels 0 is out of range; this target takes 1 to 31"),
        ({"pim_channels": 32}, "this target takes 1 to 31"),
    ],
)
def test_impossible_overrides_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        override(MACHINE, **options)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("pim.banks=32", "pim.banks", 32),
        (" pim.banks = 3_2 ", "pim.banks", 32),
        ("pim.timing.strict.t_faw=20", "pim.timing.strict.t_faw", 20),
        ("gpu.clock_mhz=2000", "gpu.clock_mhz", 2000.0),
        ("gpu.clock_mhz=2e3", "gpu.clock_mhz", 2000.0),
        ("gpu.tiles=[[8, 8]]", "gpu.tiles", ((8, 8),)),
        ("pim.operand=bf16", "pim.operand", "bf16"),
        ('pim.operand="bf16"', "pim.operand", "bf16"),
        ("pim.timing.default=artifact", "pim.timing.default", "artifact"),
        ("pim.any_slot_any_column=true", "pim.any_slot_any_column", True),
        ('pim.readout_functions=["Relu"]', "pim.readout_functions", ("Relu",)),
        ("pim.transfer_gb_per_s=12.5", "pim.transfer_gb_per_s", 12.5),
        ("gpu.basis=2026", "gpu.basis", "2026"),
        ("gpu.basis=as a=b", "gpu.basis", "as a=b"),
    ],
)
def test_any_key_is_set_by_a_text_of_its_own_type(text: str, key: str, value: Any) -> None:
    changed = override(MACHINE, parse_values(MACHINE, [text]))
    assert changed.values[key] == value
    assert [(change.key, change.before) for change in changed.overrides] == [(key, MACHINE.values[key])]


def test_an_optional_key_can_be_left_out_again() -> None:
    linked = override(MACHINE, {"pim.transfer_gb_per_s": 12})
    assert override(linked, parse_values(linked, ["pim.transfer_gb_per_s=none"])) == MACHINE


def test_values_are_checked_together() -> None:
    changed = override(MACHINE, {"pim.channels": 2, "pim.buffers": 2})
    assert (changed.pim.channels, changed.pim.buffers) == (2, 2)
    with pytest.raises(
        TargetError, match=r"target 'pimflow': 'pim\.buffers' must not exceed pim\.channels; correct it"
    ):
        override(MACHINE, {"pim.channels": 2})


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["pim.bankz=3"], "target 'pimflow' has no key 'pim.bankz'; did you mean 'pim.banks'"),
        (["banks=3"], "has no key 'banks'; did you mean 'pim.banks'?"),
        (["pim.timing=3"], "has no key 'pim.timing'; did you mean 'pim.timing.default'"),
        (["pim.banks=many"], "target 'pimflow': 'pim.banks' is 'many'; it must be a whole number"),
        (["pim.banks=0"], "'pim.banks' is 0; it must be between 1 and "),
        (["pim.banks=none"], "'pim.banks' is None; it must be a whole number"),
        (["pim.operand=fp61"], "'pim.operand' is 'fp61'; did you mean 'fp16'?"),
        (["pim.banks=1\nx=2"], "it must be a whole number"),
        (["pim.banks"], "cannot read --set 'pim.banks'; type --set KEY=VALUE, as in --set pim.banks=32"),
        (["pim.banks="], "cannot read --set 'pim.banks='"),
        (["pim.banks=8", "pim.banks=16"], "--set gives 'pim.banks' twice"),
    ],
)
def test_a_text_that_sets_nothing_is_a_one_line_error(texts: list[str], message: str) -> None:
    with pytest.raises((OptionError, TargetError)) as caught:
        override(MACHINE, parse_values(MACHINE, texts))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_values_of_another_kind_are_refused() -> None:
    with pytest.raises(ArgumentError, match="'values' is a list; give values by key"):
        override(MACHINE, ["pim.banks=8"])  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="a object has no form as plain data"):
        override(MACHINE, {"pim.banks": object()})


def test_a_description_that_is_no_longer_true_is_not_repeated() -> None:
    changed = override(override("pimflow", pim_channels=8), {"gpu.sms": 60})
    assert changed.description == "pimflow with gpu.sms = 60, pim.channels = 8"
    assert override(changed, {"pim.channels": 16, "gpu.sms": 30}).description == MACHINE.description
    assert override(changed, {"description": "mine"}).description == "mine"
