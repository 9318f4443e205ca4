"""Parses the values of --fix."""

from __future__ import annotations

from collections.abc import Sequence

from pimflow.data import Number
from pimflow.errors import OptionError

_WORDS = {"true": True, "false": False}
_SYNTAX = "type --fix INPUT=16000, INPUT=true or INPUT=0.5,1,2"


def parse_fixed(texts: Sequence[str]) -> dict[str, Number | tuple[Number, ...]]:
    """Read `sr=16000` (one number for all elements), `flag=true` and `scales=1,0.5` (one number per element).

    Raises:
        OptionError: a text has none of these forms, or an input has two different values.
    """
    fixed: dict[str, Number | tuple[Number, ...]] = {}
    for text in texts:
        name, equals, listed = text.strip().rpartition("=")
        if not equals or not name:
            raise OptionError(f"cannot read --fix {text!r}", _SYNTAX)
        numbers = tuple(_number(part.strip(), text) for part in listed.split(","))
        given = numbers if len(numbers) > 1 else numbers[0]
        if repr(fixed.setdefault(name, given)) != repr(given):
            raise OptionError(f"--fix gives {name!r} two values", "leave one out")
    return fixed


def _number(part: str, text: str) -> Number:
    if part.lower() in _WORDS:
        return _WORDS[part.lower()]
    for kind in (int, float):
        try:
            return kind(part)
        except ValueError:
            continue
    raise OptionError(f"--fix {text[:60]!r}: {part[:40]!r} is not a number, true or false", _SYNTAX)
