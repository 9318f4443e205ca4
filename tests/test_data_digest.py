"""Digests of weight files: always those of the bytes, but known without reading them for weights of the zoo."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import pimflow
from pimflow.bundle.manifest import change_since
from pimflow.bundle.source import ModelSource
from pimflow.compiled import data_digest as digesting
from pimflow.compiled.data_digest import data_digest
from pimflow.compiled.writing import WRITTEN
from pimflow.ir import Array
from pimflow.onnxio import save as saving
from pimflow.onnxio.export import SplitModel
from pimflow.onnxio.save import Stored
from support.calls import count_calls

DRAWN = np.random.default_rng(1).random((8, 16), np.float32)
OTHER = np.random.default_rng(2).random((4, 4), np.float32)
FIRST, SECOND = "toy", "mobilenet-v2"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The data files that were read, in order."""
    return count_calls(monkeypatch, digesting, "sha256_of")


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., str]:
    """Write arrays one after another, compute the digest, and compare it with that of the bytes."""

    def write(*arrays: Array, zoo: str = FIRST, cache: bool = True) -> str:
        source = ModelSource(zoo, zoo=zoo)
        vars(source)["content"] = SplitModel(onnx.ModelProto(), {"w": DRAWN})
        data, stored = b"", []
        for array in arrays:
            stored.append(Stored(len(data), array))
            data += array.tobytes()
        path = tmp_path / "data"
        path.write_bytes(data)
        digest = data_digest(path, stored, source, tmp_path / "cache" if cache else None)
        assert digest == hashlib.sha256(data).hexdigest()
        return digest

    return write


@pytest.mark.parametrize("arrays", [(DRAWN,), (DRAWN[2:5], OTHER), (OTHER, DRAWN[:1], DRAWN[1:])])
def test_a_known_file_is_not_read_again(
    arrays: tuple[Array, ...], written: Callable[..., str], reads: list[Path]
) -> None:
    assert written(*arrays) == written(*(array if array.base is not None else array[:] for array in arrays))
    assert len(reads) == 1


@pytest.mark.parametrize(
    "arrays",
    [
        (DRAWN[1:4], OTHER),  # other rows
        (DRAWN[:2], OTHER),  # fewer
        (DRAWN[:3], OTHER + 1),  # another array next to them
        (DRAWN[:3] + 1, OTHER),  # other numbers of the same size
        (DRAWN[:6:2], OTHER),  # every second row
        (DRAWN.T[:3], OTHER),
        (OTHER, DRAWN[:3]),
    ],
)
def test_any_other_file_is_read(arrays: tuple[Array, ...], written: Callable[..., str], reads: list[Path]) -> None:
    written(DRAWN[:3], OTHER)
    written(*arrays)
    assert len(reads) == 2


def test_weights_of_another_model_differ(written: Callable[..., str], reads: list[Path]) -> None:
    written(DRAWN)
    written(DRAWN, zoo=SECOND)
    written(DRAWN, cache=False)
    assert len(reads) == 3


def test_an_output_with_such_a_file_is_as_its_manifest_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: list[Path]
) -> None:
    monkeypatch.setenv("PIMFLOW_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(saving.save_onnx, "__kwdefaults__", {"single_file_limit_bytes": 0})
    monkeypatch.setattr("pimflow_zoo.writer.MIN_APART_BYTES", 1)
    for name in ("one", "two"):
        compiled = pimflow.compile("zoo:toy", policy="gpu", check=False)
        assert change_since(compiled.save(tmp_path / name), WRITTEN) is None
    assert len(reads) == 1
    assert (tmp_path / "one" / "model.onnx.data").stat().st_size
