"""Registries: one entry per key, open to code outside the package; registrations can be undone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Generic, TypeVar

from pimflow.records import dataclass

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

    def add_by_place(self, key: Key, place: str) -> None:
        """Adds an entry of pimflow's that is imported when it is first looked up.

        Args:
            key: its key.
            place: where it is, as in "package.module:name".

        Raises:
            ValueError: the key already has an entry.
        """
        self.add(key, _Elsewhere(place))  # type: ignore[arg-type]

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
        return self[key] if key in self._entries else None

    def __getitem__(self, key: Key) -> Entry:
        """The entry of a key.

        Raises:
            KeyError: the key has none.
        """
        entry = self._entries[key]
        if isinstance(entry, _Elsewhere):
            entry = self._entries[key] = entry.load()
        return entry

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[Key]:
        return iter(tuple(self._entries))

    def values(self) -> tuple[Entry, ...]:
        """All entries."""
        return tuple([self[key] for key in self])

    def imported(self) -> tuple[Entry, ...]:
        """The entries that are not still to be imported."""
        return tuple([entry for entry in self._entries.values() if not isinstance(entry, _Elsewhere)])


@dataclass(frozen=True)
class _Elsewhere:
    """Stands for an entry that is not imported yet."""

    place: str

    def load(self) -> Any:
        module, _, name = self.place.partition(":")
        return getattr(import_module(module), name)


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
    entries = (*others, *(entry for registry in _REGISTRIES for entry in registry.imported()))
    modules = {getattr(entry, "__module__", "") for entry in entries}
    return tuple(sorted(module for module in modules if module and module.split(".")[0] != "pimflow"))


def _name(key: object) -> str:
    return key.__name__ if isinstance(key, type) else repr(key)
