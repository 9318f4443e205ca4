"""A target with some knobs turned: what the command line's --timing, --buffers, .. and the studies vary."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pimflow.errors import OptionError, choice
from pimflow.targets.schema import Target, Unit

GwriteLatency = Literal["hidden", "exposed"]
GWRITE_LATENCIES: tuple[GwriteLatency, ...] = ("hidden", "exposed")


def override(
    target: Target,
    *,
    timing: str | None = None,
    gwrite_latency: str | None = None,
    buffers: int | None = None,
    buffers_per_channel: int | None = None,
    pim_channels: int | None = None,
    gpu_operand: str | None = None,
) -> Target:
    """The same machine with the given knobs changed (None leaves a knob as it is).

    Raises:
        OptionError: a value that the machine cannot have.
    """
    if gpu_operand is not None:
        target = _with_gpu_operand(target, gpu_operand)
    if not any(knob is not None for knob in (timing, gwrite_latency, buffers, buffers_per_channel, pim_channels)):
        return target
    pim = target.pim
    if timing is not None:
        pim = replace(pim, timing=replace(pim.timing, default=choice("timing profile", timing, pim.timing.tables)))
    if gwrite_latency is not None:
        pim = replace(pim, gwrite_latency=choice("GWRITE latency", gwrite_latency, GWRITE_LATENCIES))
    if pim_channels is not None:
        _between("pim-channels", pim_channels, 1, target.any_gpu.memory_channels - 1)
        pim = replace(pim, channels=pim_channels, buffers=min(pim.buffers, pim_channels))
    if buffers is not None:
        _between("buffers", buffers, 1, pim.channels)
        pim = replace(pim, buffers=buffers)
    if buffers_per_channel is not None:
        _between("buffers-per-channel", buffers_per_channel, 1, 64)
        pim = replace(pim, buffers_per_channel=buffers_per_channel)
    return target if pim is target.pim else target.with_units(**{_device_of(target, target.pim): pim})


def _with_gpu_operand(target: Target, operand: str) -> Target:
    gpu = target.any_gpu
    changed = replace(gpu, operand=choice("operand", operand, gpu.operands))
    return target.with_units(**{_device_of(target, gpu): changed})


def _between(option: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise OptionError(f"{option} {value} is out of range", f"this target takes {low} to {high}")


def _device_of(target: Target, unit: Unit) -> str:
    return next(device for device, other in target.units.items() if other is unit)
