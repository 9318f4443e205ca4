"""Plain-text tables and lists of fields, one line per row in a pipe and fitted to the width of a terminal window.

In a pipe or a file every row is one line, however long, for tools such as grep. In a window that is too narrow, headers
and cells are wrapped, between words if that is enough. If names would be broken, a last column of prose moves below its
row; and if there is hardly any room for text, every row becomes a list of fields. Nothing is ever cut off.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest

from pimflow.errors import printable
from pimflow.records import dataclass

_GAPS = (2, 1)  # blanks between columns; the second value if the first leaves no room
_MIN_TEXT, _MIN_PROSE = 8, 28  # minimum characters per line in a column that is narrowed
_MIN_VALUE_COLUMNS = 12
_MAX_ALIGNED = 500  # width limit of a column in a pipe; a longer cell misaligns its own row only
_BROKEN = 3  # the number of extra lines that is preferred to breaking a word
_INDENT = "      "


def render_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = (), *, prose: bool = False
) -> str:
    """A table with a ruled header; unprintable characters are shown as escapes.

    Args:
        header: names of the columns.
        rows: one text per column.
        right: indexes of the right-aligned columns: numbers.
        prose: whether the last column contains sentences, such as reasons.
    """
    table = _Table(tuple(map(_shown, header)), [tuple(map(_shown, row)) for row in rows], frozenset(right), prose)
    room = window_columns()
    columns = table.fitted(room, breaks_words=not prose)
    if columns is not None:
        return "\n".join(table.lines(columns))
    lines = table.with_prose_below(room) if prose else None
    if lines is not None:
        return "\n".join(lines)
    return "\n\n".join(_fields(tuple(zip(table.header, row, strict=True)), room) for row in table.rows)


def render_fields(fields: Sequence[tuple[str, str]]) -> str:
    """A line per field, starting with its name; values that are wider than the window continue below themselves."""
    return _fields([(_shown(name), _shown(value)) for name, value in fields], window_columns())


def wrapped(text: str, indent: str = "") -> str:
    """A paragraph, wrapped to the window; lines after the first are indented."""
    room = window_columns()
    return text if room is None else "\n".join(_wrap(_shown(text), max(room, _MIN_VALUE_COLUMNS), indent))


def clipped(text: str, columns: int) -> tuple[str, int]:
    """The longest beginning of a text that fits into the given columns, and its width."""
    if text.isascii():
        return text[:columns], len(text[:columns])
    import wcwidth

    text = wcwidth.clip(text, 0, columns)
    return text, wcwidth.width(text)


def window_columns() -> int | None:
    """The maximum width of a text: COLUMNS if set, otherwise the width of the terminal; None in a pipe."""
    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdigit() and int(given):
        return int(given)
    return shutil.get_terminal_size().columns if _on_terminal() else None


@dataclass(frozen=True)
class _Columns:
    """The layout of a table's columns: their widths, the blanks between them, and whether wider cells are wrapped."""

    widths: Sequence[int]
    right: frozenset[int]
    gap: int = _GAPS[0]
    wraps: bool = True

    @property
    def width(self) -> int:
        """The width of a whole line."""
        return sum(self.widths) + self.gap * (len(self.widths) - 1)

    def rule(self) -> str:
        """The line below the header."""
        return (" " * self.gap).join(_rule() * width for width in self.widths)

    def lines(self, row: Sequence[str]) -> list[str]:
        """One row, each cell wrapped to its column."""
        cells = [_wrap(cell, width) if self.wraps else [cell] for cell, width in zip(row, self.widths, strict=True)]
        return [
            (" " * self.gap).join(map(self._pad, range(len(row)), line)).rstrip()
            for line in zip_longest(*cells, fillvalue="")
        ]

    def _pad(self, column: int, text: str) -> str:
        return _pad(text, self.widths[column], column in self.right)


@dataclass(frozen=True)
class _Table:
    """Printable cells; with `prose`, those of the last column are sentences."""

    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    right: frozenset[int]
    prose: bool

    def lines(self, columns: _Columns) -> list[str]:
        """The lines of the table in the given layout."""
        body = (line for row in self.rows for line in columns.lines(row))
        return [*columns.lines(self.header), columns.rule(), *body]

    def with_prose_below(self, room: int | None) -> list[str] | None:
        """The table with the cells of its last column below their rows; None if there is no room for that."""
        front = _Table(self.header[:-1], [row[:-1] for row in self.rows], self.right, prose=False)
        columns = front.fitted(room)
        if columns is None or room is None:
            return None
        lines = [*columns.lines(front.header), columns.rule()]
        for row in self.rows:
            lines += columns.lines(row[:-1])
            lines += [f"{_INDENT}{line}" for line in _wrap(row[-1], room - len(_INDENT)) if line]
        return lines

    def fitted(self, room: int | None, *, breaks_words: bool = True) -> _Columns | None:
        """Columns that fit, narrowed one character at a time with the fewest wrapped lines; None if none fit."""
        cells = list(zip(self.header, *self.rows, strict=True))
        columns = _Columns([max(map(_width, column)) for column in cells], self.right)
        if room is None:
            return _Columns([min(width, _MAX_ALIGNED) for width in columns.widths], self.right, wraps=False)
        if columns.width <= room:
            return columns
        least = [self._least(column, breaks_words) for column in range(len(cells))]
        gap = next((gap for gap in _GAPS if _Columns(least, self.right, gap).width <= room), None)
        if gap is None:
            return None
        sizes = [Counter((_width(cell), _word(cell)) for cell in column) for column in cells]
        widths = list(columns.widths)
        for _ in range(_Columns(widths, self.right, gap).width - room):
            added = {
                column: (_cost(sizes[column], width - 1) - _cost(sizes[column], width), -width)
                for column, width in enumerate(widths)
                if width > least[column]
            }
            widths[min(added, key=lambda column: added[column])] -= 1
        return _Columns(widths, self.right, gap)

    def _least(self, column: int, breaks_words: bool) -> int:
        """The minimum width of a column, which breaks no number and no word of the header."""
        cells = [row[column] for row in self.rows]
        widest = max(map(_width, cells), default=0)
        if column in self.right:
            return max(_word(self.header[column]), widest)
        last = self.prose and column == len(self.header) - 1
        words = max(map(_word, cells), default=0) if not breaks_words else 0
        return max(_word(self.header[column]), words, min(widest, _MIN_PROSE if last else _MIN_TEXT))


def _fields(fields: Sequence[tuple[str, str]], room: int | None) -> str:
    names = max((_width(name) for name, _ in fields), default=0) + 1
    lines = []
    for name, value in fields:
        front = f"{_pad(name, names, False)} "
        left = _width(value) if room is None else max(room - names - 1, _MIN_VALUE_COLUMNS)
        first, *more = _wrap(value, left)
        lines += [f"{front}{first}".rstrip(), *(" " * (names + 1) + line for line in more)]
    return "\n".join(lines)


def _cost(sizes: Counter[tuple[int, int]], width: int) -> int:
    """The approximate total of lines, given the widths of cells and of their longest words; broken words cost extra."""
    return sum(
        count * (math.ceil(size / width) + (_BROKEN if word > width else 0)) for (size, word), count in sizes.items()
    )


def _wrap(text: str, width: int, indent: str = "") -> list[str]:
    if _width(text) <= width:
        return [text]
    from wcwidth import wrap

    return wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)


def _pad(text: str, width: int, right: bool) -> str:
    blanks = " " * (width - _width(text))
    return blanks + text if right else text + blanks


def _word(text: str) -> int:
    """The width of the longest word."""
    return max(map(_width, text.split()), default=0)


def _width(text: str) -> int:
    """The columns that a text takes on a terminal: East Asian characters take two, combining accents none."""
    if text.isascii():
        return len(text)
    import wcwidth

    return wcwidth.width(text)


def _shown(text: str) -> str:
    """A text as stdout will show it, so that its measured width is the visible one."""
    text = printable(str(text))
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text if text.isascii() else text.encode(encoding, "backslashreplace").decode(encoding)


def _on_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def _rule() -> str:
    """The character of the line below a header: plain ASCII if a program may read it."""
    return "─" if _on_terminal() and _shown("─") == "─" else "-"


def number(value: float | None, digits: int = 1) -> str:
    """A number for a table: thousands separated, "-" for none."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.{digits}f}" if digits else f"{value:,.0f}"


def significant(value: float, digits: int = 4) -> str:
    """A number of any magnitude for a table, with `digits` significant digits: 0.001234, 12.34, 1,234."""
    if not math.isfinite(value):
        return "-"
    before = math.floor(math.log10(abs(value))) + 1 if value else 1
    return f"{value:,.{max(0, digits - before)}f}"


def megabytes(size: float) -> str:
    """A size in bytes as 14.7 MB; below 0.1 MB with two significant digits."""
    return f"{number(size / 1e6) if size >= 1e5 or not size else significant(size / 1e6, 2)} MB"


_ENERGY_UNITS = (("mJ", 1.0), ("uJ", 1e-3), ("nJ", 1e-6))


def energies(*millijoules: float) -> tuple[str, ...]:
    """Energies with four significant digits, all in the unit that suits the largest: mJ, uJ or nJ."""
    largest = max(map(abs, millijoules), default=0.0)
    unit, size = next((item for item in _ENERGY_UNITS if largest >= item[1]), _ENERGY_UNITS[-1])
    return tuple(f"{significant(amount / size)} {unit}" for amount in millijoules)
