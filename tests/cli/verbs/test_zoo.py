"""`pimflow zoo`: models listed and written."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

import pimflow_zoo
from support.cli import Capture, document, run


def test_zoo_export_writes_a_model_that_runs(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "toy.onnx"
    assert run("zoo", "export", "toy", "-o", path) == 0
    onnx.checker.check_model(str(path))
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    image = np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype(np.float32)
    assert np.std(session.run(None, {"input": image})[0]) > 0.3


def test_zoo_list_has_every_model_with_its_figures(capsys: Capture) -> None:
    models = {item["name"]: item for item in document(capsys, "zoo", "list")["models"]}
    assert tuple(models) == (*pimflow_zoo.names(), *pimflow_zoo.networks())
    vit = models["vit-b-16"]
    assert (vit["input"], vit["parameters"], vit["macs"]) == ("3x224x224", 86_567_656, 17_563_828_224)
    assert run("zoo") == 0
    table = capsys.readouterr().out
    assert re.search(r"^vit-b-16 +3x224x224 +86,567,656 +17,563,828,224$", table, re.MULTILINE)
    assert len(table.splitlines()) == len(models) + 2
    assert max(map(len, table.splitlines())) <= 80
