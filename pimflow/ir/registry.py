"""Registries: one entry per key, open to code outside the package; registrations can be undone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

Key = TypeVar("Key")
Entry = TypeVar("Entry")

_REGISTRIES: list[Registry[Any, Any]] = []


class Registry(Generic[Key, Entry]):
    """Entries by key, in the order in which they were added.

    Args:
        what: names the registry in error messages.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._entries: dict[Key, Entry] = {}
        _REGISTRIES.append(self)

    def add(self, key: Key, entry: Entry) -> None:
        """Adds an entry.

        Raises:
            ValueError: the key already has one.
        """
        if key in self._entries:
            raise ValueError(f"{self.what}: {_name(key)} is registered already")
        self._entries[key] = entry

    def register(self, *keys: Key) -> Callable[[Entry], Entry]:
        """A decorator that adds the decorated object under each of the keys.

        Raises:
            ValueError: a key already has an entry.
        """

        def add(entry: Entry) -> Entry:
            for key in keys:
                self.add(key, entry)
            return entry

        return add

    def get(self, key: Key) -> Entry | None:
        """The entry of a key; None if it has none."""
        return self._entries.get(key)

    def __getitem__(self, key: Key) -> Entry:
        """The entry of a key.

        Raises:
            KeyError: the key has none.
        """
        return self._entries[key]

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[Key]:
        return iter(tuple(self._entries))

    def values(self) -> tuple[Entry, ...]:
        """All entries."""
        return tuple(self._entries.values())


@contextmanager
def scratch_registrations() -> Iterator[None]:
    """A context that undoes on exit all registrations made within it, in every registry: for tests and experiments."""
    before = [(registry, dict(registry._entries)) for registry in _REGISTRIES]
    try:
        yield
    finally:
        for registry, entries in before:
            registry._entries.clear()
            registry._entries.update(entries)


def outside_modules(*others: object) -> tuple[str, ...]:
    """The modules outside this package that registered objects, or any of `others`, come from: their names, sorted."""
    entries = (*others, *(entry for registry in _REGISTRIES for entry in registry.values()))
    modules = {getattr(entry, "__module__", "") for entry in entries}
    return tuple(sorted(module for module in modules if module and module.split(".")[0] != "pimflow"))


def _name(key: object) -> str:
    return key.__name__ if isinstance(key, type) else repr(key)
