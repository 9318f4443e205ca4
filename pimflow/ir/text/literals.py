"""How names, scalars, fields and small arrays are spelled in the text form: exact, and readable where possible."""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
import weakref
from collections.abc import Iterable
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pimflow.ir.graph import Array

BARE_NAME = r"[A-Za-z0-9_./$\-]+(?::[A-Za-z0-9_./$\-]+)*"
"""A name that needs no quotes; a colon may occur only between two other characters (`conv:0`)."""
_BARE = re.compile(BARE_NAME)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NO_KEYS = ("inf", "nan", "missing")  # words with a meaning of their own where a key may occur

# One digest per array, since large constants are printed after every pass: id -> (the array itself, its digest).
_digests: dict[int, tuple[weakref.ref[Array], str]] = {}


def quote(text: str) -> str:
    """A string in double quotes, with JSON's escapes; ASCII only if it has unprintable characters."""
    return json.dumps(text, ensure_ascii=not text.isprintable())


def name_text(sigil: str, name: str) -> str:
    """A value (`%`) or node (`@`) name, quoted if necessary."""
    return sigil + (name if _BARE.fullmatch(name) else quote(name))


def word_text(word: str) -> str:
    """A key, bare or quoted."""
    return word if _WORD.fullmatch(word) and word not in _NO_KEYS else quote(word)


def bytes_text(data: bytes) -> str:
    """Bytes as b"...": printable ASCII as it is, the rest (and `"` and backslash) as \\xNN."""
    return 'b"' + "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\x{b:02x}" for b in data) + '"'


def field_text(value: object) -> str:
    """The text of an op's field: number, string, bytes, tuple, pairs, nested dataclass."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, bytes):
        return bytes_text(value)
    if isinstance(value, tuple):
        if value and all(_is_pair(item) for item in value):
            return "{" + ", ".join(f"{word_text(key)} = {field_text(item)}" for key, item in value) + "}"
        return "[" + ", ".join(field_text(item) for item in value) + "]"
    if is_dataclass(value):
        return f"{type(value).__name__} {fields_text(value)}".rstrip()
    raise TypeError(f"a field of type {type(value).__name__} has no text form: {value!r}")


def _is_pair(item: object) -> bool:
    return isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)


def fields_text(data: Any) -> str:
    """A dataclass's fields as {name = value, ...}; those at their default are left out, "" if all are."""
    shown = [(item.name, field_text(getattr(data, item.name))) for item in fields(data)]
    defaults = {item.name: field_text(_default(item)) for item in fields(data) if _default(item) is not MISSING}
    explicit = [f"{name} = {text}" for name, text in shown if defaults.get(name) != text]
    return "{" + ", ".join(explicit) + "}" if explicit else ""


def _default(item: Field[Any]) -> object:
    return item.default if item.default_factory is MISSING else item.default_factory()


def shape_text(shape: Iterable[int] | None) -> str:
    """[2, 3]; [*] if the shape is unknown."""
    return "[*]" if shape is None else "[" + ", ".join(str(dim) for dim in shape) + "]"


def type_text(dtype: str, shape: Iterable[int] | None) -> str:
    """float32[2, 3]; `?` stands for an unknown element type."""
    return (word_text(dtype) if dtype else "?") + shape_text(shape)


def digest(array: Array) -> str:
    """16 hex digits of the SHA-256 of an array's element type, shape and bytes. Cached per array."""
    known = _digests.get(id(array))
    if known is not None and known[0]() is array:
        return known[1]
    state = hashlib.sha256(f"{array.dtype.name}{array.shape}".encode())
    if array.dtype.kind == "O":
        state.update(repr(array.ravel().tolist()).encode("utf-8", "surrogatepass"))
    else:
        state.update(raw_bytes(array).data)
    text = state.hexdigest()[:16]
    key = id(array)
    _digests[key] = (weakref.ref(array, lambda _: _digests.pop(key, None)), text)
    return text


def raw_bytes(array: Array) -> npt.NDArray[np.uint8]:
    """The bytes of an array of numbers, in row-major order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def array_text(array: Array) -> str | None:
    """The elements in row-major order, [1.0, -2.5], or None if this element type has no readable form."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if array.dtype.kind == "O":
        items = flat.tolist()
        readable = all(isinstance(item, (str, bytes)) for item in items)
        return field_text(tuple(items)) if readable else None
    if array.dtype.name.startswith("complex"):
        flat = flat.view(f"float{array.dtype.itemsize * 4}")
    if flat.dtype.kind == "b" or _is_integer(flat.dtype):
        return "[" + ", ".join(str(item).lower() for item in flat) + "]"
    if _is_float(flat.dtype):
        return "[" + ", ".join(_float_text(item) for item in flat) + "]"
    return None


def parse_array(dtype_name: str, shape: tuple[int, ...], items: tuple[object, ...]) -> Array:
    """The array that `array_text` printed. Floats may be given as raw bits: `Bits` objects.

    Raises:
        ValueError: the element type is unknown or cannot hold an element, or there are too many or too few elements.
    """
    dtype = element_type(dtype_name)
    is_complex = dtype_name.startswith("complex")
    expected = math.prod(shape) * (2 if is_complex else 1)
    if len(items) != expected:
        raise ValueError(f"{expected} elements expected, {len(items)} given")
    part = np.dtype(f"float{dtype.itemsize * 4}") if is_complex else dtype
    flat = np.empty(len(items), part)
    for index, item in enumerate(items):
        flat[index] = _element(part, item)
    return flat.view(dtype).reshape(shape)


class Bits(int):
    """An element given as its bit pattern."""


def element_type(name: str) -> np.dtype[Any]:
    """The numpy element type with this name.

    Raises:
        ValueError: there is none.
    """
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes  # comes with newer onnx: bfloat16, float8, int4

        extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return extended
    except (ImportError, AttributeError):
        raise ValueError(f"unknown element type {name!r}") from None


def _element(dtype: np.dtype[Any], item: object) -> object:
    """`item` as an element of `dtype`, exact for all but decimal floats."""
    if isinstance(item, Bits):
        if item.bit_length() > dtype.itemsize * 8:
            raise ValueError(f"{hex(item)} has more bits than {dtype.name}")
        return np.frombuffer(item.to_bytes(dtype.itemsize, sys.byteorder), dtype)[0]
    if dtype.kind == "O" and isinstance(item, (str, bytes)):
        return item
    if dtype.kind == "b" and isinstance(item, bool):
        return item
    if isinstance(item, int) and not isinstance(item, bool) and _is_integer(dtype):
        return _integer(dtype, item)
    if isinstance(item, (int, float)) and not isinstance(item, bool) and _is_float(dtype):
        return item
    raise ValueError(f"{item!r} is not of type {dtype.name}")


def _integer(dtype: np.dtype[Any], item: int) -> object:
    try:
        value = np.array(item).astype(dtype)
    except OverflowError:
        value = np.zeros((), dtype)
    if int(value) != item:
        raise ValueError(f"{item} does not fit {dtype.name}")
    return value


def _is_integer(dtype: np.dtype[Any]) -> bool:
    return str(dtype.name).startswith(("int", "uint"))


def _is_float(dtype: np.dtype[Any]) -> bool:
    return str(dtype.name).startswith(("float", "bfloat"))


def _float_text(item: Any) -> str:
    """The shortest decimal that gives the same bits back, else (a NaN with a payload) the bits as 0x..."""
    text = str(item)
    if text.lstrip("-").isdigit():
        text += ".0"  # bfloat16 prints minus zero as -0, which would read as an integer
    with np.errstate(all="ignore"):
        again = type(item)(float(text))
    bits = np.asarray(item).tobytes()
    return text if np.asarray(again).tobytes() == bits else hex(int.from_bytes(bits, sys.byteorder))
