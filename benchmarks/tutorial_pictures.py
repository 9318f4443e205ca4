"""Makes the pictures of docs/tutorial.md: charts of the HTML report of MobileNetV2, each as a separate file.

python benchmarks/tutorial_pictures.py

tests/test_docs.py compares them with what the tool draws now.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from svg_file import picture

import pimflow

FOLDER = Path(__file__).parent.parent / "docs" / "images"
MODEL, POLICY = "zoo:mobilenet-v2", "pimflow"
"""The model and policy that the tutorial compiles."""
CHARTS = {"tutorial-gains.svg": "gains", "tutorial-schedule.svg": "schedule", "tutorial-roofline.svg": "roofline"}
"""The part of the report whose first chart is drawn, by file."""


def pictures() -> Mapping[str, str]:
    """The pictures, by file name."""
    page = pimflow.html_report(pimflow.compile(MODEL, policy=POLICY)).html
    return {name: picture(chart(page, part)) for name, part in CHARTS.items()}


def chart(page: str, part: str) -> str:
    """The first chart in a section of the page, including nested charts."""
    start = page.index("<svg", page.index(f'<section id="{part}"'))
    depth = 0
    for tag in re.compile(r"<svg|</svg>").finditer(page, start):
        depth += 1 if tag.group() == "<svg" else -1
        if depth == 0:
            return page[start : tag.end()]
    raise ValueError(f"the chart of {part!r} has no end")


def main() -> None:
    for name, text in pictures().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(f"wrote {FOLDER / name}")


if __name__ == "__main__":
    main()
