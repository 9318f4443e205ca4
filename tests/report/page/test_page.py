"""The page as a reader without scripts sees it, with hostile names as text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

import pimflow
from support.hostile import hostile_model
from support.onnx_models import single


class Page(HTMLParser):
    """Elements of a page with their texts, checked to be properly nested."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: dict[str, int] = {}
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] = self.elements.get(tag, 0) + 1
        self.attributes |= {name for name, _ in attrs}
        if tag not in ("meta", "link", "input"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        (self.scripts if self._open[-1:] == ["script"] else self.texts).append(data)


@pytest.fixture(scope="module")
def compiled() -> pimflow.CompiledModel:
    return pimflow.compile("zoo:toy", policy="md-dp", use_cache=False)


def test_content_without_a_script(compiled: pimflow.CompiledModel) -> None:
    page = Page(pimflow.html_report(compiled).html)
    text = " ".join(page.texts)
    for row in compiled.report.nodes:
        assert row.name in text
    assert f"{compiled.report.speedup:.2f}x" in text
    assert "GPU alone" in text
    for section in ("Where the time goes", "What runs when", "Every node", "Where time and energy go"):
        assert section in text
    assert page.elements["svg"] >= 4
    for axis in ("time, us", "energy, mJ"):
        assert axis in text


def test_a_plan_for_throughput_says_how_many_a_second(compiled: pimflow.CompiledModel) -> None:
    flying = pimflow.compile("zoo:toy", objective="throughput", check=False)
    steady = flying.steady_report
    assert steady is not None
    page = pimflow.html_report(flying, what_if=0).html
    assert f"{steady.speedup:.2f}x" in page
    assert f"{steady.inferences_per_s:,.0f} per second" in page
    assert "inferences in flight" not in pimflow.html_report(compiled, what_if=0).html


def test_the_same_content_gives_the_same_bytes(compiled: pimflow.CompiledModel) -> None:
    assert pimflow.html_report(compiled).html == pimflow.html_report(compiled).html


def test_nothing_is_requested_from_a_network(compiled: pimflow.CompiledModel) -> None:
    html = pimflow.html_report(compiled).html
    assert "default-src &#x27;none&#x27;" in html
    assert not re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?(?!data:,|#)\w""", html.partition("<script>")[0])
    assert set(re.findall(r"https?://[^\"'\s]+", html)) == {"http://www.w3.org/2000/svg"}


def test_hostile_names_are_text() -> None:
    plain = Page(pimflow.html_report(pimflow.compile("zoo:toy", policy="md-dp", use_cache=False)).html)
    compiled = pimflow.compile(hostile_model(), policy="md-dp", use_cache=False)
    html = pimflow.html_report(compiled).html
    page = Page(html)
    assert page.elements == plain.elements
    assert page.attributes == plain.attributes
    json.loads(page.scripts[0])
    assert len(page.scripts) == 2
    assert len(html) < 200_000
    assert "owned" in " ".join(page.texts)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u2028\u2029]", html)


def test_two_runs_are_a_difference(compiled: pimflow.CompiledModel) -> None:
    alone = pimflow.compile("zoo:toy", policy="gpu", use_cache=False)
    page = Page(pimflow.html_report(alone, compiled).html)
    text = " ".join(page.texts)
    changes = [float(change) for change in re.findall(r"(?:faster|slower): ([+-][\d.]+) us", text)]
    change = compiled.report.result.time_us - alone.report.result.time_us
    assert sum(changes) == pytest.approx(change, abs=0.1 * len(changes))
    assert "policy" in text
    assert page.elements["table"] >= 3


@pytest.mark.parametrize("op", ["Identity", "Relu"])
def test_a_model_without_products_or_costs(op: str) -> None:
    compiled = pimflow.compile(single(op, (1, 8), []), use_cache=False)
    page = Page(pimflow.html_report(compiled).html)
    assert "no decision" in " ".join(page.texts)
    assert Page(pimflow.html_report(compiled, compiled).html).elements["table"] > 1
    assert compiled._repr_html_().count("<svg") == 5
    assert len(compiled.node_data()["results"]) == (op == "Relu")
