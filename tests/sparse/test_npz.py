"""Graphs in .npz files: read back as written, memory-mapped where possible, refused if damaged."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pimflow.errors import GraphDataError, OutputError
from pimflow.sparse import Graph, npz

EDGES = np.array([[2, 0, 1, 1], [1, 0, 0, 3]])


def is_mapped(array: Any) -> bool:
    while array is not None and not isinstance(array, np.memmap):
        array = array.base
    return array is not None


@pytest.mark.parametrize("given", [{}, {"edge_weight": [1, 2, 3, 4]}, {"edge_type": [0, 1, 0, 1]}])
def test_a_graph_is_read_back_as_it_was_saved_and_not_copied(given: dict[str, Any], tmp_path: Path) -> None:
    graph = Graph.from_edge_index(EDGES, 5, **given)
    file = tmp_path / "graph.npz"
    graph.save(file)
    first = file.read_bytes()
    back = Graph.load(file)
    assert back.sha256 == graph.sha256
    np.testing.assert_array_equal(back.edge_index(), EDGES)
    assert is_mapped(back.col)
    assert back.col.ctypes.data % 4 == 0
    graph.save(file)
    assert file.read_bytes() == first
    assert [path.name for path in tmp_path.iterdir()] == ["graph.npz"]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_the_arrays_of_pytorch_geometric(save: Any, tmp_path: Path) -> None:
    file = tmp_path / "graph.npz"
    weight = np.array([[0.5], [1], [2], [3]], np.float64)
    save(file, edge_index=EDGES, num_nodes=6, edge_weight=weight, edge_type=EDGES[0], x=np.ones(9))
    expected = Graph.from_edge_index(EDGES, 6, weight, EDGES[0])
    assert Graph.load(file).sha256 == expected.sha256
    save(file, edge_index=np.asfortranarray(EDGES.astype(np.int16)))
    assert Graph.load(file).sha256 == Graph.from_edge_index(EDGES).sha256
    save(file, edge_index=EDGES, num_nodes=[6, 8])
    bipartite = Graph.load(file)
    assert (bipartite.num_src, bipartite.num_dst) == (6, 8)
    assert bipartite.sha256 == Graph.from_edge_index(EDGES, (6, 8)).sha256


@pytest.mark.parametrize("form", ["coo", "csr", "csc"])
@pytest.mark.parametrize("compressed", [True, False])
def test_scipys_matrices(form: str, compressed: bool, tmp_path: Path) -> None:
    import scipy.sparse

    file = tmp_path / "graph.npz"
    matrix = scipy.sparse.coo_matrix(([1.0, 2, 3], ([0, 0, 1], [0, 2, 2])), shape=(2, 3)).asformat(form)
    scipy.sparse.save_npz(file, matrix, compressed)
    assert Graph.load(file).sha256 == Graph.from_scipy(matrix).sha256
    scipy.sparse.save_npz(file, matrix.astype(bool), compressed)
    assert Graph.load(file).weight is None


def write_member(file: Path, name: str, content: bytes) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)


def header(shape: tuple[int, ...], descr: str = "<i8") -> bytes:
    import io

    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue()


def test_damaged_files_are_one_line_errors(tmp_path: Path) -> None:
    good, file = tmp_path / "good.npz", tmp_path / "graph.npz"
    cases: list[tuple[bytes, str]] = []
    for save in (np.savez, np.savez_compressed):
        save(good, edge_index=np.arange(2000).reshape(2, 1000) % 7)
        content = good.read_bytes()
        cases.append((content[: len(content) // 2], "cannot be read: "))
    flipped = bytearray(content)  # the compressed file
    flipped[len(content) // 3] ^= 255
    cases.append((bytes(flipped), "cannot be read: "))
    for broken, message in cases:
        file.write_bytes(broken)
        with pytest.raises(GraphDataError, match=message):
            Graph.load(file)
    with pytest.raises(GraphDataError, match="no such file"):
        Graph.load(tmp_path / "none.npz")
    os.mkfifo(tmp_path / "fifo.npz")
    with pytest.raises(GraphDataError, match="cannot be read: it is not a regular file; give another file"):
        Graph.load(tmp_path / "fifo.npz")
    np.savez(file, x=np.ones(3))
    with pytest.raises(GraphDataError, match=r"has no edge_index, .*: it has x float64 \[3\]; save"):
        Graph.load(file)
    write_member(file, "edge_index.npy", header((2, True, 4)) + bytes(64))
    with pytest.raises(GraphDataError, match=r"edge_index has shape \[2, 1, 4\]; it must be \[2, E\]"):
        Graph.load(file)
    write_member(file, "archive/data.pkl", b"\x80\x04K\x01.")
    with pytest.raises(GraphDataError, match=r"data\.pkl is not an array of numpy's; save edge_index"):
        Graph.load(file)
    np.savez(file, edge_index=np.array([[None], [None]]))
    with pytest.raises(GraphDataError, match="holds Python objects"):
        Graph.load(file)
    write_member(file, "edge_index.npy", header((2, 1000)) + bytes(64))
    with pytest.raises(GraphDataError, match="should have 16000 bytes of elements, but has 64"):
        Graph.load(file)


def test_files_too_large_for_memory_are_refused_before_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "graph.npz"
    edges = np.zeros((2, 200_000), np.int64)
    np.savez_compressed(file, edge_index=edges)
    assert file.stat().st_size < 10_000
    monkeypatch.setattr(npz, "available_bytes", lambda: 1 << 20)
    with pytest.raises(GraphDataError, match=r"unpack to 3\.1 MiB, but 1\.0 MiB of memory is free"):
        Graph.load(file)


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write"):
        Graph.from_edge_index(EDGES).save(tmp_path / "no" / "folder.npz")
    assert list(tmp_path.iterdir()) == []
