"""The original form of a target in its file, before any override, so that reports can show what was changed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pimflow.data import Table
from pimflow.records import dataclass

_MAX_LISTED = 6


@dataclass(frozen=True)
class Override:
    """One value that differs from the target's file; None stands for an omitted key."""

    key: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.key} = {spelled(self.after)} (not {spelled(self.before)})"


@dataclass(frozen=True)
class Origin:
    """A target as its file defines it.

    Args:
        name, description: as in the file.
        values: every value of its units, by key, such as "pim.timing.strict.t_faw".
        base: the name of the target that the file extends; "" if it extends none.
        files: name and text of its file, preceded by the files that it extends, the first of which is complete.
    """

    name: str
    description: str
    values: Table[Any]
    base: str = ""
    files: tuple[tuple[str, str], ...] = ()

    def overrides(self, values: Mapping[str, Any], unsaid: Mapping[str, Any]) -> tuple[Override, ...]:
        """The differences of `values`, in their order; keys that either side omits have the value in `unsaid`."""
        missing = {key: value for key, value in unsaid.items() if key not in values}
        return differences({**unsaid, **self.values}, {**values, **missing})

    def describe(self, given: str, overrides: Sequence[Override]) -> str:
        """A target's description; if overrides may have made it untrue, the overrides instead."""
        if given != self.description and not given.startswith(f"{self.name} with "):
            return given
        return with_changes(self.name, overrides) if overrides else self.description


def with_changes(name: str, changes: Sequence[Override]) -> str:
    """A description in terms of the differences from another target: "pimflow with pim.banks = 32"."""
    listed = [f"{change.key} = {spelled(change.after)}" for change in changes[:_MAX_LISTED]]
    more = [f"{len(changes) - _MAX_LISTED} more changes"] if len(changes) > _MAX_LISTED else []
    return f"{name} with {', '.join([*listed, *more])}" if changes else name


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Override, ...]:
    """The keys whose values differ; None for a key that one side lacks."""
    keys = dict.fromkeys((*after, *before))
    return tuple(Override(key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key))


def leaves(data: Mapping[str, Any], start: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The path and the value of everything in nested tables that is not a table."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from leaves(value, (*start, key))
        else:
            yield (*start, key), value


def by_key(data: Mapping[str, Any]) -> dict[str, Any]:
    """The values of nested tables by key, with the names of the tables joined by dots; lists become tuples."""
    return {".".join(path): frozen(value) for path, value in leaves(data)}


def matters_to_time(key: str) -> bool:
    """Whether times may depend on a value of a machine: energies do not, nor does the text on the source of times."""
    *tables, name = key.split(".")
    return "energy" not in (*tables, name) and not name.endswith("_pj") and name != "basis"


def spelled(value: Any) -> str:
    """A value as people write it: text without quotes, long lists shortened, "none" for an omitted key."""
    if value is None or isinstance(value, str):
        return value or "none"
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def frozen(value: Any) -> Any:
    """Plain data with tuples instead of lists."""
    return tuple(map(frozen, value)) if isinstance(value, list) else value
