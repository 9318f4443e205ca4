"""Plain-text tables."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Sequence

from pimflow.errors import printable


def render_table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """A table with a ruled header; what does not print in a cell is shown as escapes. `right`: right-aligned columns.

    The widest left-aligned column is shortened (in its middle) when the table is wider than the terminal.
    """
    table = [[printable(str(cell)) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    _fit(table, widths, set(right))
    lines = ["  ".join(_cell(row[c], widths[c], c in right) for c in range(len(header))).rstrip() for row in table]
    rule = "  ".join("─" * width for width in widths)
    return "\n".join([lines[0], rule, *lines[1:]])


def _cell(text: str, width: int, right: bool) -> str:
    return text.rjust(width) if right else text.ljust(width)


def _fit(table: list[list[str]], widths: list[int], right: set[int]) -> None:
    limit = shutil.get_terminal_size((120, 24)).columns if sys.stdout.isatty() else 160
    excess = sum(widths) + 2 * (len(widths) - 1) - limit
    flexible = [column for column in range(len(widths)) if column not in right]
    if excess <= 0 or not flexible:
        return
    column = max(flexible, key=lambda index: widths[index])
    width = max(12, widths[column] - excess)
    for row in table:
        if len(row[column]) > width:
            keep = width - 1
            row[column] = row[column][: keep - keep // 2] + "…" + row[column][len(row[column]) - keep // 2 :]
    widths[column] = max(len(row[column]) for row in table)


def number(value: float | None, digits: int = 1) -> str:
    """A number for a table: thousands separated, "-" for none."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.{digits}f}" if digits else f"{value:,.0f}"


def significant(value: float, digits: int = 4) -> str:
    """A number of any magnitude for a table, to so many significant digits: 0.001234, 12.34, 1,234."""
    if not math.isfinite(value):
        return "-"
    before = math.floor(math.log10(abs(value))) + 1 if value else 1
    return f"{value:,.{max(0, digits - before)}f}"
