"""A target with some values changed, for the command line's --set, --timing, --buffers, ... and for studies."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pimflow.data import decode, encode, read_argument
from pimflow.errors import ArgumentError, DataError, OptionError, TargetError, choice, did_you_mean, kind_of
from pimflow.targets.loader import load_target
from pimflow.targets.schema import Target, Unit
from pimflow.targets.schema.gpu import ALGORITHMS, LIBRARY_ALONE, Algorithm
from pimflow.targets.schema.origin import leaves
from pimflow.targets.schema.target import HINT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

GwriteLatency = Literal["hidden", "exposed"]
GWRITE_LATENCIES: tuple[GwriteLatency, ...] = ("hidden", "exposed")


def override(
    target: str | Path | Target,
    values: Mapping[str, Any] | None = None,
    *,
    timing: str | None = None,
    gwrite_latency: str | None = None,
    buffers: int | None = None,
    buffers_per_channel: int | None = None,
    pim_channels: int | None = None,
    gpu_operand: str | None = None,
) -> Target:
    """Returns the same machine with some values changed; `overrides` of the result lists all changes.

    Args:
        target: a name, a file or a target.
        values: new values by key, as in {"pim.banks": 32}; None removes an optional key.
        timing: the name of the timing profile.
        gwrite_latency: "hidden" or "exposed".
        buffers: global buffers that mappings may use.
        buffers_per_channel: filled buffers that one channel can hold.
        pim_channels: PIM-enabled memory channels; the number of buffers is limited to this.
        gpu_operand: element type on the GPU. None leaves any of these six unchanged.

    Raises:
        ArgumentError: `target` or `values` is of another type.
        OptionError: a key does not exist, an argument is of another type, or the machine cannot have a value.
        TargetError: the target does not exist, or `values` has a value that a target file may not have.
    """
    timing, gwrite_latency, buffers, buffers_per_channel, pim_channels, gpu_operand = (
        read_argument(name, form, knob)
        for name, form, knob in (
            ("timing", str | None, timing),
            ("gwrite_latency", str | None, gwrite_latency),
            ("buffers", int | None, buffers),
            ("buffers_per_channel", int | None, buffers_per_channel),
            ("pim_channels", int | None, pim_channels),
            ("gpu_operand", str | None, gpu_operand),
        )
    )
    target = load_target(target)
    if gpu_operand is not None:
        target = _with_gpu_operand(target, gpu_operand)
    if not any(knob is not None for knob in (timing, gwrite_latency, buffers, buffers_per_channel, pim_channels)):
        return with_values(target, {} if values is None else values)
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
    if pim is not target.pim:
        target = target.with_units(**{_device_of(target, target.pim): pim})
    return with_values(target, {} if values is None else values)


def with_values(target: Target, values: Mapping[str, Any]) -> Target:
    """The same machine with other values by key, read like those of a file, all at once.

    Raises:
        OptionError: a key does not exist.
        TargetError: a value is of another type, out of range, or contradicts the others.
    """
    if not isinstance(values, Mapping):
        raise ArgumentError(f"'values' is {kind_of(values)}", 'give values by key, as in {"pim.banks": 32}')
    if not values:
        return target
    data = encode(target)
    paths = {".".join(path): path for path, _ in leaves(data)}
    for key, value in values.items():
        if key not in paths:
            raise OptionError(f"target {target.name!r} has no key {key!r}", nearest_key(str(key), paths))
        _put(data, paths[key], value)
    try:
        changed = decode(Target, encode(data))
    except DataError as error:
        raise TargetError(f"target {target.name!r}: {error.what}", error.hint or HINT) from None
    except TypeError as error:
        raise ArgumentError(f"target {target.name!r}: {error}", "give numbers, text, and lists of them") from None
    return replace(changed, origin=target.origin)


def parse_values(target: Target, texts: Sequence[str]) -> dict[str, Any]:
    """Values by key from texts such as "pim.banks=32", each of the key's own type: text with quotes or without.

    Raises:
        OptionError: a text has another form, or a key is given twice.
    """
    data = encode(target)
    present = {".".join(path): value for path, value in leaves(data)}
    values: dict[str, Any] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not (key and equals and value):
            raise OptionError(f"cannot read --set {text!r}", "type --set KEY=VALUE, as in --set pim.banks=32")
        if key in values:
            raise OptionError(f"--set gives {key!r} twice", "give it once")
        values[key] = _typed(value, present.get(key))
    return values


def _typed(text: str, present: Any) -> Any:
    """A value as TOML spells it, or as text; `present` is the current value."""
    try:
        read = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError, ValueError):
        read = {}
    value = read.get("value") if len(read) == 1 else None
    if isinstance(present, str) and not isinstance(value, str | list):
        return text
    if value is None:
        return None if text == "none" else text
    return value


def _put(data: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for step in path[:-1]:
        data = data[step]
    data[path[-1]] = value


def nearest_key(key: str, keys: Mapping[str, Any]) -> str:
    """A hint for a key that does not exist: keys with the same ending, or a similar spelling."""
    ending = [known for known in keys if known.endswith(f".{key}")]
    near = did_you_mean(key, ending or keys, most=3)
    if ending and not near:
        near = f"did you mean {' or '.join(map(repr, ending[:3]))}?"
    return f"{near} `pimflow targets show NAME` has all".lstrip()


def _with_gpu_operand(target: Target, operand: str) -> Target:
    gpu = target.any_gpu
    changed = replace(gpu, operand=choice("operand", operand, gpu.operands))
    return target.with_units(**{_device_of(target, gpu): changed})


def with_convolutions(target: Target, way: str | None, workspace_mib: float | None) -> Target:
    """The same machine with other algorithms, or another workspace, for convolutions on its GPU.

    Args:
        target: the machine.
        way: one of the algorithms, "fastest" for the fastest of them, None for the target's.
        workspace_mib: the maximum workspace of a convolution, apart from its operands; None for the target's.

    Raises:
        TargetError: it has no GPU.
    """
    if way is None and workspace_mib is None:
        return target
    gpu = target.any_gpu
    said = gpu.convolutions or LIBRARY_ALONE
    algorithms: tuple[Algorithm, ...] = said.algorithms
    if way is not None:
        algorithms = ALGORITHMS if way == "fastest" else tuple(name for name in ALGORITHMS if name == way)
    most = said.workspace_mib if workspace_mib is None else workspace_mib
    changed = replace(said, algorithms=algorithms, workspace_mib=most)
    return target.with_units(**{_device_of(target, gpu): replace(gpu, convolutions=changed)})


def _between(option: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise OptionError(f"{option} {value} is out of range", f"this target takes {low} to {high}")


def _device_of(target: Target, unit: Unit) -> str:
    return next(device for device, other in target.units.items() if other is unit)
