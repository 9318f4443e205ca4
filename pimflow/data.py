"""One strict codec for frozen dataclasses and named tuples: to the plain data that JSON and TOML hold, and back.

Either becomes a mapping of its fields; any other tuple becomes a list; numbers, text, booleans and None stay the same.
With `tagged`, every such mapping has its class's name under "type", so that a field may hold one of several classes.

Reading follows the types of the fields and is strict. An unknown or missing key, or a value of the wrong type or
outside its `Limits`, is a `DataError` that names the path to it, as in 'pim.timing.strict.t_faw' or 'gpu.tiles[0]'.
`open_file` and `read_file` read the files that such data come from; `read_argument` reads what callers in Python write.

The types are those that plain data can hold: bool, int, float, str, None, Literal, tuples, mappings with text keys,
dataclasses, named tuples, unions of these, and Any. An integer is accepted as a float, and stays an integer where both
are allowed; True is not a number. A class whose keys depend on its data provides its own conversion,
`from_data(data, read)` and `to_data()`.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import reprlib
import stat
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from json.encoder import encode_basestring_ascii
from numbers import Integral, Real
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, TypeVar, Union, overload

from pimflow.errors import DataError, OptionError, choose_one
from pimflow.records import NamedTuple, dataclass

Number = bool | int | float | Literal["inf", "-inf", "nan"]
"""A number as JSON can hold it, too: infinities and NaN as words."""

T = TypeVar("T")
V = TypeVar("V")
Read = Callable[[Any], Any]
Write = Callable[[Any], Any]
Nested = Callable[..., Any]
"""(form, data, *path): passed to `from_data`, to read data nested inside its own data; `path` leads there."""
TAG = "type"
NOT_DATA: Mapping[str, Any] = {"data": False}
"""Metadata of a field that is not part of the data: it is not written, and reading gives its default."""


MAX_TEXT_BYTES = 64 << 20
"""Size limit of a text file, written by a person or a program: far more than any needs, and far less than memory."""


def open_file(path: str | Path) -> BinaryIO:
    """Open a regular file for reading. A FIFO would block, and a device may never end.

    Raises:
        OSError: it cannot be opened, or is not a regular file; `strerror` says which.
    """
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except ValueError as error:  # NUL in the name
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def read_file(path: str | Path, max_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Read all bytes of a regular file.

    Raises:
        OSError: as for `open_file`; or it is larger than `max_bytes`.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = b"" if size > max_bytes else file.read()
    if max(size, len(data)) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes:,} bytes", str(path))
    return data


def is_folder(path: Path) -> bool:
    """Whether there is a folder at a path. A path that the system does not take (a name too long, a NUL) has none."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


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


def encode(item: Any, *, tagged: bool = False) -> Any:
    """The plain data of a tree of dataclasses, tuples, mappings and plain values.

    Fields keep their order; those that a class does not take when it is made, or marks as `NOT_DATA`, are left out.

    Raises:
        TypeError: something else is in the tree.
    """
    return _writer(item.__class__, tagged)(item)


def encode_json(item: Any, *, tagged: bool = False) -> str:
    """`encode` as JSON text without blanks, written directly, in less than half the time.

    Raises:
        TypeError: as for `encode`.
    """
    return _text_writers(tagged)[item.__class__](item)


def record_form(cls: type[Any], *, tagged: bool = False) -> str:
    """The text that `encode_json` makes of a record of a class, with "%s" for the text of each field."""
    tag = [f"{json_text(TAG)}:{json_text(cls.__name__)}"] if tagged else []
    return f"{{{','.join([*tag, *(f'{json_text(field.name)}:%s' for field in _fields(cls))])}}}"


class _TextWriters(dict[type[Any], Callable[[Any], str]]):
    """The writers of the text of items, by class; each is made on first use."""

    def __init__(self, tagged: bool) -> None:
        flags = {True: "true", False: "false"}
        super().__init__({int: int.__repr__, str: encode_basestring_ascii, bool: flags.__getitem__})
        self._tagged = tagged

    def __missing__(self, form: type[Any]) -> Callable[[Any], str]:
        made = self[form] = self._made(form)
        return made

    def _made(self, form: type[Any]) -> Callable[[Any], str]:
        if _is_record(form) and not hasattr(form, "to_data"):
            return self._record_writer(form)
        if issubclass(form, (tuple, list)):
            return lambda item: f"[{','.join([self[entry.__class__](entry) for entry in item])}]"
        return lambda item: json_text(encode(item, tagged=self._tagged))

    def _record_writer(self, cls: type[Any]) -> Callable[[Any], str]:
        names, form = [field.name for field in _fields(cls)], record_form(cls, tagged=self._tagged)
        fields = attrgetter(*names) if len(names) > 1 else lambda item: [getattr(item, name) for name in names]
        return lambda item: form % tuple([self[value.__class__](value) for value in fields(item)])


@cache
def _text_writers(tagged: bool) -> _TextWriters:
    return _TextWriters(tagged)


def json_text(data: Any) -> str:
    """Plain data as JSON without blanks."""
    return json.dumps(data, separators=(",", ":"))


def number_in_words(number: Number) -> Number:
    """The number, as a word if JSON has no number for it."""
    if not isinstance(number, float) or math.isfinite(number):
        return number
    return "nan" if math.isnan(number) else "inf" if number > 0 else "-inf"


@cache
def _writer(form: type[Any], tagged: bool) -> Write:
    """The writer of items of one class, cached because a large model's streams have hundreds of thousands of items."""
    if issubclass(form, (bool, int, str, type(None))) or form is float:
        return _as_it_is
    if issubclass(form, Real):  # numpy's number types
        return int if issubclass(form, Integral) else float
    if _is_record(form) and not hasattr(form, "to_data"):
        return _record_writer(form, tagged)
    if issubclass(form, (tuple, list)):
        return lambda item: [
            entry if entry.__class__ in _PLAIN else _writer(entry.__class__, tagged)(entry) for entry in item
        ]
    if issubclass(form, Mapping):
        return lambda item: {key: _writer(value.__class__, tagged)(value) for key, value in item.items()}
    if hasattr(form, "to_data"):
        return lambda item: encode(item.to_data(), tagged=tagged)
    raise TypeError(f"a {form.__name__} has no form as plain data")


_PLAIN = frozenset((bool, int, str, float, type(None)))
"""The classes of most items, recognised without looking up a writer."""


def _as_it_is(item: Any) -> Any:
    return item


def _record_writer(cls: type[Any], tagged: bool) -> Write:
    names = tuple(f.name for f in _fields(cls))
    tag = {TAG: cls.__name__} if tagged else {}

    def write(item: Any) -> dict[str, Any]:
        data: dict[str, Any] = dict(tag)
        for name in names:
            value = getattr(item, name)
            data[name] = value if value.__class__ in _PLAIN else _writer(value.__class__, tagged)(value)
        return data

    return write


class _Field(NamedTuple):
    """A field that is part of the data, and whether it is required."""

    name: str
    needed: bool


def _is_record(form: Any) -> bool:
    """Whether `form` is a dataclass or a named tuple."""
    return dataclasses.is_dataclass(form) or hasattr(form, "_field_defaults")


def _fields(cls: type[Any]) -> tuple[_Field, ...]:
    """The fields of a dataclass or a named tuple that are part of the data."""
    if not dataclasses.is_dataclass(cls):
        named: Any = cls
        return tuple(_Field(name, name not in named._field_defaults) for name in named._fields)
    missing = dataclasses.MISSING
    return tuple(
        _Field(f.name, f.default is missing and f.default_factory is missing)
        for f in dataclasses.fields(cls)
        if f.init and f.metadata.get("data", True)
    )


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
    if _is_record(form):
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
        return {f.name: _reader(forms[f.name], self._tagged) for f in _fields(self._cls)}

    @cached_property
    def _needed(self) -> tuple[str, ...]:
        return tuple(f.name for f in _fields(self._cls) if f.needed)

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
    if _is_record(plain):
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
    if not all(map(_is_record, forms)):
        raise TypeError(f"data cannot tell {forms} from each other")
    records = {form.__name__: _reader(form, tagged) for form in forms}
    names = tuple(records)
    return lambda data: records[_check_tag(data, names)](data)
