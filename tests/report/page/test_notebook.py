"""Results in a notebook: the charts of the pages, below the table, with names as data."""

from __future__ import annotations

import pytest

import pimflow


@pytest.fixture(scope="module")
def host_alone() -> pimflow.CompiledModel:
    return pimflow.compile("zoo:toy", policy="gpu", use_cache=False)


@pytest.fixture(scope="module")
def planned() -> pimflow.CompiledModel:
    return pimflow.compile("zoo:toy", policy="md-dp", use_cache=False)


def test_policies_are_shown_side_by_side() -> None:
    table, _, charts = (
        pimflow.compare("zoo:toy", policies=["pim", "md-dp"], use_cache=False)._repr_html_().partition("</table>")
    )
    assert table.count("<tr>") == 3
    assert charts.count("<svg") == 2
    assert all(f">{name}</text>" in charts for name in ("GPU alone", "pim", "md-dp"))


def test_alternatives_of_a_node_are_bars(planned: pimflow.CompiledModel) -> None:
    found = pimflow.explain(planned, "conv2")
    charts = found._repr_html_().partition("</table>")[2]
    assert charts.count('class="name"') == len(found)


def test_a_difference_is_a_waterfall(host_alone: pimflow.CompiledModel, planned: pimflow.CompiledModel) -> None:
    found = pimflow.diff(host_alone, planned)
    assert "faster" in found._repr_html_().partition("</table>")[2]
    assert pimflow.diff(host_alone, host_alone)._repr_html_().count("<svg") == 1


def test_a_sweep_shows_its_fronts() -> None:
    found = pimflow.sweep({"models": ["zoo:toy"], "policies": ["md-dp"], "grid": {"pim.channels": [4, 8, 40]}}, jobs=1)
    charts = found._repr_html_().partition("</table>")[2]
    assert (charts.count("<svg"), charts.count("<circle")) == (1, found.count("ok"))
    none = pimflow.sweep({"models": ["zoo:toy"], "grid": {"pim.channels": [40]}}, jobs=1)
    assert "<svg" not in none._repr_html_()
