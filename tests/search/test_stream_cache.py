"""Streams cached on disk: written again unchanged, and never in place of others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import pimflow
from pimflow.codegen.newton import PimProgram
from pimflow.runtime.newton import backend
from pimflow.search.stream_cache import StreamCache
from support.calls import count_calls

STREAMS = "streams.json.gz"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIMFLOW_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def archived(monkeypatch: pytest.MonkeyPatch) -> list[PimProgram]:
    """The programs whose streams were archived, in order."""
    return count_calls(monkeypatch, backend, "archive_text")


def test_streams_are_made_once_and_written_identically(tmp_path: Path, archived: list[PimProgram]) -> None:
    folders = [tmp_path / name for name in ("one", "two", "anew")]
    for folder in folders:
        count = len(archived)
        pimflow.compile("zoo:toy", use_cache=folder.name != "anew").save(folder)
        assert (len(archived) == count) == (folder.name == "two")
    one, two, anew = ((folder / STREAMS).read_bytes() for folder in folders)
    assert one == two == anew


def test_programs_that_were_changed_are_written_as_they_are(tmp_path: Path, archived: list[PimProgram]) -> None:
    compiled = pimflow.compile("zoo:toy")
    whole = (compiled.save(tmp_path / "whole") / STREAMS).read_bytes()
    name, program = next(iter(compiled.programs.items()))
    changed = program.with_streams(tuple(stream for stream in program.streams if stream.channel))
    other = replace(compiled, programs={**compiled.programs, name: changed})
    assert (other.save(tmp_path / "other") / STREAMS).read_bytes() != whole
    moved = replace(pimflow.compile("zoo:toy"), programs={**compiled.programs, name: replace(program, first_row=7)})
    assert (moved.save(tmp_path / "moved") / STREAMS).read_bytes() != whole
    assert (pimflow.compile("zoo:toy").save(tmp_path / "again") / STREAMS).read_bytes() == whole


def test_the_cache_entry_belongs_to_these_programs_only(tmp_path: Path) -> None:
    StreamCache(tmp_path, "a").put(b"\x00packed")
    assert StreamCache(tmp_path, "a").packed == b"\x00packed"
    assert StreamCache(tmp_path, "b").packed is None
    assert StreamCache(None, "a").packed is None
