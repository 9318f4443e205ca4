"""Protobuf's wire format: the fields of a message in its bytes, and messages that are kept as bytes.

Parsed, the nodes of a model take some twenty times the memory of their bytes.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Sequence

from google.protobuf.message import Message

from pimflow.records import NamedTuple

Buffer = bytes | bytearray | memoryview
Source = bytes | mmap.mmap

VARINT, FIXED_64, LENGTH_DELIMITED, FIXED_32 = 0, 1, 2, 5
_MAX_DIGITS = 10


class UnknownForm(Exception):
    """The bytes are not in the form in which protobuf writes ONNX models; parsing the whole file reports the error."""


class Field(NamedTuple):
    """A field of a message: its number, and the offsets of its start, of its content and of its end."""

    number: int
    start: int
    content: int
    stop: int


def fields(data: Source, start: int, stop: int) -> Iterator[Field]:
    """The fields of a message, in order.

    Raises:
        UnknownForm: the bytes are not valid fields.
    """
    while start < stop:
        key, content = _read_varint(data, start, stop)
        kind = key & 7
        if kind == VARINT:
            _, end = _read_varint(data, content, stop)
        elif kind == LENGTH_DELIMITED:
            length, content = _read_varint(data, content, stop)
            end = content + length
        elif kind in (FIXED_32, FIXED_64):
            end = content + (4 if kind == FIXED_32 else 8)
        else:
            raise UnknownForm
        if end > stop:
            raise UnknownForm
        yield Field(key >> 3, start, content, end)
        start = end


def messages(data: Source, number: int, start: int, stop: int) -> Iterator[Field]:
    """The messages of a repeated field from `start` up to the first other field: what `fields` gives, several times as
    fast.

    Raises:
        UnknownForm: the bytes are not valid fields.
    """
    key = number << 3 | LENGTH_DELIMITED
    while start < stop and data[start] == key:
        length, content = data[start + 1] if start + 1 < stop else 0x80, start + 2
        if length > 0x7F:
            length, content = _read_varint(data, start + 1, stop)
        end = content + length
        if end > stop:
            raise UnknownForm
        yield Field(number, start, content, end)
        start = end


def _read_varint(data: Source, start: int, stop: int) -> tuple[int, int]:
    """A number and the offset of its end."""
    value = 0
    for digit in range(_MAX_DIGITS):
        if start + digit >= stop:
            break
        byte = data[start + digit]
        value |= (byte & 0x7F) << 7 * digit
        if byte < 0x80:
            return value, start + digit + 1
    raise UnknownForm


class Messages:
    """The messages of a repeated field, kept as bytes: those that protobuf writes for a message with this field."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.data = bytearray()

    def append(self, message: Message) -> None:
        """Adds a message."""
        for piece in field(self.number, [message.SerializeToString(deterministic=True)]):
            self.data += piece

    def extend(self, messages: Iterable[Message]) -> None:
        """Adds several messages."""
        for message in messages:
            self.append(message)


def field(number: int, content: Sequence[Buffer]) -> list[Buffer]:
    """A field that holds bytes or a message: key, length, content."""
    return [_varint(number << 3 | LENGTH_DELIMITED) + _varint(sum(map(len, content))), *content]


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*digits, value))
