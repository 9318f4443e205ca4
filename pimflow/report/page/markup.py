"""HTML and SVG from data: everything that is not yet markup is escaped, so that names in a model cannot inject any."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from importlib.resources import files
from typing import Any

from pimflow.errors import printable

MAX_NAME_LENGTH = 120
_VOID = frozenset({"input", "link", "meta"})


class Markup(str):
    """Text that already is markup."""

    __slots__ = ()


def element(name: str, /, *content: str, **attributes: str | float | bool | None) -> Markup:
    """An element of HTML or SVG.

    Args:
        name: of the element.
        content: text, which is escaped, and markup, which is not.
        attributes: by name, escaped; `_` becomes `-`, a trailing `_` is dropped. None and False omit the attribute.
    """
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{_attribute(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    start = f"<{name}{written}>"
    return Markup(start if name in _VOID else f"{start}{joined(content)}</{name}>")


def joined(content: Iterable[str]) -> Markup:
    """Text and markup, concatenated."""
    return Markup("".join(item if isinstance(item, Markup) else escaped(item) for item in content))


def escaped(text: str) -> Markup:
    """Text as markup that shows it; unprintable characters are shown as escapes."""
    return Markup(html.escape(printable(text)))


def shortened(name: str, most: int = MAX_NAME_LENGTH) -> str:
    """A name, with its middle omitted if it has more than `most` characters."""
    shown = printable(name)
    half = (most - 1) // 2
    return shown if len(shown) <= most else f"{shown[:half]}…{shown[-half:]}"


def embedded_json(data: Any) -> Markup:
    """JSON that is safe in a script element: nothing in it ends the element or begins a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)  # only ASCII, hence no U+2028
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)


def asset(name: str) -> str:
    """The content of one of the page's style sheets or scripts."""
    return files("pimflow.report.page").joinpath(name).read_text(encoding="utf-8")


def _attribute(value: str | float | bool) -> str:
    if isinstance(value, str):
        return html.escape(printable(value))
    return f"{value:.10g}"
