"""Reads target files strictly: an unknown, missing or mistyped key is an error that names file and key."""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from pimflow.errors import TargetError, choose_one
from pimflow.targets.schema import Target

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_TARGET = "pimflow"
T = TypeVar("T")


def target_names() -> tuple[str, ...]:
    """Names of the targets that ship with the package."""
    folder = resources.files("pimflow.targets")
    return tuple(sorted(entry.name[: -len(".toml")] for entry in folder.iterdir() if entry.name.endswith(".toml")))


def load_target(name_or_path: str | Path) -> Target:
    """A shipped target by name (case-insensitive), or a TOML file by path.

    Raises:
        TargetError: no such target or file, or the file is not a valid target.
    """
    text = str(name_or_path)
    if text.lower() in target_names():
        return _shipped(text.lower())
    if not text.endswith(".toml"):
        hint = choose_one(text.lower(), target_names())
        raise TargetError(f"unknown target {text!r}", f"{hint}, or give a FILE.toml")
    try:
        content = Path(text).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TargetError(f"cannot read target file {text}: {error}", "check the path") from None
    return parse_target(content, text)


def target_text(name: str) -> str:
    """The TOML text of a shipped target, comments and sources included."""
    if name.lower() not in target_names():
        load_target(name)  # raises the right error
    return resources.files("pimflow.targets").joinpath(f"{name.lower()}.toml").read_text(encoding="utf-8")


@cache
def _shipped(name: str) -> Target:
    return parse_target(target_text(name), f"{name}.toml")


def parse_target(content: str, where: str) -> Target:
    """A target from TOML text; `where` names it in errors.

    Raises:
        TargetError: not TOML, or a key is missing, unknown, of the wrong type or out of range.
    """
    try:
        data = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise TargetError(f"{where} is not valid TOML: {error}", "correct the file") from None
    target = _build(Target, data, where, "")
    _check(target, where)
    return target


def _build(cls: type[T], data: dict[str, Any], where: str, path: str) -> T:
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in data:
        if key not in fields:
            raise TargetError(f"{where}: unknown key {path + key!r}", choose_one(key, fields))
    values = {}
    for name, field in fields.items():
        if name in data:
            values[name] = _convert(hints[name], data[name], where, path + name)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise TargetError(f"{where}: missing key {path + name!r}", "add it; `pimflow targets show pimflow` has all")
    return cls(**values)


def _convert(hint: Any, value: Any, where: str, path: str) -> Any:
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise TargetError(f"{where}: {path!r} must be a table", f"write it as [{path}]")
        return _build(typing.cast("type[Any]", hint), value, where, path + ".")
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        return _convert(options[0], value, where, path)
    if origin is typing.Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise TargetError(f"{where}: {path!r} is {value!r}", f"it must be one of {', '.join(map(str, choices))}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise TargetError(f"{where}: {path!r} must be a list", "write it as [a, b, ...]")
        inner = typing.get_args(hint)[0]
        return tuple(_convert(inner, item, where, f"{path}[{index}]") for index, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise TargetError(f"{where}: {path!r} must be a table", f"write it as [{path}]")
        inner = typing.get_args(hint)[1]
        return {key: _convert(inner, item, where, f"{path}.{key}") for key, item in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise TargetError(f"{where}: {path!r} is {value!r}", f"it must be of type {hint.__name__}")
    return value


def _check(target: Target, where: str) -> None:
    _check_numbers(target, where, "")
    pim = target.pim
    artifact, strict = pim.timing.artifact, pim.timing.strict
    refresh_cycles = strict.t_rp + strict.t_rfc + pim.bank_groups * strict.t_faw + strict.t_ras + strict.t_rcd
    problems = {
        "pim.timing.artifact.refresh_interval": artifact.refresh_interval <= artifact.pre_to_act + artifact.ref_to_act
        and "leaves no time between refreshes",
        "pim.timing.strict.t_refi": strict.t_refi <= refresh_cycles and "leaves no time between refreshes",
        "pim.channels": pim.channels >= target.gpu.memory_channels and "must be below gpu.memory_channels",
        "pim.bank_groups": pim.banks % pim.bank_groups != 0 and "must divide pim.banks",
        "pim.buffers": pim.buffers > pim.channels and "must not exceed pim.channels",
    }
    for key, problem in problems.items():
        if problem:
            raise TargetError(f"{where}: {key!r} {problem}", "correct the file")


_MAY_BE_ZERO = ("_pj", "_nj", "_mw", "_w", "_per_byte", "drain", "launch_cycles", "_to_next_hidden", "postponed")


def _check_numbers(item: Any, where: str, path: str) -> None:
    for field in dataclasses.fields(item):
        value = getattr(item, field.name)
        if dataclasses.is_dataclass(value):
            _check_numbers(value, where, f"{path}{field.name}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            zero_ok = any(part in field.name for part in _MAY_BE_ZERO)
            if not value < float("inf") or value < 0 or (value == 0 and not zero_ok):
                raise TargetError(f"{where}: {path + field.name!r} is {value}", "it must be positive and finite")
