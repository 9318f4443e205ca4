"""Reads target files strictly: an unknown, missing or mistyped key is an error that names file and key."""

from __future__ import annotations

import sys
from functools import cache
from importlib import resources
from pathlib import Path

from pimflow.data import decode, read_file
from pimflow.errors import DataError, TargetError, choose_one
from pimflow.targets.schema import Target
from pimflow.targets.schema.unit import MISSING

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_TARGET = "pimflow"
_HINT = "add it; `pimflow targets show pimflow` has all"


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
        content = read_file(text).decode("utf-8-sig")
    except OSError as error:
        raise TargetError(f"cannot read target file {text}: {error.strerror}", "check the path") from None
    except UnicodeDecodeError as error:
        raise TargetError(f"cannot read target file {text}: {error}", "save it as UTF-8") from None
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
    except (ValueError, RecursionError) as error:  # also of numbers of thousands of digits, and of deep nesting
        raise TargetError(f"{where} is not valid TOML: {error}", "correct the file") from None
    try:
        target = decode(Target, data)
    except DataError as error:
        raise TargetError(f"{where}: {error.what}", error.hint or _HINT) from None
    check(target, where)
    return target


def check(target: Target, where: str) -> None:
    """Checks the units of a target against each other; `where` names it in errors.

    Raises:
        TargetError: a value that contradicts the others.
    """
    for device, unit in target.units.items():
        for key, problem in unit.problems(target.units):
            path = f"{device}.{key}"
            if problem == MISSING:
                raise TargetError(f"{where}: missing key {path!r}", _HINT)
            raise TargetError(f"{where}: {path!r} {problem}", "correct the file")
