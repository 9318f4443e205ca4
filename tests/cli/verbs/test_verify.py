"""`pimflow verify`: passes, failures, and damaged folders."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import pimflow
from pimflow.errors import OutputError
from support.cli import Capture, assert_one_line, document, run
from support.folders import sign


@pytest.fixture(scope="module")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy") / "out"
    assert run("compile", "zoo:toy", "-o", folder, "--policy", "md-dp", "--no-cache") == 0
    return folder


@pytest.fixture(scope="module")
def pim_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pim") / "out"
    assert run("compile", "zoo:toy", "-o", folder, "--policy", "pim", "--no-cache") == 0
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
        assert result["max_rel_err"] > 1e-6  # the effect of fp16 operands


def test_verify_takes_inputs_by_name(toy_folder: Path, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "inputs.npz"
    np.savez(path, input=np.random.default_rng(3).standard_normal((1, 3, 16, 16)).astype(np.float32))
    assert run("verify", toy_folder, "--inputs", path) == 0
    np.savez(path, wrong=np.zeros((1, 3, 16, 16), np.float32))
    assert run("verify", toy_folder, "--inputs", path) == 2
    path.write_bytes(b"no zip at all")
    assert run("verify", toy_folder, "--inputs", path) == 2


def test_verify_takes_sequences_and_optional_inputs(tmp_path: Path, capsys: Capture) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        taken (seq(float[n, 8]) s, optional(float[2]) o) => (float[m, 8] y, bool given) {
            y = ConcatFromSequence <axis: int = 0> (s)
            given = OptionalHasElement (o)
        }""")
    path, folder, values = tmp_path / "model.onnx", tmp_path / "out", tmp_path / "in.npz"
    onnx.save(model, path)
    assert run("compile", path, "-o", folder, "--no-cache", "--no-check") == 0
    elements: dict[str, Any] = {f"s[{place}]": np.full((place + 1, 8), place, np.float32) for place in range(3)}
    rows: dict[str, Any] = {"s": np.ones((3, 2, 8), np.float32)}
    for given in (elements, {**elements, "o": np.ones(2, np.float32)}, rows):
        np.savez(values, **given)
        assert run("verify", folder, "--inputs", values) == 0
    np.savez(values, **{"s[1]": elements["s[1]"]})
    capsys.readouterr()
    assert run("verify", folder, "--inputs", values) == 2
    assert_one_line(capsys, "has 's[1]', but not 's[0]'")


def test_invalid_input_files_are_one_line_errors(toy_folder: Path, tmp_path: Path, capsys: Capture) -> None:
    bare, fifo, claim = tmp_path / "x.npy", tmp_path / "fifo.npz", tmp_path / "claim.npz"
    np.save(bare, np.zeros(3))
    os.mkfifo(fifo)
    header = b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }"
    with zipfile.ZipFile(claim, "w") as archive:
        archive.writestr("input.npy", header.ljust(127) + b"\n")
    for path, words in ((bare, "one bare array"), (fifo, "not a regular file"), (claim, "claims arrays"),
                        (tmp_path / ("x" * 300), "too long"), (tmp_path / "none.npz", "No such file")):  # fmt: skip
        capsys.readouterr()
        assert run("verify", toy_folder, "--inputs", path) == 2
        assert_one_line(capsys, words)


def test_changed_folders_are_not_verified(tmp_path: Path, capsys: Capture) -> None:
    """One bit of a weight, and one digit of the machine: far below any error bound, but not what was compiled."""
    folder = tmp_path / "out"
    assert run("compile", "zoo:toy", "-o", folder, "--no-cache") == 0
    (folder / "notes.txt").write_text("mine")  # added files do not matter
    assert run("verify", folder) == 0
    data = bytearray((folder / "model.onnx").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "model.onnx").write_bytes(data)
    capsys.readouterr()
    assert run("verify", folder) == 2
    assert_one_line(capsys, "model.onnx is missing, was changed or added since")


def test_a_file_that_the_manifest_does_not_list_is_not_read(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "out"
    assert run("compile", "zoo:toy", "-o", folder, "--no-cache") == 0
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in ("model.onnx", "target.toml", "streams.json.gz"):
        files = {listed: entry for listed, entry in manifest["files"].items() if listed != name}
        (folder / "manifest.json").write_text(json.dumps({**manifest, "files": files}))
        capsys.readouterr()
        assert run("verify", folder) == 2
        assert_one_line(capsys, f"{name} is missing, was changed or added since")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("original", "../../model.onnx", "is not inside it"),
        ("original", "/etc/hostname", "is not inside it"),
        ("original", "original/link.onnx", "is not inside it"),
        ("original_sha256", "0" * 64, "not the model that was compiled"),
    ],
)
def test_a_folder_names_nothing_outside_it(name: str, value: str, words: str, tmp_path: Path, capsys: Capture) -> None:
    model, folder = tmp_path / "model.onnx", tmp_path / "out"
    assert run("zoo", "export", "toy", "-o", model) == 0
    assert run("compile", model, "-o", folder, "--no-cache") == 0
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, name: value}))
    sign(folder)
    (folder / "original" / "link.onnx").symlink_to(model)
    capsys.readouterr()
    assert run("verify", folder) == 2
    assert_one_line(capsys, words)


@pytest.mark.parametrize("name", ["plan.json", "config.json", "manifest.json"])
@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000, '{"a": ' * 50_000])
def test_unreadable_documents_are_one_line_errors(name: str, text: str, tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "out"
    assert run("compile", "zoo:toy", "-o", folder, "--policy", "gpu", "--no-cache") == 0
    (folder / name).write_text(text)
    if name != "manifest.json":
        sign(folder)
    capsys.readouterr()
    assert run("verify", folder) == 2
    assert_one_line(capsys)


PLANS: dict[str, tuple[Callable[[Any], object], str]] = {
    "no name": (lambda plan: plan["nodes"][0].pop("name"), "missing key 'name'"),
    "no share": (lambda plan: plan["nodes"][0].pop("share_us"), "missing key 'share_us'"),
    "no parts": (lambda plan: plan["nodes"][0].pop("busy_parts_us"), "missing key 'busy_parts_us'"),
    "fewer rows": (lambda plan: plan["nodes"].pop(), "'nodes' and 'plan.decisions' differ in 'linear'"),
    "another row": (lambda plan: plan["nodes"][0].update(name="x"), "'nodes' and 'plan.decisions' differ in 'conv1'"),
    "fewer decisions": (lambda plan: plan["plan"]["decisions"].clear(), "'nodes' and 'plan.decisions' differ"),
    "another host": (lambda plan: plan["plan"].update(host="x"), "'plan.host' is 'x', and the host of the machine"),
    "a time below 0": (lambda plan: plan["nodes"][0].update(time_us=-1), "'time_us' is -1"),
}


@pytest.mark.parametrize("what", PLANS)
def test_a_record_of_other_code_is_named(what: str, tmp_path: Path, capsys: Capture) -> None:
    """A folder with the same version and digests that fit, whose plan.json has other keys or other nodes."""
    change, words = PLANS[what]
    assert run("compile", "zoo:toy", "-o", tmp_path / "out", "--policy", "gpu", "-q") == 0
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    change(plan)
    (tmp_path / "out" / "plan.json").write_text(json.dumps(plan))
    sign(tmp_path / "out")
    for verb in ("verify", "report", "inspect"):
        assert run(verb, tmp_path / "out") == 2
        assert_one_line(capsys, "is damaged: plan.json: ", words, "compile the model again")


def test_a_machine_of_other_code_is_named(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "out"
    assert run("compile", "zoo:toy", "-o", folder, "--policy", "gpu", "-q") == 0
    text = (folder / "target.toml").read_text()
    (folder / "target.toml").write_text(text.replace("launch_us =", "launch_ns =", 1))
    sign(folder)
    assert run("report", folder) == 2
    assert_one_line(capsys, "is damaged: target.toml: ", "launch_ns", "compile the model again")


def damage_weights(folder: Path) -> None:
    model = onnx.load(folder / "model.onnx")
    tensor = max(model.graph.initializer, key=lambda item: len(item.raw_data))
    array = numpy_helper.to_array(tensor).copy()
    array.flat[: array.size // 2] *= 1.5
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    onnx.save(model, folder / "model.onnx")


def damage_streams(folder: Path) -> None:
    text = gzip.decompress((folder / "streams.json.gz").read_bytes()).decode()
    # The first fill of every stream of one node starts one pixel late.
    broken = text.replace(
        '"type":"GWrite","pixel":{"type":"Affine","base":0', '"type":"GWrite","pixel":{"type":"Affine","base":1'
    )
    assert broken != text
    (folder / "streams.json.gz").write_bytes(gzip.compress(broken.encode(), mtime=0))


def test_verify_fails_where_a_value_is_wrong(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "out"
    assert run("compile", "zoo:toy", "-o", folder, "--policy", "pim", "--no-cache") == 0
    damage_weights(folder)
    sign(folder)
    capsys.readouterr()
    assert run("verify", folder, "--json") == 1
    assert json.loads(capsys.readouterr().out)["passed"] is False


def test_verify_by_value_reads_the_streams_of_the_folder(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "out"
    assert run("compile", "zoo:toy", "-o", folder, "--policy", "pim", "--no-cache") == 0
    assert run("verify", folder, "--pim", "values", "--operand", "fp32") == 0
    damage_streams(folder)
    sign(folder)
    assert run("verify", folder, "--pim", "values", "--operand", "fp32") in (1, 2)
    assert run("verify", folder) == 0  # ONNX Runtime does not use the programs


def _swap(document: Any) -> None:
    document["nodes"]["conv1"]["program"], document["nodes"]["conv2"]["program"] = 1, 0


def _drop(document: Any) -> None:
    del document["nodes"]["conv2"]


def _more_channels(document: Any) -> None:
    document["programs"][0]["content"]["problem"]["out_channels"] *= 2


def _other_chunk(document: Any) -> None:
    document["programs"][0]["content"]["mapping"]["groups"][0]["shares"][0]["run"] = 9


def _no_fills(document: Any) -> None:
    document["programs"][0]["content"]["mapping"]["fills_held"] = 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_swap, "the program of 'conv1' is for another node"),
        (_drop, "'nodes' has no program for 'conv2'"),
        (_more_channels, "the program of 'conv1' is for another node"),
        (_other_chunk, "the mapping's shares name chunks that it does not have"),
        (_no_fills, "'mapping.fills_held' is 0; it must be 1 or more"),
    ],
)
def test_programs_that_do_not_fit_their_nodes_are_refused(
    change: Callable[[Any], None], message: str, pim_folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    folder = shutil.copytree(pim_folder, tmp_path / "out")
    content = json.loads(gzip.decompress((folder / "streams.json.gz").read_bytes()))
    change(content)
    (folder / "streams.json.gz").write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))
    sign(folder)
    for extra in (("verify", folder, "--pim", "values"), ("trace", folder, "conv1")):
        capsys.readouterr()
        assert run(*extra) == 2
        assert f"{folder} is damaged: streams.json.gz: " in (line := assert_one_line(capsys))
        assert message in line


@pytest.mark.parametrize("target", ["aim-gddr6", "hbm-pim"])
def test_every_machine_computes_right(tmp_path: Path, target: str) -> None:
    folder = tmp_path / "out"
    assert run("compile", "zoo:toy", "-o", folder, "--target", target, "--policy", "pim", "--no-cache") == 0
    assert run("verify", folder, "--pim", "values", "--operand", "fp32", "--rtol", "1e-5") == 0
    assert run("verify", folder, "--pim", "values", "--rtol", "1e-6") == 1  # the machine's operands are less precise
    assert run("verify", folder, "--pim", "values") == 0


@pytest.mark.parametrize("name", ["model.onnx", "plan.json", "streams.json.gz", "config.json", "target.toml"])
def test_a_damaged_output_folder_is_a_one_line_error(name: str, tmp_path: Path, capsys: Capture) -> None:
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


def test_results_are_stored_and_shown(toy_folder: Path, capsys: Capture) -> None:
    for extra in ((), ("--pim", "values", "--operand", "fp32", "--arena")):
        assert run("verify", toy_folder, *extra, "-q") == 0
    found = pimflow.load(toy_folder).checks
    assert [check.how for check in found][-1] == {"seed": 0, "programs": True, "operand": "fp32", "arena": True}
    assert all(check.passed for check in found)
    told = pimflow.load(toy_folder).summary()
    assert "what units execute by value, in fp32, inside the arena, on random inputs (seed 0)" in told


def test_compile_verifies_at_once(tmp_path: Path, capsys: Capture) -> None:
    assert run("compile", "zoo:toy", "-o", tmp_path / "out", "--policy", "pim", "--verify") == 0
    assert "passed: 1 output of " in capsys.readouterr().out
    (check,) = pimflow.load(tmp_path / "out").checks
    assert check.result["outputs"]


def test_failures_are_stored_too(tmp_path: Path) -> None:
    assert run("compile", "zoo:toy", "-o", tmp_path / "out", "--policy", "md-dp", "-q") == 0
    assert run("verify", tmp_path / "out", "--pim", "values", "--rtol", "1e-9", "-q") == 1
    (check,) = pimflow.load(tmp_path / "out").checks
    assert not check.passed
    assert "1 of 1 output off" in check.told
    assert "failed" in pimflow.html_report(tmp_path / "out", what_if=0).html


def test_a_changed_verdict_counts_as_damage(tmp_path: Path, capsys: Capture) -> None:
    assert run("compile", "zoo:toy", "-o", tmp_path / "out", "--policy", "gpu", "--verify", "-q") == 0
    path = tmp_path / "out" / "verification.json"
    path.write_text(path.read_text().replace("true", "false", 1))
    assert run("verify", tmp_path / "out") == 2
    assert_one_line(capsys, "verification.json: it was changed since it was written")


def test_an_unwritable_folder_can_be_verified(
    toy_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def refused(*_arguments: object) -> None:
        raise OutputError("cannot write out: no", "check")

    monkeypatch.setattr("pimflow.compiled.model.store_check", refused)
    assert run("verify", toy_folder, "-q") == 0
    assert capsys.readouterr().err == "pimflow: warning: the result cannot be stored: cannot write out: no; check\n"
