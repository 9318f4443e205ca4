"""`FreshNames`: generates names that are not in use yet."""

from __future__ import annotations

from collections.abc import Iterable


class FreshNames:
    """Makes names from a base: the base itself if it is free, then base_1, base_2, ...

    Linear in the number of names made, because the last number of every base is cached.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._counters: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def fresh(self, base: str) -> str:
        """A name that was free before the call; never "", which denotes an absent value."""
        name = base
        while not name or name in self._taken:
            self._counters[base] = self._counters.get(base, 0) + 1
            name = f"{base}_{self._counters[base]}"
        self._taken.add(name)
        return name
