"""Networks written by both exporters of PyTorch (benchmarks/export_torch_models.py), compiled and verified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import pimflow
from support.cli import Capture, run

FOLDER = Path(__file__).parent / "data" / "exported"
NAMES = sorted(path.stem for path in FOLDER.glob("*.onnx"))
SHAPES = {"shufflenet": ["N=1", "H=160", "W=128"], "shared-weights": ["input0:3x3x40x40"]}
RTOL = {"half": 1e-2}  # kernels in another order round differently to fp16 (2**-11), in each of a few layers
MODES = {("unet", 1): {"md-dp"}, ("unet", 2): {"md-dp", "pipeline"}, ("densenet", 2): {"pipeline"}}


def compiled(name: str, folder: Path, policy: str, *options: str) -> dict[str, Any]:
    """Compile on the command line; return plan.json."""
    shapes = [word for text in SHAPES.get(name, ()) for word in ("--shape", text)]
    assert run("compile", FOLDER / f"{name}.onnx", "-o", folder, "--policy", policy, "--json", *shapes, *options) == 0
    plan: dict[str, Any] = json.loads((folder / "plan.json").read_text())
    return plan


def check_outputs(name: str, folder: Path) -> None:
    """Compare the user's model with the compiled one, run by ONNX Runtime alone on inputs that the test draws."""
    sessions = [
        ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        for path in (FOLDER / f"{name}.onnx", folder / "model.onnx")
    ]
    rng = np.random.default_rng(7)
    kind = np.float16 if name == "half" else np.float32
    feeds = {item.name: rng.standard_normal(item.shape).astype(kind) for item in sessions[1].get_inputs()}
    original, rewritten = (session.run(None, feeds) for session in sessions)
    assert len(original) == len(rewritten)
    for want, got in zip(original, rewritten, strict=True):
        assert want.std() > 1e-3
        np.testing.assert_allclose(got, want, rtol=0, atol=RTOL.get(name, 1e-4) * np.abs(want).max())


RUNS = [  # with few channels, more is shared
    *((name, policy, channels, "strict") for name in NAMES for policy, channels in (("md-dp", 1), ("auto", 16))),
    *((name, "auto", 2, "artifact") for name in ("densenet", "half", "unet", "vit")),
]


@pytest.mark.parametrize(("name", "policy", "channels", "timing"), RUNS)
def test_exported_model(name: str, policy: str, channels: int, timing: str, tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "out"
    machine = ("--pim-channels", str(channels), "--timing", timing)
    document = compiled(name, folder, policy, "--verify-each", *machine)
    time_us = document["result"]["time_us"]
    assert document["plan"]["predicted_us"] == pytest.approx(time_us, rel=1e-9)
    assert document["baseline"]["time_us"] >= time_us * (1 - 1e-12)
    assert any(node["mode"] != "gpu" for node in document["nodes"])
    assert {node["mode"] for node in document["nodes"]} >= MODES.get((name, channels), set())
    check_outputs(name, folder)
    again = pimflow.load(folder)
    for options in ({"arena": True}, {"pim": "values", "operand": "fp32", "arena": True}):
        result = again.verify(**options, seed=3, rtol=RTOL.get(name))
        assert result.passed, result
        assert result.notes == ()


def test_the_exports_cover_what_they_should() -> None:
    """The numbers of opsets, exporters and patterns are those of the script."""
    models = [onnx.load(FOLDER / f"{name}.onnx") for name in NAMES]
    assert len({model.opset_import[0].version for model in models}) >= 5
    kinds = {node.op_type for model in models for node in model.graph.node}
    assert {"ConvTranspose", "Resize", "LayerNormalization", "CastLike", "Split", "Softmax", "HardSwish"} <= kinds
