"""`pimflow compile` as a user runs it: output folders, JSON, bad input."""

from __future__ import annotations

import errno
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import pimflow
from pimflow.version import __version__
from support.cli import Capture, assert_one_line, document, run


@pytest.fixture(scope="module")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy") / "out"
    assert run("compile", "zoo:toy", "-o", folder, "--policy", "md-dp", "--no-cache") == 0
    return folder


def test_compile_prints_a_table_and_a_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("compile", "zoo:toy", "--policy", "MD-DP") == 0
    out = capsys.readouterr().out
    assert re.search(r"region +node +op +runs on +PIM share +GPU us +PIM us +time us", out)
    assert re.search(r"depthwise +Conv +GPU", out)
    assert re.search(r"speedup +[0-9.]+x end to end", out)
    assert (tmp_path / "toy.pimflow" / "model.onnx").is_file()


@pytest.mark.parametrize(("by", "part"), [("energy", "GPU +busy"), ("time", "PIM +fill")])
def test_by_shows_the_breakdown_instead_of_the_nodes(tmp_path: Path, capsys: Capture, by: str, part: str) -> None:
    assert run("compile", "zoo:toy", "-o", tmp_path / "out", "--policy", "pim", "--by", by) == 0
    out = capsys.readouterr().out
    assert re.search(rf"{part} +[0-9.]+ +[0-9.]+ %", out)
    assert re.search(r"op +nodes +(mJ|us) +%", out)
    assert re.search(r"speedup +[0-9.]+x end to end", out)
    assert "why" not in out
    assert "region" not in out


def test_by_is_for_the_tables(tmp_path: Path, capsys: Capture) -> None:
    assert run("compile", "zoo:toy", "-o", tmp_path / "out", "--by", "time", "--json") == 2
    assert_one_line(capsys, "--json has all parts")
    assert run("compile", "zoo:toy", "-o", tmp_path / "out", "--by", "power") == 2
    assert_one_line(capsys, "unknown --by 'power'", "energy, time")
    assert not (tmp_path / "out").exists()


def test_verbose_lists_what_the_passes_left_and_why(tmp_path: Path, capsys: Capture) -> None:
    model = Path(__file__).parents[2] / "data" / "exported" / "densenet.onnx"
    note = "fold-batch-norm: /layers.1/layers.1.0/layers.1.0.0/BatchNormalization: /Concat_1 cannot absorb it"
    arguments = ("compile", model, "-o", tmp_path / "out", "--policy", "gpu", "--no-cache")
    assert run(*arguments) == 0
    assert note not in capsys.readouterr().out
    assert run(*arguments, "-v") == 0
    assert "\nleft by the passes\nfold-batch-norm: " in (out := capsys.readouterr().out)
    assert f"\n{note}\n" in out


def test_a_search_ended_by_its_time_budget_is_reported(tmp_path: Path, capsys: Capture) -> None:
    arguments = ("compile", "zoo:toy", "-o", tmp_path / "out", "--no-cache")
    ended = "ended by the time budget"
    assert run(*arguments) == 0
    assert ended not in capsys.readouterr().out
    assert run(*arguments, "--time-budget", "0") == 0
    assert ended in capsys.readouterr().out
    assert document(capsys, *arguments, "--time-budget", "0")["search"]["complete"] is False


def test_json_is_one_document_with_the_promised_keys(tmp_path: Path, capsys: Capture) -> None:
    plan = document(capsys, "compile", "zoo:toy", "-o", tmp_path / "out", "--policy", "mddp", "--no-cache")
    keys = {"pimflow", "model", "target", "policy", "baseline", "result", "nodes", "search", "output_dir"}
    assert keys <= plan.keys()
    assert plan["policy"] == "md-dp"
    assert {"time_us", "energy_mj"} <= plan["baseline"].keys()
    assert {"time_us", "energy_mj", "speedup", "conv_speedup"} <= plan["result"].keys()
    assert {"candidates", "complete", "seconds"} <= plan["search"].keys()
    assert plan["search"]["complete"] is True
    node_keys = {"name", "op", "mode", "pim_fraction", "gpu_us", "pim_us", "pim_cycles", "time_us", "commands", "why"}
    for node in plan["nodes"]:
        assert node_keys <= node.keys()
        assert node["mode"] in {"gpu", "pim", "md-dp", "pipeline"}
        assert 0 <= node["pim_fraction"] <= 1
        assert set(node["commands"]) == {"GWRITE", "G_ACT", "COMP", "READRES"}
        on_pim = node["pim_fraction"] > 0
        assert (node["pim_cycles"] > 0) == on_pim == (node["commands"]["COMP"] > 0)
    assert any(node["pim_fraction"] > 0 for node in plan["nodes"])
    assert plan["result"]["time_us"] < plan["baseline"]["time_us"]


def test_the_plan_and_the_timeline_agree(tmp_path: Path, capsys: Capture) -> None:
    printed = document(capsys, "compile", "zoo:toy", "-o", tmp_path / "out", "--no-cache")
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert plan["plan"]["predicted_us"] == pytest.approx(printed["result"]["time_us"], rel=1e-9)
    events = json.loads((tmp_path / "out" / "timeline.json").read_text())["traceEvents"]
    end = max(event["ts"] + event["dur"] for event in events if event["ph"] == "X")
    assert end == pytest.approx(printed["result"]["time_us"], abs=1e-2)


def test_the_output_folder_is_complete_and_runs(toy_folder: Path) -> None:
    names = {path.name for path in toy_folder.iterdir()}
    assert {"model.onnx", "plan.json", "memory.json", "timeline.json", "streams.json.gz"} <= names
    assert {"config.json", "target.toml", "manifest.json"} <= names
    model = onnx.load(toy_folder / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    devices = {
        entry.value for node in model.graph.node for entry in node.metadata_props if entry.key == "pimflow.device"
    }
    assert devices == {"gpu", "pim"}
    session = ort.InferenceSession(str(toy_folder / "model.onnx"), providers=["CPUExecutionProvider"])
    shape = session.get_inputs()[0].shape
    first, second = (
        session.run(
            None, {session.get_inputs()[0].name: np.random.default_rng(seed).standard_normal(shape, np.float32)}
        )[0]
        for seed in (0, 1)
    )
    assert np.std(first) > 0.1
    assert np.abs(first - second).max() > 0.1
    config = json.loads((toy_folder / "config.json").read_text())
    assert config["seed"] == 0
    assert config["versions"]["onnxruntime"] == ort.__version__


KNOBS = ("--pim-channels", 8, "--timing", "artifact", "--set", "pim.banks=32")


def test_the_target_is_named_everywhere(tmp_path: Path, capsys: Capture) -> None:
    """The printed and written output of two machines cannot be confused."""
    out, model = tmp_path / "out", tmp_path / "a b.onnx"
    assert run("zoo", "export", "toy", "-o", model) == 0
    told = document(capsys, "compile", model, "-o", out, "--no-cache", *KNOBS)
    command = f"pimflow compile '{model}' --no-cache --pim-channels 8 --timing artifact --set pim.banks=32"
    assert told["command"] == f"{command} --json"
    assert told["model_sha256"] == hashlib.sha256(model.read_bytes()).hexdigest()
    machine = told["machine"]
    assert machine["sha256"] == hashlib.sha256((out / "target.toml").read_bytes()).hexdigest()
    assert [(change["key"], change["before"], change["after"]) for change in machine["overrides"]] == [
        ("pim.channels", 16, 8),
        ("pim.banks", 16, 32),
        ("pim.timing.default", "strict", "artifact"),
    ]
    assert machine["settings"]["pim"]["timing"] == "artifact"
    assert machine["settings"]["pim"]["buffers"] == 4
    config, plan = (json.loads((out / f"{name}.json").read_text()) for name in ("config", "plan"))
    assert config["machine"] == plan["machine"] == machine
    assert (config["command"], config["original_sha256"]) == (told["command"], told["model_sha256"])
    for text in (json.dumps(told), (out / "target.toml").read_text(), (out / "config.json").read_text()):
        assert "16 of them" not in text
    assert run("compile", model, "-o", out, "--no-cache", *KNOBS) == 0
    summary = capsys.readouterr().out
    assert re.search(
        r"machine +pimflow, but pim.channels = 8 \(not 16\), pim.banks = 32 \(not 16\), pim.timing.default = artifact",
        summary,
    )
    assert re.search(r"settings .*PIM: timing artifact, channels 8, buffers 4", summary)
    assert f"digests   model {told['model_sha256'][:12]}, target {machine['sha256'][:12]}" in summary
    assert f"pimflow {__version__}: {command}" in summary


def test_an_output_folder_identifies_its_target(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("compile", "zoo:toy", "-o", out, "--no-cache", "--policy", "md-dp", *KNOBS) == 0
    loaded = pimflow.load(out)
    assert [change.key for change in loaded.machine.target.overrides] == [
        "pim.channels",
        "pim.banks",
        "pim.timing.default",
    ]
    again = loaded.save(tmp_path / "again")
    for name in ("config.json", "target.toml", "plan.json"):
        assert (again / name).read_bytes() == (out / name).read_bytes(), name


def test_the_same_input_gives_the_same_bytes(tmp_path: Path, capsys: Capture) -> None:
    for name in ("a", "b"):
        assert run("compile", "zoo:toy", "-o", tmp_path / name, "--no-cache", "--policy", "pimflow") == 0
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_debugging_options_print_and_disable(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    options = ("--disable-pass", "fold-batch-norm", "--print-pass-times", "--print-ir-before", "fold-constants")
    assert run("compile", "zoo:mobilenet-v2", "-o", out, "--policy", "gpu", "--json", *options) == 0
    captured = capsys.readouterr()
    assert any(node["op"] == "BatchNormalization" for node in json.loads(captured.out)["nodes"])
    assert "fuse-epilogues" in captured.err
    assert "before fold-constants" in captured.err


def truncated(path: Path) -> None:
    data = onnx.load(Path(onnx.__file__).parent / "backend/test/data/light/light_squeezenet.onnx").SerializeToString()
    path.write_bytes(data[: len(data) // 2])


def not_onnx(path: Path) -> None:
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def external(path: Path, location: str) -> None:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4, 4], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value=location)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [weight],
    )
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )


def missing_external_data(path: Path) -> None:
    external(path, "nowhere.bin")


def outside_external_data(path: Path) -> None:
    (path.parent.parent / "secret.bin").write_bytes(b"\0" * 64)
    external(path, "../secret.bin")


def absolute_external_data(path: Path) -> None:
    (path.parent.parent / "secret.bin").write_bytes(b"\0" * 64)
    external(path, str(path.parent.parent / "secret.bin"))


def unbound(path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, "H", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )


BAD_FILES = {
    "truncated": (truncated, "truncated"),
    "not-onnx": (not_onnx, "not an ONNX model"),
    "empty": (empty, "empty"),
    "missing-external": (missing_external_data, "nowhere.bin"),
    "outside-external": (outside_external_data, "not a file inside"),
    "absolute-external": (absolute_external_data, "not a file inside"),
    "unbound": (unbound, "--shape.*N.*H|N.*H.*--shape"),
}


BAD_OPTIONS = {
    "target": ("--target", "no-such-machine"),
    "target-file": ("--target", "nowhere.toml"),
    "policy": ("--policy", "fastest"),
    "timing": ("--timing", "exact"),
    "shape-form": ("--shape", "1x3"),
    "shape-name": ("--shape", "picture:1x3x16x16"),
    "shape-size": ("--shape", "input:1x3x17x16"),
    "grid": ("--grid", "0"),
    "stages": ("--stages", "1"),
    "pass": ("--disable-pass", "fold-everything"),
    "flag": ("--polcy", "gpu"),
    "buffers": ("--buffers", "1000"),
    "profile": ("--profile", "nowhere.csv"),
    "budget": ("--time-budget", "-1"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_give_a_one_line_error_and_leave_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    make, pattern = BAD_FILES[name]
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    make(folder / "model.onnx")
    before = sorted(folder.iterdir())
    for verb in ("compile", "inspect"):
        assert run(verb, "model.onnx") == 2
        assert re.search(pattern, assert_one_line(capsys))
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_bad_options_give_a_one_line_error_and_leave_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("compile", "zoo:toy", *BAD_OPTIONS[name]) == 2
    assert_one_line(capsys)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_a_one_line_error_that_names_the_folder(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Iterator[bytes]:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pimflow.onnxio.save.serialised", full)
    assert run("compile", "zoo:toy", "-o", tmp_path / "out", "--policy", "gpu", "--no-cache") == 2
    assert_one_line(capsys, f"cannot write {tmp_path / 'out'}: No space left on device; check space and permissions")
    assert not list(tmp_path.iterdir())


def test_a_model_that_returns_its_input_compiles(tmp_path: Path, capsys: Capture) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 64])
    model = helper.make_model(
        helper.make_graph([], "none", [x], [x]), ir_version=8, opset_imports=[helper.make_opsetid("", 17)]
    )
    onnx.save(model, tmp_path / "none.onnx")
    folder = tmp_path / "out"
    assert run("compile", tmp_path / "none.onnx", "-o", folder, "--no-cache", "-q") == 0
    assert run("verify", folder, "--arena") == 0
    assert run("report", folder, "-o", tmp_path / "page.html") == 0
    assert run("report", folder, folder, "-o", tmp_path / "both.html") == 0
    assert "as fast" in (tmp_path / "both.html").read_text(encoding="utf-8")
    assert json.loads((folder / "memory.json").read_text())["arena_bytes"] >= 4 * 64 * 4


def test_a_users_files_are_not_touched(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    assert run("compile", "zoo:toy", "-o", folder) == 2
    assert_one_line(capsys, "mine")
    assert (folder / "thesis.txt").read_text() == "years of work"
    target = tmp_path / "model.onnx"
    target.write_text("mine too")
    assert run("zoo", "export", "toy", "-o", target) == 2
    assert target.read_text() == "mine too"


def test_an_unchanged_output_is_replaced_and_a_changed_one_is_not(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "out"
    for policy in ("gpu", "pim"):
        assert run("compile", "zoo:toy", "-o", folder, "--policy", policy, "--no-cache") == 0
    assert json.loads((folder / "plan.json").read_text())["policy"] == "pim"
    (folder / "notes.txt").write_text("mine")
    assert run("compile", "zoo:toy", "-o", folder, "--policy", "gpu") == 2
    assert "notes.txt" in capsys.readouterr().err
    assert (folder / "notes.txt").read_text() == "mine"
    assert json.loads((folder / "plan.json").read_text())["policy"] == "pim"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
