"""`pimflow simulate`: the published figures, and files that are not traces."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from support.cli import Capture, assert_one_line, document, run
from support.newton.published_traces import EXPECTED, FOLDER


@pytest.mark.parametrize("latency", ["hidden", "exposed"])
def test_simulate_matches_the_published_simulator(capsys: Capture, latency: str) -> None:
    files = sorted(FOLDER.rglob("*.pim.gz"))[:6]
    results = document(capsys, "simulate", *files, "--timing", "artifact", "--gwrite-latency", latency)["traces"]
    assert [item["file"] for item in results] == [str(file) for file in files]
    for file, item in zip(files, results, strict=True):
        wanted = EXPECTED[file.name.removesuffix(".pim.gz")][f"gwrite_{latency}"]
        assert item["cycles"] == wanted["cycles"]
        for name in ("GWRITE", "G_ACT", "COMP", "READRES", "PREA", "REF"):
            assert item["commands"][name] == wanted[name.lower()]
        for name in ("COMP", "GWRITE", "READRES", "PRE"):
            assert f"{item['energy_parts_mj'][name] * 1e-3:.6g}" == f"{wanted['energy_j'][name]:.6g}"
        assert f"{item['energy_mj'] * 1e-3:.6g}" == f"{wanted['energy_j']['Total']:.6g}"


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
