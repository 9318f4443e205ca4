"""A target as TOML text: complete and plain, or with the comments and sources of its file."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pimflow.data import decode, encode
from pimflow.errors import DataError
from pimflow.targets.schema import Target
from pimflow.targets.schema.origin import Origin, leaves, spelled

if TYPE_CHECKING:
    from tomlkit.container import Container

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(target: Target) -> str:
    """TOML text from which `parse_target` creates an equal target: all values, no comments."""
    lines: list[str] = []
    _write(encode(target), "", lines)
    return "\n".join(lines).lstrip("\n") + "\n"


def _write(table: Mapping[str, Any], path: str, lines: list[str]) -> None:
    """Plain values first, then the nested tables; omits None, and the header of a table without values."""
    plain = {key: value for key, value in table.items() if value is not None and not isinstance(value, dict)}
    tables = {key: value for key, value in table.items() if isinstance(value, dict)}
    if path and (plain or not tables):
        lines.extend(("", f"[{path}]"))
    # JSON's syntax of strings, numbers and lists of them is valid TOML, except for one character.
    lines += [f"{_key(key)} = {_json(value)}" for key, value in plain.items()]
    for key, value in tables.items():
        _write(value, f"{path}.{_key(key)}" if path else _key(key), lines)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _json(key)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def annotated(target: Target, notes: Mapping[str, str] | None = None) -> str:
    """Complete TOML text of a target with the comments and sources of the files that it comes from.

    A value that differs from the first of the files gets a comment that says so, instead of that file's comment.

    Args:
        target: the target; without an origin there are no comments.
        notes: comments on values that were changed, by key ("fitted").
    """
    if target.origin is None or not target.origin.files:
        return to_toml(target)
    text = _edited(target, target.origin, notes or {})
    try:
        same = decode(Target, tomllib.loads(text)) == target
    except (DataError, tomllib.TOMLDecodeError):
        same = False
    return text if same else to_toml(target)  # a file with unusual syntax: better no comments than wrong values


def _edited(target: Target, origin: Origin, notes: Mapping[str, str]) -> str:
    import tomlkit

    (first, text), *later = origin.files
    document = tomlkit.parse(text)
    document.pop("base", None)
    data = encode(target)
    wanted = {path: value for path, value in leaves(data) if value is not None}
    for path in [path for path, _ in leaves(document.unwrap()) if path not in wanted]:
        _remove(document, path)
    changed = []
    for path, value in wanted.items():
        before = _plain(_found(document, path))
        if before == value:
            continue
        key = ".".join(path)
        item = tomlkit.item(value)
        if len(path) > 1:
            was = f"{first} has {spelled(before)}" if before is not None else f"not in {first}"
            item.comment("; ".join(filter(None, (notes.get(key) or _said(later, path), was))))
            changed.append(key)
        _table(document, path)[path[-1]] = item
    head = f"# Made by pimflow from {first}, whose comments follow; changed values say so.\n" if changed else ""
    return head + tomlkit.dumps(document)


def _found(document: Container, path: tuple[str, ...]) -> Any:
    """The item at a path of a document; None if there is none."""
    place: Any = document
    for step in path:
        if not isinstance(place, Mapping) or step not in place:
            return None
        table = getattr(place, "value", place)  # a table's own items; `place[step]` of a bool has no comment
        place = table.item(step) if hasattr(table, "item") else place[step]
    return place


def _plain(item: Any) -> Any:
    """The value of an item; a bool is already plain."""
    return item.unwrap() if hasattr(item, "unwrap") else item


def _table(document: Container, path: tuple[str, ...]) -> Any:
    """The table that a path leads into, created if it is missing."""
    import tomlkit

    place: Any = document
    for step in path[:-1]:
        if not isinstance(place.get(step), Mapping):
            place[step] = tomlkit.table()
        place = place[step]
    return place


def _remove(document: Container, path: tuple[str, ...]) -> None:
    place = _found(document, path[:-1]) if len(path) > 1 else document
    del place[path[-1]]


def _said(files: list[tuple[str, str]], path: tuple[str, ...]) -> str:
    """The file that sets a value last, and its comment there."""
    import tomlkit

    for name, text in reversed(files):
        item = _found(tomlkit.parse(text), path)
        if item is not None:
            comment = item.trivia.comment.lstrip("# ") if hasattr(item, "trivia") else ""
            return f"{name}: {comment}" if comment else name
    return "overridden"
