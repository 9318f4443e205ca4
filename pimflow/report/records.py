"""Results as rows of plain values, for programs, pandas and notebooks."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, overload

from pimflow.errors import one_line, printable
from pimflow.report.tables import significant

Row = dict[str, Any]
"""Plain values by column; nested values have their path as the column, such as "energy_parts_mj.gpu.DRAM"."""
_MAX_SHOWN = 40


class Records(Sequence[Row], ABC):
    """A result that is also a sequence of its rows: `pandas.DataFrame(result)` makes a table of them.

    The fields of the result contain the same data as typed objects; `as_json()` is the document of `--json`.
    """

    @abstractmethod
    def records(self) -> list[Row]:
        """The rows, each a dictionary of plain values."""

    @property
    @abstractmethod
    def title(self) -> str:
        """The result as one clause."""

    @cached_property
    def _rows(self) -> list[Row]:
        return self.records()

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        return self._rows[index]

    def __repr__(self) -> str:
        return one_line(type(self).__name__, self.title)

    def _repr_html_(self) -> str:
        return html_table(self._rows, self.title) + (self.charts() if len(self) else "")

    def charts(self) -> str:
        """The charts that a notebook shows below the table, as HTML; "" if there are none."""
        return ""


class Listing(Records):
    """Plain rows.

    Args:
        title: the subject of the rows.
        rows: the rows.
    """

    def __init__(self, title: str, rows: Iterable[Row]) -> None:
        self._title = title
        self._listed = list(rows)

    def records(self) -> list[Row]:
        """The rows."""
        return [dict(row) for row in self._listed]

    @property
    def title(self) -> str:
        """The subject of the rows."""
        return self._title


def flat(data: Mapping[str, Any], start: str = "") -> Row:
    """Plain data without nested tables: their keys are joined to paths."""
    row: Row = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            row |= flat(value, f"{start}{key}.")
        else:
            row[f"{start}{key}"] = value
    return row


def html_table(rows: Sequence[Row], title: str) -> str:
    """A small HTML table of the first rows, with the columns that contain no lists."""
    lists = {key for row in rows for key, value in row.items() if isinstance(value, (list, tuple))}
    columns = [key for key in dict.fromkeys(key for row in rows for key in row) if key not in lists]
    head = _html_row("th", columns)
    body = [_html_row("td", [_cell(row.get(column)) for column in columns]) for row in rows[:_MAX_SHOWN]]
    left = len(rows) - _MAX_SHOWN
    more = f"<p>{left} more rows</p>" if left > 0 else ""
    caption = f"<caption>{html.escape(printable(title))}</caption>"
    return f"<table>{caption}<thead>{head}</thead><tbody>{''.join(body)}</tbody></table>{more}"


def _html_row(tag: str, cells: Iterable[str]) -> str:
    inner = "".join(f"<{tag}>{html.escape(printable(cell))}</{tag}>" for cell in cells)
    return f"<tr>{inner}</tr>"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return significant(value) if isinstance(value, float) else str(value)
