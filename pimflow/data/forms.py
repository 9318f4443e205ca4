"""What data can hold besides plain values: limits of numbers, hashable tables, the fields of records."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar

from pimflow.records import NamedTuple, dataclass

Number = bool | int | float | Literal["inf", "-inf", "nan"]
"""A number as JSON can hold it, too: infinities and NaN as words."""

V = TypeVar("V")
TAG = "type"
"""The key of a class's name."""
NOT_DATA: Mapping[str, Any] = {"data": False}
"""Metadata of a field that is not part of the data: it is not written, and reading gives its default."""


@dataclass(frozen=True)
class Limits:
    """The range of a number, which must also be finite, as in `Annotated[int, Limits(least=1)]`.

    Args:
        least: the smallest value allowed.
        most: the largest value allowed.
        above: every value must be larger than this.
    """

    least: float | None = None
    most: float | None = None
    above: float | None = None

    def hold(self, value: float) -> bool:
        """Whether a number is within the limits."""
        low = (self.least is None or value >= self.least) and (self.above is None or value > self.above)
        return low and (self.most is None or value <= self.most)

    def __str__(self) -> str:
        if self.least is not None and self.most is not None:
            return f"between {self.least} and {self.most}"
        words = (
            (f"above {self.above}", self.above),
            (f"{self.least} or more", self.least),
            (f"{self.most} or less", self.most),
        )
        return " and ".join(word for word, limit in words if limit is not None)


class Table(Mapping[str, V]):
    """An immutable, hashable mapping that keeps its order, for fields of hashed records."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, V]) -> None:
        self._items = dict(items)

    def __getitem__(self, key: str) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(tuple(self._items.items()))

    def __repr__(self) -> str:
        return f"Table({self._items!r})"


class DataField(NamedTuple):
    """A field that is part of the data, and whether it is required."""

    name: str
    needed: bool


def is_record(form: Any) -> bool:
    """Whether `form` is a dataclass or a named tuple."""
    return dataclasses.is_dataclass(form) or hasattr(form, "_field_defaults")


def fields_of(cls: type[Any]) -> tuple[DataField, ...]:
    """The fields of a dataclass or a named tuple that are part of the data."""
    if not dataclasses.is_dataclass(cls):
        named: Any = cls
        return tuple(DataField(name, name not in named._field_defaults) for name in named._fields)
    missing = dataclasses.MISSING
    return tuple(
        DataField(f.name, f.default is missing and f.default_factory is missing)
        for f in dataclasses.fields(cls)
        if f.init and f.metadata.get("data", True)
    )
