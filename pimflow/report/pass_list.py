"""The passes with their options and purposes, from the fields and docstrings of their classes."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, asdict
from typing import Any

from pimflow.passes import PIPELINES, Pass, every_pass
from pimflow.records import dataclass
from pimflow.report.tables import window_columns

_INDENT = "    "
_COLUMNS = 120  # in a pipe
_MIN_HELP_COLUMNS = 30  # minimum columns for the meaning of an option; with fewer, it goes on the next line
_WORDS: Mapping[Any, str] = {str: "text", int: "whole number", float: "number", bool: "true|false"}


@dataclass(frozen=True)
class OptionHelp:
    """One option: its name, the kind of its value, its default as text ("" if it is required), and its meaning."""

    name: str
    takes: str
    default: str
    help: str


@dataclass(frozen=True)
class PassHelp:
    """One pass: its name, its purpose, its options."""

    name: str
    help: str
    options: tuple[OptionHelp, ...]

    def as_json(self) -> dict[str, Any]:
        """One JSON object."""
        return asdict(self)


def pass_help(kind: type[Pass]) -> PassHelp:
    """The help for a pass, from its class."""
    summary, meanings = _docstring(kind)
    forms = typing.get_type_hints(kind)
    options = tuple(
        OptionHelp(field.name, _takes(forms[field.name]), _default(field), meanings.get(field.name, ""))
        for field in dataclasses.fields(kind)
    )
    return PassHelp(kind.name, summary, options)


def all_passes_help() -> tuple[PassHelp, ...]:
    """The help for all passes, from their classes."""
    return tuple(pass_help(kind) for kind in every_pass())


def pass_list_text() -> str:
    """All passes in human-readable form, and the names of pipelines."""
    parts = [_pass_text(item) for item in all_passes_help()]
    for name, passes in PIPELINES.items():
        parts.append(f"{name}\n" + _wrapped(f"Stands for {', '.join(map(str, passes))}.", _INDENT))
    return "\n\n".join(parts)


def _pass_text(known: PassHelp) -> str:
    lines = [known.name, _wrapped(known.help, _INDENT)]
    takes = [f"{option.takes}, {option.default or 'required'}" for option in known.options]
    first, second = (max(map(len, column), default=0) for column in ([o.name for o in known.options], takes))
    for option, kind in zip(known.options, takes, strict=True):
        head = f"{_INDENT}{option.name.ljust(first)}  {kind.ljust(second)}  "
        if _columns() - len(head) >= _MIN_HELP_COLUMNS:
            lines.append(head + _wrapped(option.help, " " * len(head)).lstrip())
        else:
            lines += [head.rstrip(), _wrapped(option.help, 2 * _INDENT)]
    return "\n".join(lines)


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(text, _columns(), initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _columns() -> int:
    return window_columns() or _COLUMNS


def _docstring(kind: type[Pass]) -> tuple[str, dict[str, str]]:
    """The first paragraph, and the text on each argument."""
    text = inspect.getdoc(kind) or ""
    _, _, arguments = text.partition("\nArgs:\n")
    entries = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", arguments, re.MULTILINE)
    return _one_line(text.split("\n\n")[0]), {name: _one_line(meaning) for name, meaning in entries}


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _takes(form: Any) -> str:
    """The kind of value for an option of this type, in words."""
    origin, arguments = typing.get_origin(form), typing.get_args(form)
    if origin is tuple:
        return f"[{_takes(arguments[0])} ...]"
    if origin is types.UnionType:
        return "|".join(map(_takes, arguments))
    if origin is typing.Literal:
        return "|".join(map(str, arguments))
    if dataclasses.is_dataclass(form):
        return f"{typing.cast('type[Any]', form).__name__}{{...}}"
    return _WORDS[form]


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is MISSING:
        return ""
    if isinstance(field.default, tuple):
        return "[" + ", ".join(map(str, field.default)) + "]"
    return str(field.default).lower() if isinstance(field.default, bool) else str(field.default) or '""'
