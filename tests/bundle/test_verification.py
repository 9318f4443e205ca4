"""The verification results stored in an output folder: valid for that output alone, and only if unchanged."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pimflow.bundle.folder import check_output, new_output
from pimflow.bundle.manifest import VERIFICATION
from pimflow.bundle.verification import Check, output_digest, store_check, stored_checks
from pimflow.errors import DataError, OutputError

CHECK = Check({"seed": 0}, True, "1 output", {"pimflow": "1"}, {"passed": True})
OTHER = replace(CHECK, how={"seed": 1}, passed=False)


def saved(folder: Path, text: str = "text") -> str:
    with new_output(folder) as made:
        (made / "model.onnx").write_text(text)
    return output_digest(folder)


def test_a_check_replaces_earlier_ones_of_the_same_run(tmp_path: Path) -> None:
    digest = saved(tmp_path / "out")
    assert stored_checks(tmp_path / "out", digest) == ()
    for check in (CHECK, OTHER, replace(CHECK, told="again")):
        store_check(tmp_path / "out", digest, check)
    assert stored_checks(tmp_path / "out", digest) == (OTHER, replace(CHECK, told="again"))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_checks_of_another_output_do_not_count(tmp_path: Path) -> None:
    first, second = saved(tmp_path / "a"), saved(tmp_path / "b", "other")
    store_check(tmp_path / "a", first, CHECK)
    (tmp_path / "b" / VERIFICATION).write_bytes((tmp_path / "a" / VERIFICATION).read_bytes())
    assert stored_checks(tmp_path / "b", second) == ()
    with pytest.raises(OutputError, match="was rewritten after"):
        store_check(tmp_path / "b", first, CHECK)


def test_replacing_a_verified_output_discards_its_checks(tmp_path: Path) -> None:
    store_check(tmp_path, saved(tmp_path), CHECK)
    saved(tmp_path, "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "model.onnx"]


@pytest.mark.parametrize("text", ["{}", "[]", "no json", '{"a": NaN}', ""])
def test_a_changed_verification_counts_as_a_users_file(tmp_path: Path, text: str) -> None:
    digest = saved(tmp_path)
    (tmp_path / VERIFICATION).write_text(text)
    with pytest.raises((ValueError, DataError)):
        stored_checks(tmp_path, digest)
    with pytest.raises(OutputError, match=r"verification\.json was added or changed"):
        check_output(tmp_path)
    store_check(tmp_path, digest, CHECK)
    assert stored_checks(tmp_path, digest) == (CHECK,)


def test_a_verdict_cannot_be_forged(tmp_path: Path) -> None:
    digest = saved(tmp_path)
    store_check(tmp_path, digest, OTHER)
    document = json.loads((tmp_path / VERIFICATION).read_text())
    document["checks"][0]["passed"] = True
    (tmp_path / VERIFICATION).write_text(json.dumps(document, indent=2) + "\n")
    with pytest.raises(DataError, match="changed since"):
        stored_checks(tmp_path, digest)


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="needs a user to whom permissions apply")
def test_an_unwritable_folder_is_a_one_line_error(tmp_path: Path) -> None:
    digest = saved(tmp_path / "around" / "out")
    (tmp_path / "around").chmod(0o500)
    try:
        with pytest.raises(OutputError, match="cannot write"):
            store_check(tmp_path / "around" / "out", digest, CHECK)
    finally:
        (tmp_path / "around").chmod(0o700)
