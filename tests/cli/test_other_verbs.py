"""simulate, layer, compare, inspect, zoo, targets, cache, profile and calibrate as a user runs them."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from pimflow.targets import target_text
from support.cli import Capture, assert_one_line, document, run
from support.newton.golden_traces import EXPECTED, FOLDER


@pytest.mark.parametrize("latency", ["hidden", "exposed"])
def test_simulate_gives_what_the_published_simulator_gives(capsys: Capture, latency: str) -> None:
    files = sorted(FOLDER.rglob("*.pim.gz"))[:6]
    results = document(capsys, "simulate", *files, "--timing", "artifact", "--gwrite-latency", latency)
    assert [item["file"] for item in results] == [str(file) for file in files]
    for file, item in zip(files, results, strict=True):
        wanted = EXPECTED[file.name.removesuffix(".pim.gz")][f"gwrite_{latency}"]
        assert item["cycles"] == wanted["cycles"]
        for name in ("GWRITE", "G_ACT", "COMP", "READRES", "PREA", "REF"):
            assert item["commands"][name] == wanted[name.lower()]
        for name in ("COMP", "GWRITE", "READRES", "PRE"):
            assert f"{item['energy_j'][name]:.6g}" == f"{wanted['energy_j'][name]:.6g}"
        assert f"{item['energy_j']['total']:.6g}" == f"{wanted['energy_j']['Total']:.6g}"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (b"0x00000000 G_ACT0\n0x0000000z COMP\n", "2"),
        (b"0x00000000 FROBNICATE\n", "1"),
        (b"COMP\n", "1"),
        (b"\xff\xfe\x00\x01", "1"),
    ],
)
def test_simulate_names_the_place_of_a_malformed_line(tmp_path: Path, capsys: Capture, text: bytes, place: str) -> None:
    path = tmp_path / "bad.pim"
    path.write_bytes(text)
    assert run("simulate", path) == 2
    error = assert_one_line(capsys, str(path))
    assert place in error.split(str(path))[1]


def test_simulate_refuses_a_truncated_gzip(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "cut.pim.gz"
    path.write_bytes(gzip.compress(b"0x00000000 G_ACT0\n" * 5000)[:-20])
    assert run("simulate", path) == 2
    assert_one_line(capsys)


def test_layer_has_the_promised_keys(capsys: Capture) -> None:
    item = document(capsys, "layer", "--conv", "ic=16,oc=96,h=28,w=28,k=1,s=1,p=0")
    assert {"mapping", "pim_cycles", "commands", "utilisation", "energy_pj", "channels"} <= item.keys()
    assert len(item["channels"]) == 16
    assert item["pim_cycles"] == max(channel["cycles"] for channel in item["channels"])
    for name, count in item["commands"].items():
        assert count == sum(channel["commands"][name] for channel in item["channels"])
    assert item["commands"]["COMP"] >= 28 * 28 * 6
    assert 0 < item["utilisation"] <= 1
    assert item["energy_pj"] > 0


def test_layer_knobs_matter(capsys: Capture) -> None:
    layer = ("layer", "--conv", "ic=64,oc=64,h=28,w=28,k=3,p=1/1/1/1")
    cycles = {
        options: document(capsys, *layer, *options)["pim_cycles"]
        for options in (
            (),
            ("--mapping", "newton++"),
            ("--mapping", "newton+"),
            ("--mapping", "newton++", "--buffers", "1"),
            ("--timing", "strict"),
            ("--buffers-per-channel", "2"),
        )
    }
    assert len(set(cycles.values())) == len(cycles)
    assert cycles[()] < cycles["--mapping", "newton++"] < cycles["--mapping", "newton+"]
    assert cycles["--buffers-per-channel", "2"] < cycles[()]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--conv", "ic=16"),
        ("--conv", "ic=16,oc=4,h=5,w=5,k=1,q=3"),
        ("--conv", "ic=16,oc=4,h=5,w=5,k=zero"),
        ("--conv", "ic=16,oc=4,h=5,w=5,k=9"),
        ("--conv", "ic=15,oc=4,h=5,w=5,k=1,g=2"),
        ("--matmul", "m=1,k=0,n=4"),
        ("--matmul", "m=1,k=4,n=4", "--mapping", "newton+++"),
        (),
    ],
)
def test_layer_refuses_what_makes_no_sense_in_one_line(capsys: Capture, arguments: tuple[str, ...]) -> None:
    assert run("layer", *arguments) == 2
    assert_one_line(capsys)


def test_compare_lists_policies_side_by_side(capsys: Capture) -> None:
    results = document(capsys, "compare", "zoo:toy", "--policies", "gpu,newton++,md-dp,auto")
    assert [item["policy"] for item in results] == ["gpu", "newton++", "md-dp", "auto"]
    times = [item["time_us"] for item in results]
    assert times == sorted(times, reverse=True)
    assert times[-1] < times[0]
    assert run("compare", "zoo:toy", "--policies", "gpu,auto") == 0
    assert "speedup" in capsys.readouterr().out


def test_inspect_says_why_not(capsys: Capture) -> None:
    report = document(capsys, "inspect", "zoo:toy")
    nodes = {node["name"]: node for node in report["nodes"]}
    assert nodes["conv1"]["can_pim"]
    assert not nodes["depthwise"]["can_pim"]
    assert "depthwise" in nodes["depthwise"]["reason"]
    assert run("inspect", "zoo:toy", "--text") == 0
    assert "conv1" in capsys.readouterr().out


def test_zoo_export_writes_a_model_that_runs(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "toy.onnx"
    assert run("zoo", "export", "toy", "-o", path) == 0
    onnx.checker.check_model(str(path))
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    image = np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype(np.float32)
    assert np.std(session.run(None, {"input": image})[0]) > 0.3
    names = [item["name"] for item in document(capsys, "zoo", "list")]
    assert {"toy", "mobilenet-v2", "efficientnet-b0", "mnasnet-1.0", "resnet-50", "vgg-16"} <= set(names)


def test_targets_are_listed_and_shown(capsys: Capture, tmp_path: Path) -> None:
    names = [item["name"] for item in document(capsys, "targets", "list")]
    assert "pimflow" in names
    assert len(names) >= 3
    for name in names:
        capsys.readouterr()
        assert run("targets", "show", name) == 0
        path = tmp_path / f"{name}.toml"
        path.write_text(capsys.readouterr().out)
        assert run("layer", "--matmul", "m=1,k=64,n=64", "--target", path) == 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sms = 30", "smss = 30"),
        ("sms = 30", "sms = -3"),
        ("sms = 30", 'sms = "thirty"'),
        ("sms = 30", ""),
        ("[gpu]", "[gpu"),
        ("banks = 16", "banks = 15"),
    ],
)
def test_a_bad_target_file_is_one_line_that_names_the_key(capsys: Capture, tmp_path: Path, old: str, new: str) -> None:
    text = target_text("pimflow")
    assert old in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new, 1))
    assert run("layer", "--matmul", "m=1,k=64,n=64", "--target", path) == 2
    assert_one_line(capsys, "mine.toml")


def test_the_cache_is_found_and_cleared(capsys: Capture, tmp_path: Path) -> None:
    assert run("compile", "zoo:toy", "-o", tmp_path / "out") == 0
    assert document(capsys, "cache", "info")["records"] > 0
    assert run("cache", "clear") == 0
    assert document(capsys, "cache", "info")["records"] == 0


def test_profile_and_calibrate(capsys: Capture, tmp_path: Path) -> None:
    table, target = tmp_path / "toy.csv", tmp_path / "mine.toml"
    assert run("profile", "zoo:toy", "--runs", 2, "--warmup", 1, "-o", table) == 0
    assert run("profile", "zoo:toy", "--runs", 2, "-o", table) == 2  # it exists
    assert document(capsys, "calibrate", "--from", table, "--folds", 2, "-o", target)
    assert run("compile", "zoo:toy", "-o", tmp_path / "out", "--target", target, "--profile", table) == 0
    table.write_text(table.read_text().replace("Conv", "Conv,", 1))
    assert run("calibrate", "--from", table) == 2
    assert "line 2" in capsys.readouterr().err
