"""A chart of the HTML report as a separate file, for pages that show pictures."""

from __future__ import annotations

import re

from pimflow.report.page.markup import asset

MARGIN = 12


def picture(svg: str, *sheets: str) -> str:
    """A chart as a file: with the style of the page, a background in its colour, and a margin.

    Args:
        svg: the chart.
        sheets: style sheets of the page that it needs in addition to that of all charts.
    """
    width, height = map(float, re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)[0])
    box = f"{-MARGIN} {-MARGIN} {width + 2 * MARGIN:g} {height + 2 * MARGIN:g}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" font-family="system-ui, sans-serif">'
    ground = f'<rect x="{-MARGIN}" y="{-MARGIN}" width="100%" height="100%" fill="var(--paper)"/>'
    inner = re.sub("^<svg", f'<svg width="{width:g}" height="{height:g}"', svg)
    style = "".join(map(asset, ("charts.css", *sheets)))
    return f"{head}<style>{style}.chart {{ width: {width:g}px; }}</style>{ground}{inner}</svg>\n"
