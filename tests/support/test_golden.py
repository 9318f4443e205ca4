"""Golden files: equal, changed, missing, written."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.golden import Golden, text_table


def test_a_golden_text_is_written_by_the_flag_only_and_then_compared(tmp_path: Path) -> None:
    keep, update = (Golden(tmp_path / "golden", update=flag) for flag in (False, True))
    with pytest.raises(pytest.fail.Exception, match=r"no golden file .*figures\.txt; write it with --update-golden"):
        keep.check("figures.txt", "a\n")
    update.check("figures.txt", "a\n")
    keep.check("figures.txt", "a\n")
    assert (tmp_path / "golden" / "figures.txt").read_text() == "a\n"


def test_a_change_is_shown_as_a_diff(tmp_path: Path) -> None:
    golden = Golden(tmp_path, update=False)
    (tmp_path / "figures.txt").write_text("one\ntwo\nthree\nfour\n")
    with pytest.raises(pytest.fail.Exception) as caught:
        golden.check("figures.txt", "one\ntwo\nthree\nfive\n")
    message = str(caught.value)
    assert "-four\n+five" in message
    assert "\none" not in message, "unchanged lines are omitted, except for one around a change"
    with pytest.raises(pytest.fail.Exception, match="line ends differ"):
        golden.check("figures.txt", "one\ntwo\nthree\nfour")
    assert (tmp_path / "figures.txt").read_text().endswith("four\n"), "a failure writes nothing"


def test_tables_show_floats_to_four_digits() -> None:
    assert text_table(("model", "us"), [("toy", 1.23456), ("vgg-16", 12)]) == "model | us\ntoy | 1.235\nvgg-16 | 12\n"


def test_the_fixture_uses_the_flag(golden: Golden, request: pytest.FixtureRequest) -> None:
    assert golden == Golden(Path(__file__).parent / "golden", bool(request.config.getoption("--update-golden")))
