"""The charts of docs/results.md, drawn from the tables of that page.

    python benchmarks/results_charts.py

draws them again without running anything. tests/test_docs.py compares them with the page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from results_data import LABELS, POLICY_LABELS
from svg_file import picture

from pimflow.report.page.bars import BarPanel, Series, grouped_bars
from pimflow.report.page.curves import CurvePanel, curves

DOCS = Path(__file__).parent.parent / "docs"
MEAN = "mean of five"
SPEEDUP = "speedup over the GPU"
COLORS = {"Newton+": "d0 s4", "Newton++": "d0 s3", "Pipeline": "d0 s2", "MD-DP": "d0 s1", "PIMFlow": "d0", "auto": "d1"}
"""Colours by policy: the paper's policies from light to dark, then those that it does not have."""
MODEL_COLORS = ("d0", "d2", "link", "d3", "d1", "total")
"""Colours of the five models and their mean."""
PUBLISHED = {  # (figure, model, policy) to the published value
    ("conv", LABELS["mobilenet-v2"], "Newton++"): 1.365,
    ("conv", LABELS["mobilenet-v2"], "Pipeline"): 1.413,
    ("conv", LABELS["mobilenet-v2"], "MD-DP"): 1.436,
    ("conv", LABELS["mobilenet-v2"], "PIMFlow"): 1.481,
    ("conv", MEAN, "Newton++"): 1.20,
    ("conv", MEAN, "PIMFlow"): 1.30,
    ("end", LABELS["mobilenet-v2"], "PIMFlow"): 1.38,
    ("end", LABELS["efficientnet-b0"], "PIMFlow"): 1.43,
    ("end", MEAN, "Newton++"): 1.13,
    ("end", MEAN, "PIMFlow"): 1.34,
}


@dataclass(frozen=True)
class Table:
    """A table of the page.

    Args:
        columns: the headings above the figures.
        rows: the figures, by the labels to their left.
    """

    columns: Sequence[str]
    rows: Mapping[str, Sequence[float]]

    def of(self, columns: Sequence[str]) -> list[list[float]]:
        """The figures of some columns, one list per row."""
        places = [self.columns.index(column) for column in columns]
        return [[row[place] for row in self.rows.values()] for place in places]


def tables(page: str, heading: str) -> list[Table]:
    """The tables between a heading and the next, in order, without the one about the search."""
    below = page[page.index(f"\n{heading}\n") + len(heading) + 2 :]
    section = re.split(r"^#", below, maxsplit=1, flags=re.MULTILINE)[0]
    texts = re.findall(r"^\|.*\n\|[-|]+\n(?:\|.*\n)+", section, flags=re.MULTILINE)
    return [_table(text) for text in texts if "candidates" not in text]


def _table(text: str) -> Table:
    head, _, *lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return Table(head[1:], {line[0].strip("*"): [float(cell.rstrip("%")) for cell in line[1:]] for line in lines})


def charts(page: str) -> Mapping[str, str]:
    """The pictures of the page, by file name."""
    strict, published = (
        tables(page, "## Five models, all policies"),
        tables(page, "### Five models under the published rules"),
    )
    knobs = "### Global buffers and pipeline stages"
    drawn = {
        "policies": _policies(strict, marked=False),
        "energy": _energy(strict[2]),
        "published": _policies(published, marked=True),
        "channels": _over_channels(tables(page, "### PIM channels of 32")),
        "buffers-stages": _over_knobs(tables(page, knobs)),
        "timing": _timing(tables(page, "## Timing profiles")[0]),
    }
    return {f"results-{name}.svg": picture(svg, "figures.css") for name, svg in drawn.items()}


def _series(policies: Sequence[str]) -> list[Series]:
    return [Series(policy, COLORS[policy]) for policy in policies]


def _policies(found: Sequence[Table], *, marked: bool) -> str:
    policies = tuple(POLICY_LABELS.values())
    titles = {"conv": "All convolutions", "end": "Whole model, end to end"}
    panels = [
        BarPanel(title, table.of(policies), _marks(figure, table, policies) if marked else {})
        for (figure, title), table in zip(titles.items(), found[:2], strict=True)
    ]
    mark = "published" if marked else ""
    return grouped_bars(tuple(found[0].rows), _series(policies), panels, unit=SPEEDUP, base=1.0, mark=mark)


def _marks(figure: str, table: Table, policies: Sequence[str]) -> dict[tuple[int, int], float]:
    models = list(table.rows)
    return {
        (policies.index(policy), models.index(model)): value
        for (of, model, policy), value in PUBLISHED.items()
        if of == figure
    }


def _energy(table: Table) -> str:
    policies = ("Newton++", "MD-DP", "PIMFlow", "auto")
    panel = BarPanel("Energy of one inference, against the GPU alone", table.of(policies))
    return grouped_bars(tuple(table.rows), _series(policies), [panel], unit="change, %")


def _timing(table: Table) -> str:
    columns = [f"{policy}, {timing}" for policy in ("Newton++", "PIMFlow", "auto") for timing in ("artifact", "strict")]
    series = [
        Series(column, COLORS[column.split(",")[0]] + (" hollow" if column.endswith("artifact") else ""))
        for column in columns
    ]
    panel = BarPanel("End to end under both timing profiles", table.of(columns))
    return grouped_bars(tuple(table.rows), series, [panel], unit=SPEEDUP, base=1.0)


def _curve(title: str, setting: str, table: Table) -> CurvePanel:
    return CurvePanel(title, setting, [float(column) for column in table.columns], list(table.rows.values()))


def _lines(table: Table) -> list[Series]:
    return [Series(model, color) for model, color in zip(table.rows, MODEL_COLORS, strict=True)]


def _over_channels(found: Sequence[Table]) -> str:
    conv, end = found
    panels = [
        _curve("All convolutions, PIMFlow", "PIM channels of 32", conv),
        _curve("End to end, PIMFlow", "PIM channels of 32", end),
    ]
    return curves(_lines(conv), panels, unit=SPEEDUP, base=1.0)


def _over_knobs(found: Sequence[Table]) -> str:
    buffers, stages = found
    panels = [
        _curve("Global buffers, PIMFlow", "buffers that a mapping may use", buffers),
        _curve("Stages of a pipeline, Pipeline", "stages", stages),
    ]
    return curves(_lines(buffers), panels, unit="speedup, all convolutions", base=1.0)


def draw(page: str) -> None:
    """Draw every chart of the page into docs/images."""
    for name, text in charts(page).items():
        (DOCS / "images" / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    draw((DOCS / "results.md").read_text(encoding="utf-8"))
