"""Results as rows of plain values, for programs, pandas and notebooks."""

from __future__ import annotations

from typing import Any

import pandas as pd

from pimflow.report.records import Listing, flat, html_table

NASTY = '<script>alert("x")</script>&\x1b[2J\n'


def test_nested_tables_become_paths() -> None:
    assert flat({"a": {"b": {"c": 1}, "d": 2}, "e": [3]}) == {"a.b.c": 1, "a.d": 2, "e": [3]}


def test_a_result_is_a_sequence_of_its_rows() -> None:
    listing = Listing("things", [{"name": "a", "n": 1}, {"name": "b", "n": 2}])
    assert len(listing) == 2
    assert listing[-1] == {"name": "b", "n": 2}
    assert listing[:1] == [{"name": "a", "n": 1}]
    assert [row["n"] for row in listing] == [1, 2]
    assert repr(listing) == "<Listing things>"


def test_pandas_takes_it() -> None:
    frame = pd.DataFrame(Listing("things", [{"name": "a", "parts.x": 1.5}, {"name": "b"}]))
    assert list(frame.columns) == ["name", "parts.x"]
    assert frame["parts.x"].tolist()[0] == 1.5
    assert frame["parts.x"].isna().tolist() == [False, True]


def test_rows_cannot_be_changed_from_outside() -> None:
    listing = Listing("things", [{"n": 1}])
    listing.records()[0]["n"] = 2
    assert listing.records() == [{"n": 1}]


def test_no_name_is_markup_or_a_command() -> None:
    page = html_table([{NASTY: NASTY, "n": 1.23456}], NASTY)
    assert "<script>" not in page
    assert "\x1b" not in page
    assert page.count("&lt;script&gt;") == 3
    assert "1.235" in page
    assert repr(Listing(NASTY, [])).isprintable()


def test_a_table_is_small() -> None:
    rows: list[dict[str, Any]] = [{"n": n, "parts": [1, 2], "none": None} for n in range(1000)]
    page = html_table(rows, "many")
    assert "960 more rows" in page
    assert len(page) < 5000
    assert "parts" not in page
