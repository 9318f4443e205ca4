"""`pimflow targets`: machines listed and shown, and files that are not machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from pimflow.targets import load_target, target_text
from support.cli import Capture, assert_one_line, document, run


def test_targets_are_listed_and_shown(capsys: Capture, tmp_path: Path) -> None:
    listed = document(capsys, "targets", "list")["targets"]
    assert all(set(item) == {"name", "description", "units"} for item in listed)
    names = [item["name"] for item in listed]
    assert "pimflow" in names
    assert len(names) >= 3
    for name in names:
        capsys.readouterr()
        assert run("targets", "show", name) == 0
        path = tmp_path / f"{name}.toml"
        path.write_text(capsys.readouterr().out)
        assert load_target(path) == load_target(name)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sms = 30", "smss = 30"),
        ("sms = 30", "sms = -3"),
        ("sms = 30", 'sms = "thirty"'),
        ("sms = 30", ""),
        ("[gpu]", "[gpu"),
        ("banks = 16", "banks = 15"),
    ],
)
def test_a_bad_target_file_is_one_line_that_names_the_key(capsys: Capture, tmp_path: Path, old: str, new: str) -> None:
    text = target_text("pimflow")
    assert old in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new, 1))
    assert run("layer", "--matmul", "m=1,k=64,n=64", "--target", path) == 2
    assert_one_line(capsys, "mine.toml")
