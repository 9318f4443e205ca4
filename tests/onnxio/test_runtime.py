"""Side effects of ONNX Runtime."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from pimflow.onnxio.runtime import return_memory


def test_only_large_sessions_return_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(malloc_trim=kept.append))
    return_memory(9_999, (1 << 26) - 1)
    assert kept == []
    return_memory(10_000, 0)
    assert kept == [0]
    return_memory(1, 1 << 26)
    assert kept == [0, 0]


@pytest.mark.parametrize("nodes", [1, 10**6])
def test_memory_of_other_libraries_is_kept(monkeypatch: pytest.MonkeyPatch, nodes: int) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    return_memory(nodes, 0)
