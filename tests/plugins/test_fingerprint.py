"""Prices computed with one version of a package's files are not used with another."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import pimflow
from pimflow.plugins import fingerprint
from pimflow.plugins.fingerprint import forget
from support.plugins import install, install_example, python

PRINT = "from pimflow.search.price_cache import code_fingerprint; print(code_fingerprint())"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return install_example(tmp_path)


def now() -> bytes:
    """The fingerprint of the current files."""
    forget()
    return fingerprint()


def test_without_plugins_there_is_no_fingerprint() -> None:
    assert now() == b""


def test_every_file_of_the_package_counts_and_no_process_matters(site: Path) -> None:
    first = now()
    assert len(first) == 16
    assert python(site, PRINT) == python(site, PRINT)
    for name in ("units.py", "rates.py", "machines/vector-machine.toml"):
        file = site / "pimflow_vector" / name
        text = file.read_text()
        file.write_text(f"{text}# changed\n")
        assert now() != first, name
        file.write_text(text)
    assert now() == first
    (site / "pimflow_vector" / "__pycache__").mkdir()
    (site / "pimflow_vector" / "__pycache__" / "units.cpython-310.pyc").write_bytes(b"compiled")
    assert now() == first
    assert not any(name.startswith("pimflow_vector") for name in sys.modules)


def test_recorded_files_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "two-parts", {"pimflow.policies": {"two": "first_part:POLICY"}})
    (tmp_path / "first_part.py").touch()
    (tmp_path / "second_part.py").touch()
    without = now()
    record = "second_part.py,,\n../../bin/script,,\n__pycache__/second_part.cpython-310.pyc,,\nmissing.py,,\n"
    (tmp_path / "two_parts-1.0.dist-info" / "RECORD").write_text(record)
    first = now()
    assert first != without
    (tmp_path / "second_part.py").write_text("changed = True\n")
    assert now() != first


def test_in_a_shared_folder_only_the_packages_part_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "part", {"pimflow.policies": {"part": "shared_name.part.policies:POLICY"}})
    for name in ("part", "other"):
        (tmp_path / "shared_name" / name).mkdir(parents=True)
        (tmp_path / "shared_name" / name / "__init__.py").touch()
    first = now()
    (tmp_path / "shared_name" / "other" / "__init__.py").write_text("changed = True\n")
    assert now() == first
    (tmp_path / "shared_name" / "part" / "rates.py").write_text("changed = True\n")
    assert now() != first


def test_targets_alone_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their values are in every key."""
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "machines", {"pimflow.targets": {"one": "machines_of_others"}})
    assert now() == b""


COMPILE = """
import pimflow
compiled = pimflow.compile("zoo:toy", target="vector-machine", policy="halves", use_cache={cached})
print(compiled.plan.predicted_us, compiled.report.result.time_us)
"""


def test_a_changed_package_meets_no_stale_price(site: Path, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    before = python(site, COMPILE.format(cached=True), PIMFLOW_CACHE_DIR=cache)
    units = site / "pimflow_vector" / "units.py"
    units.write_text(units.read_text().replace("* LANES", "* LANES, call_us=100.0"))
    after = python(site, COMPILE.format(cached=True), PIMFLOW_CACHE_DIR=cache)
    assert after == python(site, COMPILE.format(cached=False)) != before
    assert pimflow.cache_info(tmp_path / "cache").files > 1
