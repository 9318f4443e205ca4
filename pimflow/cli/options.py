"""The arguments that follow from the fields of `Options`: flags, help, and parsers of their values."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields
from types import UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin

from pimflow.cli.fixing import parse_fixed
from pimflow.cli.parsing import Parser, add_target, number, target_of
from pimflow.cli.shapes import parse_shapes
from pimflow.options import Debug, OptionKeywords, Options, OptionText, Shapes, option_forms, option_texts
from pimflow.search import policy_names
from pimflow.targets import Target

_DEBUG = "debug."
"""The prefix for the names of `Debug`'s fields among the arguments."""


def add_options(parser: Parser, *, only: Collection[str] = (), without: Collection[str] = ()) -> None:
    """Add arguments for all options, or some of them.

    Args:
        parser: where they are added.
        only: names of options and of groups; all if empty.
        without: names of options and of groups to leave out.
    """
    groups: dict[str, Any] = {"": parser}
    for name, text in option_texts().items():
        called = {name, text.group}
        if called & set(without) or (only and not called & set(only)):
            continue
        if option_forms()[name] is Target:
            add_target(parser)
        elif option_forms()[name] is Debug:
            for part, what in option_texts(Debug).items():
                _add(groups, Debug, part, what, _DEBUG)
        else:
            _add(groups, Options, name, text)


def keywords_of(arguments: argparse.Namespace) -> OptionKeywords:
    """The options that a verb has arguments for; the others keep their defaults.

    Raises:
        PimflowError: a value is out of range, or the target is not valid.
    """
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in vars(arguments).items()
    }
    keywords = {name: given[name] for name in option_texts() if name in given}
    for name in keywords:
        if option_forms()[name] is Target:
            keywords[name] = target_of(arguments)
        elif get_origin(option_forms()[name]) is Mapping:
            keywords[name] = (parse_shapes if option_forms()[name] == Shapes else parse_fixed)(given[name])
    debug: dict[str, Any] = {name: given[_DEBUG + name] for name in option_texts(Debug) if _DEBUG + name in given}
    return cast("OptionKeywords", keywords | {"debug": Debug(**debug)})


def _add(groups: dict[str, Any], cls: Any, name: str, text: OptionText, prefix: str = "") -> None:
    if not text.flag:
        return
    if text.group not in groups:
        groups[text.group] = groups[""].add_argument_group(text.group)
    parser = groups[text.group]
    form = option_forms(cls)[name]
    default = next(f.default for f in fields(cls) if f.name == name)
    help = f"{text.help}: {', '.join(policy_names())}" if name == "policy" else text.help
    if form is bool:
        action, help = ("store_false", f"do not {help}") if default else ("store_true", help)
        parser.add_argument(text.flag, dest=prefix + name, action=action, help=help)
        return
    how: dict[str, Any] = {"type": _reader(form), "default": default}
    if text.cli_default is not None:
        how, default = {"type": _or_none(_reader(form)), "default": text.cli_default}, f"{text.cli_default:g}"
    if default not in (None, MISSING, ()):
        help = f"{help} (default: {default})"
    if form == tuple[str, ...] or get_origin(form) is Mapping:
        how = {"action": "append", "default": []}
        help = f"{help}; may be repeated"
    flags = (text.short, text.flag) if text.short else (text.flag,)
    parser.add_argument(*flags, dest=prefix + name, metavar=text.metavar, help=help, **how)


def _or_none(read: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: None if text == "none" else read(text)


def _reader(form: Any) -> Callable[[str], Any]:
    """The parser of an argument's text for a type."""
    origin, members = get_origin(form), get_args(form)
    if origin in (Union, UnionType):
        return _reader(members[0])  # the other is None
    if origin is tuple:
        return lambda text: [_reader(members[0])(part) for part in text.split(",")]
    if origin is Annotated:
        kind, limits = members
        return number(kind, limits)
    return str
