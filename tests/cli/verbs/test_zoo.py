"""`pimflow zoo`: models listed and written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from support.cli import Capture, document, run


def test_zoo_export_writes_a_model_that_runs(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "toy.onnx"
    assert run("zoo", "export", "toy", "-o", path) == 0
    onnx.checker.check_model(str(path))
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    image = np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype(np.float32)
    assert np.std(session.run(None, {"input": image})[0]) > 0.3
    names = [item["name"] for item in document(capsys, "zoo", "list")["models"]]
    assert {"toy", "mobilenet-v2", "efficientnet-b0", "mnasnet-1.0", "resnet-50", "vgg-16"} <= set(names)
