"""The table of nodes: what each is, where it runs, its cost, and why. A script sorts and filters it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pimflow.errors import counted
from pimflow.records import NamedTuple
from pimflow.report.page.markup import Markup, element, joined, shortened
from pimflow.report.tables import number, significant

MAX_ROWS = 3_000
_NEGLIGIBLE = 1e-9  # smaller values are due to the rounding of sums


class Cell(NamedTuple):
    """A number in the table: its text, its sort key, and the length of its bar, from -1 to 1."""

    text: str
    value: float
    bar: float = 0.0


class TableRow(NamedTuple):
    """One node.

    Args:
        number: of the page's nodes.
        name, op: the node.
        places: where it runs, for each run of the page: CSS classes of colours, and a text.
        devices: every device on which any run has it, for the filter.
        cells: numbers, one for each column.
        why: the reason, as prose.
        costs: whether it takes any time.
        hue: CSS class of the colour of its device.
    """

    number: int
    name: str
    op: str
    places: Sequence[tuple[Sequence[str], str]]
    devices: Sequence[str]
    cells: Sequence[Cell]
    why: str
    costs: bool
    hue: str


def node_table(
    places: Sequence[str], columns: Sequence[str], rows: Sequence[TableRow], labels: Mapping[str, str], prose: str
) -> Markup:
    """The table with its filters.

    Args:
        places: headings of the places, one for each run.
        columns: headings of the numbers.
        rows: the nodes, in the order of the plan; if there are too many, only the most expensive are shown.
        labels: devices to filter by, with their names.
        prose: heading of the last column.
    """
    kept = _shown_rows(rows)
    headings = ["#", "node", "op", *places, *columns, prose]
    numeric = {0, *range(3 + len(places), 3 + len(places) + len(columns))}
    head = [
        element("th", element("button", text, type="button"), scope="col", class_="number" if at in numeric else None)
        for at, text in enumerate(headings)
    ]
    table = element(
        "table",
        element("thead", element("tr", *head)),
        element("tbody", *(_line(row) for row in kept)),
        id="nodes-table",
    )
    left = len(rows) - len(kept)
    note = element("p", f"not listed: {counted(left, 'node')} of less time.", class_="note") if left else ""
    return joined([_controls(rows, labels), element("div", table, class_="scroll"), note])


def _shown_rows(rows: Sequence[TableRow]) -> Sequence[TableRow]:
    if len(rows) <= MAX_ROWS:
        return rows
    ranked = sorted(rows, key=lambda row: -abs(row.cells[0].value))
    kept = {row.number for row in ranked[:MAX_ROWS]}
    return [row for row in rows if row.number in kept]


def _line(row: TableRow) -> Markup:
    return element(
        "tr",
        element("td", str(row.number), class_="number dim"),
        element("th", shortened(row.name), scope="row", title=shortened(row.name, 1_000)),
        element("td", shortened(row.op, 40)),
        *(_place_cell(hues, place) for hues, place in row.places),
        *(_number_cell(cell, row.hue) for cell in row.cells),
        element("td", element("div", shortened(row.why, 600)), class_="why"),
        data_n=row.number,
        data_devices=" ".join(row.devices),
        class_="mark" if row.costs else "mark free",
        tabindex="0",
    )


def _place_cell(hues: Sequence[str], place: str) -> Markup:
    return element("td", *(element("span", class_=f"dot {hue}") for hue in hues), place, class_="place")


def _number_cell(cell: Cell, hue: str) -> Markup:
    if not cell.bar:
        return element("td", cell.text, class_="number", data_v=cell.value)
    side = "neg" if cell.bar < 0 else "pos"
    width = f"width:{min(100.0, abs(100 * cell.bar)):.1f}%"
    bar = element("i", class_=f"{side} {hue}", style=width)
    return element("td", element("span", cell.text), element("b", bar), class_="number bar", data_v=cell.value)


def _controls(rows: Sequence[TableRow], labels: Mapping[str, str]) -> Markup:
    free = sum(not row.costs for row in rows)
    search = element("input", type="search", id="search", placeholder="name, op, place or reason", autocomplete="off")
    devices = [
        element("button", text, type="button", data_device=device, aria_pressed="false")
        for device, text in labels.items()
    ]
    box = element("input", type="checkbox", id="show-free")
    hidden = element("label", box, f" show {counted(free, 'node')} of no cost, fused or free") if free else ""
    return element(
        "div",
        element("label", "search ", search),
        element("span", *devices, class_="buttons", role="group", aria_label="runs on"),
        hidden,
        element("output", id="counted"),
        element("button", "all nodes", type="button", id="clear"),
        class_="controls needs-script",
    )


def amount(value: float, largest: float, digits: int | None = None) -> Cell:
    """A number with its bar."""
    text = "-" if not value else significant(value) if digits is None else number(value, digits)
    return Cell(text, value, value / largest if largest else 0.0)


def change(value: float, largest: float) -> Cell:
    """A signed number with a bar in its direction."""
    if abs(value) < _NEGLIGIBLE:
        return Cell("-", 0.0)
    text = f"{value:+,.2f}" if abs(value) >= 0.005 else f"{value:+.2g}"
    return Cell(text, value, value / largest if largest else 0.0)
