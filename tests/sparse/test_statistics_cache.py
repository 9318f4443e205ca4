"""Statistics are measured once: cached with the graph, and for large graphs on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from pimflow.search.price_cache import cache_clear, cache_info
from pimflow.sparse import Graph, generate, reuse, statistics_cache, statistics_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIMFLOW_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(statistics_cache, "MIN_CACHED_EDGES", 1000)
    return tmp_path / "cache"


def fail(*arguments: object) -> None:
    raise AssertionError("measured again")


def same(graph: Graph) -> Graph:
    return Graph.from_csr(graph.rowptr, graph.col)


def test_statistics_are_found_by_content(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = generate.rmat(9, 2000)
    first = statistics_of(graph)
    assert statistics_of(graph) is first
    assert cache_info().graphs == 1
    monkeypatch.setattr(statistics_cache, "measure", fail)
    again = statistics_of(same(graph))
    assert {**vars(again), "reuse": None} == {**vars(first), "reuse": None}
    assert again.reuse.distances.tolist() == first.reuse.distances.tolist()
    assert [reuse(same(graph), rows) for rows in (5, 50)] == [first.reuse.miss_ratio(rows) for rows in (5, 50)]
    with pytest.raises(AssertionError, match="measured again"):
        statistics_of(generate.rmat(9, 2000, 1))


def test_other_code_finds_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = generate.rmat(9, 2000)
    statistics_of(graph)
    monkeypatch.setattr(statistics_cache, "measure", fail)
    monkeypatch.setattr(statistics_cache, "_code", lambda: "other")
    with pytest.raises(AssertionError, match="measured again"):
        statistics_of(same(graph))


def test_a_damaged_file_is_made_again(folder: Path) -> None:
    graph = generate.rmat(9, 2000)
    first = statistics_of(graph)
    (file,) = folder.iterdir()
    content = file.read_bytes()
    file.write_bytes(content[:200])
    assert statistics_of(same(graph)).groups == first.groups
    assert file.read_bytes() == content


def test_a_folder_that_cannot_be_written_changes_nothing(folder: Path) -> None:
    folder.write_text("a file")
    assert statistics_of(generate.rmat(9, 2000)).num_edges == 2000


def test_small_graphs_leave_no_file_and_clear_removes_all(folder: Path) -> None:
    statistics_of(generate.rmat(5, 100))
    assert not folder.exists()
    statistics_of(generate.rmat(9, 2000))
    assert cache_clear() == 1
    assert list(folder.iterdir()) == []
