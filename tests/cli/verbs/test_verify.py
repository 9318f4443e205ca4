"""`pimflow verify`: what passes, what fails, and folders that were damaged."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from support.cli import Capture, assert_one_line, document, run


@pytest.fixture(scope="module")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy") / "out"
    assert run("compile", "zoo:toy", "-o", folder, "--policy", "md-dp", "--no-cache") == 0
    return folder


def test_verify_passes_and_says_so(toy_folder: Path, capsys: Capture) -> None:
    result = document(capsys, "verify", toy_folder)
    assert {"passed", "max_abs_err", "max_rel_err", "output_std", "nodes_checked"} <= result.keys()
    assert result["passed"] is True
    assert result["output_std"] > 0.1
    assert result["nodes_checked"] > 5
    assert result["max_rel_err"] < 1e-4


@pytest.mark.parametrize(
    "extra", [("--pim", "values", "--operand", "fp32"), ("--pim", "values"), ("--arena",), ("--seed", "7")]
)
def test_verify_by_other_means(toy_folder: Path, capsys: Capture, extra: tuple[str, ...]) -> None:
    result = document(capsys, "verify", toy_folder, *extra)
    assert result["passed"] is True
    if "fp32" in extra:
        assert result["rtol"] == 1e-4
    elif "values" in extra:
        assert result["max_rel_err"] > 1e-6  # fp16 operands show


def test_verify_takes_inputs_by_name(toy_folder: Path, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "inputs.npz"
    np.savez(path, input=np.random.default_rng(3).standard_normal((1, 3, 16, 16)).astype(np.float32))
    assert run("verify", toy_folder, "--inputs", path) == 0
    np.savez(path, wrong=np.zeros((1, 3, 16, 16), np.float32))
    assert run("verify", toy_folder, "--inputs", path) == 2
    path.write_bytes(b"no zip at all")
    assert run("verify", toy_folder, "--inputs", path) == 2


def damage_weights(folder: Path) -> None:
    model = onnx.load(folder / "model.onnx")
    tensor = max(model.graph.initializer, key=lambda item: len(item.raw_data))
    array = numpy_helper.to_array(tensor).copy()
    array.flat[: array.size // 2] *= 1.5
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    onnx.save(model, folder / "model.onnx")


def damage_streams(folder: Path) -> None:
    text = gzip.decompress((folder / "streams.json.gz").read_bytes()).decode()
    # The first fill of every stream of some node starts one pixel late.
    broken = text.replace(
        '"type":"GWrite","pixel":{"type":"Affine","base":0', '"type":"GWrite","pixel":{"type":"Affine","base":1'
    )
    assert broken != text
    (folder / "streams.json.gz").write_bytes(gzip.compress(broken.encode(), mtime=0))


def test_verify_fails_where_a_value_is_wrong(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "out"
    assert run("compile", "zoo:toy", "-o", folder, "--policy", "pim", "--no-cache") == 0
    damage_weights(folder)
    capsys.readouterr()
    assert run("verify", folder, "--json") == 1
    assert json.loads(capsys.readouterr().out)["passed"] is False


def test_verify_by_value_reads_the_streams_of_the_folder(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "out"
    assert run("compile", "zoo:toy", "-o", folder, "--policy", "pim", "--no-cache") == 0
    assert run("verify", folder, "--pim", "values", "--operand", "fp32") == 0
    damage_streams(folder)
    assert run("verify", folder, "--pim", "values", "--operand", "fp32") in (1, 2)
    assert run("verify", folder) == 0  # ONNX Runtime never looked at them


@pytest.mark.parametrize("target", ["aim-gddr6", "hbm-pim"])
def test_every_machine_computes_right(tmp_path: Path, target: str) -> None:
    folder = tmp_path / "out"
    assert run("compile", "zoo:toy", "-o", folder, "--target", target, "--policy", "pim", "--no-cache") == 0
    assert run("verify", folder, "--pim", "values", "--operand", "fp32", "--rtol", "1e-5") == 0
    assert run("verify", folder, "--pim", "values", "--rtol", "1e-6") == 1  # the machine's own operands are narrower
    assert run("verify", folder, "--pim", "values") == 0


@pytest.mark.parametrize("name", ["model.onnx", "plan.json", "streams.json.gz", "config.json", "target.toml"])
def test_a_damaged_output_folder_is_one_line(name: str, tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "out"
    assert run("compile", "zoo:toy", "-o", folder, "--policy", "pim", "--no-cache") == 0
    for content in (b"", b"\x00\xff damaged", None):
        capsys.readouterr()
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_bytes(content)
        assert run("verify", folder) == 2
        assert_one_line(capsys)
        if content is None:
            break
