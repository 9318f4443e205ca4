"""Markup made from hostile texts: they are shown, never interpreted."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest

from pimflow.report.page.markup import Markup, element, embedded_json, joined, shortened

HOSTILE = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)//",
    "<!-- <script>",
    "]]>",
    "\"'` onload=alert(1) x=",
    "a\u2028b\u2029c",
    "\x00\x07\x1b[31m\x7f",
    "\u202egnp.exe",
    "&lt;b&gt;&amp;",
    "\ud800",
    "<img src=x onerror=alert(1)>",
]


class Reader(HTMLParser):
    """Parses markup as a browser would: elements, texts, attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.texts: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_stays_text(text: str) -> None:
    reader = Reader()
    reader.feed(element("p", text, title=text, data_name=text))
    assert reader.elements == ["p"]
    assert [name for name, _ in reader.attributes] == ["title", "data-name"]
    (shown,) = reader.texts
    assert shown.isprintable()
    assert all(value == shown for _, value in reader.attributes)


@pytest.mark.parametrize("text", HOSTILE)
def test_embedded_json_ends_no_script_and_reads_back(text: str) -> None:
    written = embedded_json({text: [text]})
    assert not set("<>&\u2028\u2029") & set(written)
    assert json.loads(written) == {text: [text]}


def test_markup_is_not_escaped_twice() -> None:
    inner = element("b", "1 < 2")
    assert element("p", inner, " & ") == "<p><b>1 &lt; 2</b> &amp; </p>"
    assert joined([inner, "<"]) == Markup("<b>1 &lt; 2</b>&lt;")


def test_attributes_that_are_absent_and_elements_without_content() -> None:
    assert element("input", type="checkbox", checked=True, id=None, hidden=False) == '<input type="checkbox" checked>'
    assert element("rect", x=0.1, width=12) == '<rect x="0.1" width="12"></rect>'


def test_a_long_name_loses_its_middle() -> None:
    name = "layer" * 2_000 + ".conv2"
    assert len(shortened(name)) <= 120
    assert shortened(name).endswith(".conv2")
    assert shortened("conv2") == "conv2"
