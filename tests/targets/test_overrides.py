"""A target with some knobs turned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pimflow.errors import OptionError
from pimflow.targets import Target, load_target, override

MACHINE = load_target("pimflow")

KNOBS: dict[str, tuple[dict[str, Any], Callable[[Target], Any], Any]] = {
    "timing": ({"timing": "Artifact"}, lambda target: target.pim.timing.default, "artifact"),
    "gwrite latency": ({"gwrite_latency": "EXPOSED"}, lambda target: target.pim.gwrite_latency, "exposed"),
    "buffers": ({"buffers": 16}, lambda target: target.pim.buffers, 16),
    "buffers per channel": ({"buffers_per_channel": 64}, lambda target: target.pim.buffers_per_channel, 64),
    "channels": ({"pim_channels": 31}, lambda target: target.pim.channels, 31),
}


@pytest.mark.parametrize("knob", KNOBS)
def test_a_knob_turns_what_it_says(knob: str) -> None:
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


def test_without_knobs_it_is_the_same_machine() -> None:
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
def test_what_the_machine_cannot_have_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        override(MACHINE, **options)
