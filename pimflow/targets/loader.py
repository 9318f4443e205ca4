"""Reads target files strictly: an unknown, missing or mistyped key is an error that names file and key.

A file may extend another target (`base = "pimflow"`) and contain only the differences.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any

from pimflow import plugins
from pimflow.data import Table, decode, encode, read_file
from pimflow.errors import ArgumentError, DataError, TargetError, choose_one, kind_of
from pimflow.targets.schema import Origin, Target
from pimflow.targets.schema.origin import differences, with_changes
from pimflow.targets.schema.target import HINT
from pimflow.targets.schema.unit import USUAL_KINDS
from pimflow.targets.writer import annotated

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_TARGET = "pimflow"
_MAX_BASES = 16


def target_names() -> tuple[str, ...]:
    """Names of the targets that ship with pimflow, followed by those that other installed packages offer."""
    return (*_shipped_names(), *plugins.names(plugins.TARGETS, _shipped_names()))


def every_target() -> tuple[Target, ...]:
    """All targets; those of other packages that cannot be loaded are omitted with a warning."""
    others = plugins.load_all(plugins.TARGETS, load_target, _shipped_names())
    return (*map(_shipped, _shipped_names()), *others)


def load_target(target: str | Path | Target) -> Target:
    """Returns a target by name (case-insensitive) or by the path of a TOML file; a `Target` is returned unchanged.

    Names are those of pimflow and of other installed packages.

    Raises:
        TargetError: no such target or file, or the file is not a valid target.
        PluginError: another package offers it, but it cannot be loaded.
        ArgumentError: it is something else.
    """
    if isinstance(target, Target):
        return target
    if not isinstance(target, (str, os.PathLike)):
        raise ArgumentError(f"'target' is {kind_of(target)}", "give a name, a FILE.toml or a pimflow.Target")
    return _load(str(target), "unknown target", Path(), ())


def target_text(name: str | Path) -> str:
    """The TOML text of a target with comments and sources, complete even if its file extends another.

    Raises:
        TargetError: as for `load_target`.
    """
    target = load_target(name)
    origin = target.origin
    if origin is None or len(origin.files) != 1 or origin.name != target.name or target.overrides:
        return annotated(target)
    return origin.files[0][1]


def parse_target(content: str, where: str) -> Target:
    """Reads a target from TOML text; `where` names it in errors, and a base is searched for in the same folder.

    Raises:
        TargetError: not TOML, or a key is missing, unknown, of the wrong type or out of range.
    """
    return _parse(content, where, ())


def _load(name: str, unknown: str, folder: Path, above: tuple[str, ...]) -> Target:
    """A target by name or path; `unknown` starts the error message, `above` are the files that extend it."""
    if name.lower() in _shipped_names():
        return _shipped(name.lower())
    if not name.endswith(".toml"):
        plugin = plugins.find(plugins.TARGETS, name)
        if plugin is not None:
            return _of_plugin(plugin, above)
        raise TargetError(f"{unknown} {name!r}", f"{choose_one(name.lower(), target_names())}, or give a FILE.toml")
    path = folder / name
    try:
        content = read_file(path).decode("utf-8-sig")
    except OSError as error:
        raise TargetError(f"cannot read target file {path}: {error.strerror}", "check the path") from None
    except ValueError as error:  # not UTF-8, or a name that no file can have
        hint = "save it as UTF-8" if isinstance(error, UnicodeDecodeError) else "check the path"
        raise TargetError(f"cannot read target file {path}: {error}", hint) from None
    return _parse(content, str(path), above)


@cache
def _shipped_names() -> tuple[str, ...]:
    folder = resources.files("pimflow.targets")
    return tuple(sorted(entry.name[: -len(".toml")] for entry in folder.iterdir() if entry.name.endswith(".toml")))


@cache
def _shipped(name: str) -> Target:
    text = resources.files("pimflow.targets").joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return parse_target(text, f"{name}.toml")


def _of_plugin(plugin: plugins.Plugin, above: tuple[str, ...]) -> Target:
    """The target of another package: an object, or the file NAME.toml next to or inside a module."""
    found: object = plugin.load(object)
    if isinstance(found, ModuleType):
        found = _beside(found, plugin, above)
    if not isinstance(found, Target):
        raise plugin.problem(f"is {kind_of(found)}, not a Target or a module")
    if found.name.lower() != plugin.name:
        raise plugin.problem(f"calls itself {found.name!r}")
    return found


def _beside(module: ModuleType, plugin: plugins.Plugin, above: tuple[str, ...]) -> Target:
    is_package = hasattr(module, "__path__")
    folder = resources.files(module.__name__) if is_package else Path(module.__file__ or "").parent
    file = folder.joinpath(f"{plugin.name}.toml")
    try:
        return _parse(file.read_text(encoding="utf-8-sig"), str(file), above)
    except (OSError, ValueError) as error:
        raise plugin.problem(f"has no {plugin.name}.toml in {module.__name__} that can be read: {error}") from None
    except TargetError as error:
        raise plugin.problem(f"is not a valid target: {error}") from None


def _parse(content: str, where: str, above: tuple[str, ...]) -> Target:
    try:
        data = tomllib.loads(content)
    except (ValueError, RecursionError) as error:  # includes numbers of thousands of digits, and deep nesting
        raise TargetError(f"{where} is not valid TOML: {error}", "correct the file") from None
    try:
        base = _base(decode(str, data.pop("base"), path="base"), where, above) if "base" in data else None
        target = decode(Target, data) if base is None else _derived(base, data, where)
    except DataError as error:
        raise TargetError(f"{where}: {error.what}", error.hint or HINT) from None
    files = (*(base.origin.files if base and base.origin else ()), (Path(where).name, content))
    origin = Origin(target.name, target.description, Table(target.values), base=base.name if base else "", files=files)
    return replace(target, origin=origin)


def _base(name: str, where: str, above: tuple[str, ...]) -> Target:
    """The target that a file extends: a shipped one, or a file, whose path is relative to the file that names it."""
    chain = (*above, _identity(Path(where)))
    if name.endswith(".toml") and _identity(Path(where).parent / name) in chain:
        raise TargetError(f"{where}: base {name!r} starts from this file itself", "let one of the files have no base")
    if len(chain) > _MAX_BASES:
        raise TargetError(f"{where}: more than {_MAX_BASES} files start from each other", "copy some into others")
    return _load(name, f"{where}: unknown base", Path(where).parent, chain)


def _identity(path: Path) -> str:
    """A key that identifies a file, by whatever path it is named."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):  # not a valid path: reading it will report that
        return str(path)


def _derived(base: Target, data: Mapping[str, Any], where: str) -> Target:
    """A target from its base and the differences in its file.

    By default its name is that of the file, and its description lists the differences.

    Raises:
        DataError: a key is unknown, or a value is of another type, out of range, or contradicts the others.
    """
    own = {"name": Path(where).stem, "description": "", **data}
    target = decode(Target, merged(encode(base), own))
    if "description" in data:
        return target
    changes = differences(base.values, target.values)
    return replace(target, description=with_changes(base.name, changes))


def merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a base, overridden table by table by a file's own; a unit of another kind replaces the table."""
    found = dict(base)
    for key, value in own.items():
        inherited = found.get(key)
        tables = isinstance(value, Mapping) and isinstance(inherited, Mapping)
        found[key] = merged(inherited, value) if tables and _same_kind(key, inherited, value) else value  # type: ignore[arg-type]
    return found


def _same_kind(device: str, inherited: Any, own: Any) -> bool:
    kind = inherited.get("kind", USUAL_KINDS.get(device))
    return bool(own.get("kind", kind) == kind)
