"""Reads plain data as the records that their types describe; errors name the path to what is wrong."""

from __future__ import annotations

import math
import os
import reprlib
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from numbers import Integral, Real
from typing import Annotated, Any, Literal, TypeVar, Union, overload

from pimflow.data.forms import TAG, Limits, fields_of, is_record
from pimflow.errors import DataError, OptionError, choose_one

T = TypeVar("T")
Read = Callable[[Any], Any]
Nested = Callable[..., Any]
"""(form, data, *path): passed to `from_data`, to read data nested inside its own data; `path` leads there."""


@overload
def decode(form: type[T], data: Any, *, tagged: bool = False, path: str = "") -> T: ...
@overload
def decode(form: Any, data: Any, *, tagged: bool = False, path: str = "") -> Any: ...
def decode(form: Any, data: Any, *, tagged: bool = False, path: str = "") -> Any:
    """The value that `encode` was given, from its plain data.

    Args:
        form: the type to read: a dataclass, or any other type that this module names.
        data: plain data. Keys of mappings are text.
        tagged: whether dataclasses carry their class's name.
        path: where the data are, prefixed to the paths in errors.

    Raises:
        DataError: the data do not have that form.
    """
    try:
        return _reader(form, tagged)(data)
    except _Fault as fault:
        raise DataError(fault.text(path), fault.hint) from None


def is_readable(form: Any) -> bool:
    """Whether `decode` can read a type, apart from the fields of a dataclass."""
    try:
        _reader(form, False)
    except (KeyError, TypeError):
        return False
    return True


def read_argument(name: str, form: Any, value: Any) -> Any:
    """Convert the argument of a function to a type that `pimflow.data` reads: lists become tuples.

    Raises:
        OptionError: it has the wrong type or is out of range.
    """
    try:
        return decode(form, _plain(value), path=name)
    except DataError as error:
        raise OptionError(error.what, error.hint) from None


def _plain(value: Any) -> Any:
    """Convert what Python callers pass (paths, sequences, numpy's numbers and arrays) to plain data."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist") and not isinstance(value, type):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_plain(entry) for entry in value]
    if isinstance(value, Real) and not isinstance(value, bool):
        return int(value) if isinstance(value, Integral) else float(value)
    return value


def pick(data: Any, *keys: str) -> tuple[Any, ...]:
    """The values of some keys of a mapping; other keys are ignored.

    Raises:
        DataError: it is not a mapping, or lacks one of the keys.
    """
    try:
        values: dict[str, Any] = _mapping(_reader(Any, False))(data)
    except _Fault as fault:
        raise DataError(fault.text(""), fault.hint) from None
    for key in keys:
        if key not in values:
            raise DataError(f"missing key {key!r}")
    return tuple(values[key] for key in keys)


def take(data: dict[str, Any], key: str) -> Any:
    """Remove a required key and return its value; for `from_data` methods."""
    if key not in data:
        raise _Fault("missing key ", "", "", key)
    return data.pop(key)


def unknown(key: str, names: Iterable[str], *, hint: str = "") -> Exception:
    """The error for an unknown key; for `from_data` methods."""
    return _Fault("unknown key ", "", choose_one(key, names) + hint, key)


def not_among(value: str, names: Iterable[str], *path: str) -> Exception:
    """The error for a name at a path that is not one of `names`; for `from_data` methods."""
    return _Fault("", f" is {_show.repr(value)}", choose_one(value, names), *path)


class _Fault(Exception):
    """What is wrong, as the text around the path. Each level that the exception passes through extends the path."""

    def __init__(self, before: str, after: str, hint: str, *path: str | int) -> None:
        super().__init__(before, after, hint)
        self.before, self.after, self.hint = before, after, hint
        self.path = list(path)

    def text(self, start: str) -> str:
        where = start
        for step in self.path:
            where += f"[{step}]" if isinstance(step, int) else f".{step}" if where else step
        return f"{self.before}{repr(where) if where else 'the whole'}{self.after}"


_show = reprlib.Repr()
_show.maxstring = _show.maxother = _show.maxlong = 60


def _wrong(data: Any, needed: str) -> _Fault:
    return _Fault("", f" is {_show.repr(data)}", f"it must be {needed}")


@cache
def _reader(form: Any, tagged: bool) -> Read:
    """The reader of one form."""
    origin, arguments = typing.get_origin(form), typing.get_args(form)
    if form is Any:
        return lambda data: data
    if origin is Annotated:
        (limits,) = (extra for extra in arguments[1:] if isinstance(extra, Limits))
        return _limited(_reader(arguments[0], tagged), limits)
    if origin is Literal:
        return _literal(arguments)
    if origin in (Union, types.UnionType):
        return _union(arguments, tagged)
    if origin is tuple:
        return _tuple(arguments, tagged)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(_reader(arguments[1], tagged))
    if hasattr(form, "from_data"):
        return lambda data: form.from_data(data, _nested)
    if is_record(form):
        return _Record(typing.cast("type[Any]", form), tagged)
    return _SCALARS[form]


def _nested(form: Any, data: Any, *path: str) -> Any:
    try:
        return _reader(form, False)(data)
    except _Fault as fault:
        fault.path[:0] = path
        raise


def _scalar(kind: type[Any], needed: str) -> Read:
    def read(data: Any) -> Any:
        if type(data) is not kind:
            raise _wrong(data, needed)
        return data

    return read


def _float(data: Any) -> float:
    if type(data) is float:
        return data
    if type(data) is not int:
        raise _wrong(data, "a number")
    try:
        return float(data)
    except OverflowError:
        raise _wrong(data, "a number that a float can hold") from None


def _none(data: Any) -> None:
    if data is not None:
        raise _wrong(data, "null")


_SCALARS: dict[Any, Read] = {
    bool: _scalar(bool, "true or false"),
    int: _scalar(int, "a whole number"),
    float: _float,
    str: _scalar(str, "text"),
    type(None): _none,
}


def _limited(read: Read, limits: Limits) -> Read:
    def read_limited(data: Any) -> Any:
        value = read(data)
        if not math.isfinite(value):
            raise _wrong(data, "finite")
        if not limits.hold(value):
            raise _wrong(data, str(limits))
        return value

    return read_limited


def _literal(choices: tuple[Any, ...]) -> Read:
    def read(data: Any) -> Any:
        for choice in choices:
            if type(choice) is type(data) and choice == data:
                return choice
        raise _Fault("", f" is {_show.repr(data)}", choose_one(str(data), map(str, choices)))

    return read


def _tuple(forms: tuple[Any, ...], tagged: bool) -> Read:
    every = len(forms) == 2 and forms[1] is Ellipsis
    readers = () if every else tuple(_reader(form, tagged) for form in forms)
    one = _reader(forms[0], tagged) if every else None

    def read(data: Any) -> tuple[Any, ...]:
        if not isinstance(data, (list, tuple)):
            raise _wrong(data, "a list")
        if one is None and len(data) != len(readers):
            raise _wrong(data, f"a list of {len(readers)}")
        values = []
        for index, entry in enumerate(data):
            try:
                values.append((one or readers[index])(entry))
            except _Fault as fault:
                fault.path.insert(0, index)
                raise
        return tuple(values)

    return read


def _mapping(read_value: Read) -> Read:
    def read(data: Any) -> dict[str, Any]:
        if not isinstance(data, Mapping):
            raise _wrong(data, "a table")
        values = {}
        for key, value in data.items():
            _check_key(key)
            try:
                values[key] = read_value(value)
            except _Fault as fault:
                fault.path.insert(0, key)
                raise
        return values

    return read


def _check_key(key: Any) -> None:
    if not isinstance(key, str):
        raise _Fault("", f" has the key {_show.repr(key)}", "keys must be text")


class _Record:
    """The reader of one dataclass or named tuple.

    The types of its fields, which may include the class itself, are resolved on first use.
    """

    def __init__(self, cls: type[Any], tagged: bool) -> None:
        self._cls = cls
        self._tagged = tagged

    @cached_property
    def _fields(self) -> dict[str, Read]:
        forms = typing.get_type_hints(self._cls, include_extras=True)
        return {f.name: _reader(forms[f.name], self._tagged) for f in fields_of(self._cls)}

    @cached_property
    def _needed(self) -> tuple[str, ...]:
        return tuple(f.name for f in fields_of(self._cls) if f.needed)

    def __call__(self, data: Any) -> Any:
        if not isinstance(data, Mapping):
            raise _wrong(data, "a table")
        if self._tagged:
            _check_tag(data, (self._cls.__name__,))
        fields, values = self._fields, {}
        for key, value in data.items():
            _check_key(key)
            if key not in fields:
                if key == TAG and self._tagged:
                    continue
                raise _Fault("unknown key ", "", choose_one(key, fields), key)
            try:
                values[key] = fields[key](value)
            except _Fault as fault:
                fault.path.insert(0, key)
                raise
        for name in self._needed:
            if name not in values:
                raise _Fault("missing key ", "", "", name)
        return self._cls(**values)


def _check_tag(data: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """The class name in the tag of a mapping."""
    if TAG not in data:
        raise _Fault("missing key ", "", f"it is one of {', '.join(names)}", TAG)
    name = data[TAG]
    if name not in names:
        raise _Fault("", f" is {_show.repr(name)}", choose_one(str(name), names), TAG)
    return str(name)


_KINDS = ((bool, "true or false"), ((int, float), "a number"), (str, "text"), ((list, tuple), "a list"),
          (Mapping, "a table"), (type(None), "null"))  # fmt: skip


def _kind_of_data(data: Any) -> str:
    return next((word for kind, word in _KINDS if isinstance(data, kind)), "")


def _kind_of_form(form: Any) -> str:
    """The kind of data that a member of a union accepts."""
    origin, arguments = typing.get_origin(form), typing.get_args(form)
    if origin is Annotated:
        return _kind_of_form(arguments[0])
    if origin is Literal:
        return _kind_of_data(arguments[0])
    plain = origin or form
    if is_record(plain):
        return "a table"
    return next(word for kind, word in _KINDS if issubclass(plain, kind))


def _union(forms: tuple[Any, ...], tagged: bool) -> Read:
    """The reader of a union: picks the only form that takes this kind of data, or the one that the tag names."""
    by_kind: dict[str, list[Any]] = {}
    for form in forms:
        by_kind.setdefault(_kind_of_form(form), []).append(form)
    readers = {kind: _one_kind(members, tagged) for kind, members in by_kind.items()}
    needed = " or ".join(kind for kind in readers if kind != "null")

    def read(data: Any) -> Any:
        reader = readers.get(_kind_of_data(data))
        if reader is None:
            raise _wrong(data, needed)
        return reader(data)

    return read


def _one_kind(forms: list[Any], tagged: bool) -> Read:
    if len(forms) == 1:
        return _reader(forms[0], tagged)
    if set(forms) == {int, float}:
        return lambda data: data if type(data) is int else _float(data)
    if not all(map(is_record, forms)):
        raise TypeError(f"data cannot tell {forms} from each other")
    records = {form.__name__: _reader(form, tagged) for form in forms}
    names = tuple(records)
    return lambda data: records[_check_tag(data, names)](data)
