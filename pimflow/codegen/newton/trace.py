"""Command streams as text, one command per line, written and read a line at a time.

    0x00000000 GWRITE 27 32 405     a buffer fill: 27 elements in the first block, block pitch 32, then 405 elements
    0x08003800 G_ACT1               row 7 in bank group 1
    0x000000c0 COMP                 column 3 of the open rows with slot 3 of the buffer
    READRES

The address holds, from bit 6 up, column, row, bank in its group and bank group, each as wide as the machine needs: on
the PIMFlow machine column 6-10, row 11-24, bank group 27-28. The suffix of `GWRITE_2` and `GWRITE_4` is the number of
global buffers of the mapping, which has no effect here. Machines that need more than the published format append more
numbers, and only if needed: GWRITE a fourth, the buffer within the channel's own set; COMP the slot if it differs from
the column, then the buffer.

The text does not contain what a stream does to values (source and destination of elements); it does determine cycles
and counts.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from pimflow.codegen.newton.commands import ZERO, Affine, Command, CommandStream, Comp, GAct, GWrite, ReadRes
from pimflow.data import open_file
from pimflow.errors import TraceError
from pimflow.records import dataclass
from pimflow.targets import PimSpec

_OFFSET_BITS = 6
_CHUNK_BYTES = 1 << 18
_MAX_LINE_BYTES = 200
_SMALL_BYTES = 64 << 20
_MAX_EXPANSION = 300
"""The maximum growth of an honest trace when it is unpacked; gzip could expand almost nothing a thousandfold."""
_WORD = re.compile(rb"[^ \t\r]+")
_ADDRESS = re.compile(rb"0[xX][0-9a-fA-F]{1,16}")
_NUMBER = re.compile(rb"[0-9]{1,9}")
_NAME = re.compile(rb"(G_ACT)([0-9]{1,4})|(GWRITE)(?:_[0-9]{1,4})?|(COMP)|(READRES)")


@dataclass(frozen=True, slots=True)
class AddressLayout:
    """The first bit of each field of a text address, and the width of an address in bits."""

    row: int
    group: int
    bits: int

    @staticmethod
    def of(pim: PimSpec) -> AddressLayout:
        """The layout of a machine."""
        row = _OFFSET_BITS + _width(pim.columns)
        group = row + _width(pim.rows) + _width(pim.banks_per_group)
        return AddressLayout(row, group, group + _width(pim.bank_groups))


def _width(values: int) -> int:
    return (values - 1).bit_length()


def write_trace(
    stream: CommandStream, pim: PimSpec, global_buffers: int | None = None, first_row: int = 0
) -> Iterator[str]:
    """The lines of a stream, newline included, generated one at a time.

    Args:
        stream: what one channel executes.
        pim: the machine, for the widths of address fields.
        global_buffers: the number of buffers that the mapping uses; None writes GWRITE without a suffix.
        first_row: the row of every bank where the weights begin.
    """
    layout = AddressLayout.of(pim)
    gwrite = "GWRITE" if global_buffers is None else f"GWRITE_{global_buffers}"
    for command, variables in stream.expand():
        if isinstance(command, Comp):
            column, slot = command.column.at(variables), command.slot.at(variables)
            extra = f" {slot} {command.buffer}" if command.buffer else f" {slot}" if slot != column else ""
            yield f"0x{column << _OFFSET_BITS:08x} COMP{extra}\n"
        elif isinstance(command, ReadRes):
            yield "READRES\n"
        elif isinstance(command, GAct):
            address = command.group << layout.group | (first_row + command.row.at(variables)) << layout.row
            yield f"0x{address:08x} G_ACT{command.group}\n"
        else:
            buffer = f" {command.buffer}" if command.buffer else ""
            rest = command.elements - command.k_count
            yield f"0x{0:08x} {gwrite} {command.k_count} {command.pitch} {rest}{buffer}\n"


def trace_lines(path: str | Path) -> Iterator[bytes]:
    """The lines of a text file, plain or gzip (recognised by its first bytes), without newlines, in bounded memory.

    A line that is far too long for a command is yielded in pieces; `LineParser` refuses the first.

    Raises:
        TraceError: the file cannot be read, or is truncated.
    """
    count = 0
    rest = b""
    try:
        with open_file(path) as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if not packed and str(path).endswith(".gz"):
                raise TraceError(f"{path} is not a gzip file", "rename it if it is plain text, or make it again")
            file = gzip.GzipFile(fileobj=raw) if packed else raw
            max_bytes = _SMALL_BYTES + _MAX_EXPANSION * os.fstat(raw.fileno()).st_size
            while chunk := file.read(_CHUNK_BYTES):
                if packed and file.tell() > max_bytes:
                    raise TraceError(f"{path} unpacks to more than {max_bytes:,} bytes", "it is not a command trace")
                *lines, rest = (rest + chunk).split(b"\n")
                yield from lines
                count += len(lines)
                if len(rest) > _MAX_LINE_BYTES:
                    yield rest
                    rest = b""
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(f"{path}, after line {count}: gzip data is broken ({error})", "make the file again") from None
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror or error}", "check the path") from None
    if rest:
        yield rest


class LineParser:
    """Turns lines into commands of one machine; errors name the position in the file."""

    def __init__(self, path: str | Path, pim: PimSpec) -> None:
        self._path = path
        self._pim = pim
        self._layout = AddressLayout.of(pim)

    def command(self, line: bytes, number: int) -> Command | None:
        """The command of a line; None if it is blank.

        Raises:
            TraceError: the line is malformed.
        """
        if len(line) > _MAX_LINE_BYTES:
            self._fail(number, _MAX_LINE_BYTES, "line is too long for a command", "is this a command trace?")
        words = [(match.group(), match.start()) for match in _WORD.finditer(line)]
        if not words:
            return None
        if words[0][0] == b"READRES":
            self._expect_end(words, 1, number)
            return ReadRes(ZERO, ZERO)
        address = self._address(*words[0], number)
        if len(words) == 1:
            self._fail(number, len(line.rstrip()), "no command after the address", "write ADDRESS COMMAND")
        word, start = words[1]
        name = _NAME.fullmatch(word)
        if name is None or name.group(5):
            hint = "READRES stands alone" if name else "commands are GWRITE, G_ACT0.., COMP and READRES"
            self._fail(number, start, f"{_shown(word)} where a command should be", hint)
        if name.group(1):
            self._expect_end(words, 2, number)
            return self._g_act(int(name.group(2)), address, start, number)
        numbers = [self._number(text, column, number) for text, column in words[2:]]
        if name.group(3):
            return self._gwrite(numbers, words, number)
        return self._comp(numbers, address, words, number)

    def _address(self, word: bytes, start: int, number: int) -> int:
        if not _ADDRESS.fullmatch(word):
            self._fail(number, start, f"{_shown(word)} where an address should be", "write 0x and hexadecimal digits")
        address = int(word, 16)
        if address >> self._layout.bits:
            hint = f"addresses of this machine have {self._layout.bits} bits"
            self._fail(number, start, f"address {_shown(word)} is out of range", hint)
        return address

    def _number(self, word: bytes, start: int, number: int) -> int:
        if not _NUMBER.fullmatch(word):
            self._fail(number, start, f"{_shown(word)} where a number should be", "write decimal digits")
        return int(word)

    def _g_act(self, group: int, address: int, start: int, number: int) -> GAct:
        if group >= self._pim.bank_groups:
            hint = f"this machine has bank groups 0 to {self._pim.bank_groups - 1}"
            self._fail(number, start, f"G_ACT{group} does not exist", hint)
        rows = (1 << _width(self._pim.rows)) - 1
        return GAct(group, Affine(address >> self._layout.row & rows))

    def _gwrite(self, numbers: list[int], words: list[tuple[bytes, int]], number: int) -> GWrite:
        if len(numbers) not in (0, 3, 4):
            self._fail(number, words[-1][1], f"GWRITE with {len(numbers)} numbers", "it takes none, three or four")
        elements = numbers[0] + numbers[2] if numbers else self._pim.buffer_elements
        return GWrite(ZERO, 1, ZERO, elements, elements, numbers[3] if len(numbers) == 4 else 0)

    def _comp(self, numbers: list[int], address: int, words: list[tuple[bytes, int]], number: int) -> Comp:
        if len(numbers) > 2:
            self._fail(number, words[4][1], "COMP with more than two numbers", "it takes a slot and a buffer at most")
        column = address >> _OFFSET_BITS & ((1 << _width(self._pim.columns)) - 1)
        slot, buffer = (*numbers, *(column, 0)[len(numbers) :])
        return Comp(Affine(column), Affine(slot), buffer)

    def _expect_end(self, words: list[tuple[bytes, int]], count: int, number: int) -> None:
        if len(words) > count:
            word, start = words[count]
            self._fail(number, start, f"{_shown(word)} after the command", "remove it")

    def _fail(self, line: int, start: int, what: str, hint: str) -> NoReturn:
        raise TraceError(f"{self._path}, line {line}, column {start + 1}: {what}", hint)


def _shown(word: bytes) -> str:
    """A word of arbitrary bytes as short printable text."""
    text = ascii(word[:24].decode("latin-1"))
    return text if len(word) <= 24 else text[:-1] + "...'"
