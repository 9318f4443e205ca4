"""Parses the values of --shape."""

from __future__ import annotations

from collections.abc import Sequence

from pimflow.errors import ShapeError

Bound = tuple[int, ...] | int
_MAX_DIGITS = 18
_SYNTAX = "type --shape INPUT:1x3x224x224 or --shape DIM=1"


def parse_shapes(texts: Sequence[str]) -> dict[str, Bound]:
    """Read `input:1x3x224x224` (a whole input) and `N=1` (a symbolic dimension).

    Raises:
        ShapeError: a text has neither form, a size is not an integer of at least 0, or a name has two different values.
    """
    shapes: dict[str, Bound] = {}
    for text in texts:
        name, bound = _parse_shape(text.strip())
        if shapes.setdefault(name, bound) != bound:
            raise ShapeError(f"--shape binds {name!r} twice, to {_spell(shapes[name])} and {_spell(bound)}")
    return shapes


def _parse_shape(text: str) -> tuple[str, Bound]:
    name, colon, dims = text.rpartition(":")
    if colon and name and dims and "=" not in dims:
        return name, tuple(_size(part, text) for part in dims.lower().split("x"))
    name, equals, dim = text.rpartition("=")
    if equals and name:
        return name, _size(dim, text)
    raise ShapeError(f"cannot read --shape {text!r}", _SYNTAX)


def _size(text: str, whole: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > _MAX_DIGITS:
        raise ShapeError(f"--shape {whole[:60]!r}: {text[:40]!r} is not a valid size", _SYNTAX)
    return int(text)


def _spell(bound: Bound) -> str:
    return str(bound) if isinstance(bound, int) else "x".join(map(str, bound))
