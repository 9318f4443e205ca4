"""The source of a model: misspelled names."""

from __future__ import annotations

from pathlib import Path

import pytest

from pimflow.bundle.source import model_source
from pimflow.errors import ModelError


@pytest.mark.parametrize(
    ("text", "meant"),
    [("mobilenet-v2", "mobilenet-v2"), ("MobileNet_V2", "mobilenet-v2"), ("resnet50.onnx", "resnet-50")],
)
def test_a_name_of_the_zoo_without_its_prefix(text: str, meant: str) -> None:
    with pytest.raises(ModelError, match=f"no such file: {text}; did you mean 'zoo:{meant}'"):
        model_source(text)


def test_a_file_is_taken_at_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("toy").touch()
    assert model_source("toy").path == Path("toy")
    assert model_source("models/toy").path == Path("models/toy")
    assert model_source(Path("resnet-50")).path == Path("resnet-50")
