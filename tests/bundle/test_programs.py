"""Programs in a file: each distinct one once, the same bytes however they were made, and read back for each node."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pimflow.bundle.programs import ProgramTable, read_programs
from pimflow.codegen.newton import PimProgram
from pimflow.codegen.work import ConvProblem
from pimflow.errors import DataError
from pimflow.runtime.newton.backend import NewtonBackend
from pimflow.targets import load_target

PIM = load_target("pimflow").pim
LAYERS = (ConvProblem(1, 16, 32, 7, 7, (1, 1)), ConvProblem(1, 32, 16, 7, 7, (1, 1)))
DEVICES = {f"conv{index}": "pim" for index in range(6)}


def programs(backend: NewtonBackend) -> dict[str, PimProgram]:
    """Two layers in alternation, each occurrence with its own weights."""
    made = {}
    for index, name in enumerate(DEVICES):
        program = backend.program(LAYERS[index % 2], "newton++")
        assert isinstance(program, PimProgram)
        made[name] = program.at(8 * index)
    return made


def written(found: Mapping[str, PimProgram], backend: NewtonBackend) -> bytes:
    return ProgramTable(found, DEVICES, {"pim": backend}).packed("form/1")


def test_distinct_programs_are_written_once_and_read_back_in_their_places(tmp_path: Path) -> None:
    backend = NewtonBackend("pim", PIM)
    found, path = programs(backend), tmp_path / "streams.json.gz"
    path.write_bytes(written(found, backend))
    document = json.loads(gzip.decompress(path.read_bytes()))
    assert len(document["programs"]) == 2
    assert document["nodes"]["conv5"] == {"program": 1, "first": 40}
    read = read_programs(path, DEVICES, {"pim": backend})
    assert list(read) == list(found)
    for name, program in found.items():
        assert (read[name].streams, read[name].first_row) == (program.streams, program.first_row)
    assert read["conv1"].streams is read["conv5"].streams
    assert written(read, backend) == path.read_bytes()


def test_the_bytes_do_not_depend_on_which_programs_were_made_together() -> None:
    backend = NewtonBackend("pim", PIM)
    found = programs(backend)
    apart = {**found, "conv4": programs(NewtonBackend("pim", PIM))["conv4"]}
    assert written(apart, backend) == written(found, backend)
    changed = {**found, "conv4": found["conv4"].with_streams(found["conv4"].streams[::-1])}
    assert written(changed, backend) != written(found, backend)
    assert ProgramTable(changed, DEVICES, {"pim": backend}).content_key == ""


def test_made_of_covers_everything_that_the_file_depends_on() -> None:
    backend = NewtonBackend("pim", PIM)
    found = programs(backend)
    others = (
        {**found, "conv4": found["conv4"].at(7)},
        {**found, "conv4": found["conv1"].at(32)},
        {**found, "conv4": found["conv4"].at(32)},
        {**found, "conv4": replace(found["conv4"], problem=replace(LAYERS[0], in_h=8))},
    )
    told = [ProgramTable(other, DEVICES, {"pim": backend}).content_key for other in (found, *others)]
    assert len(set(told)) == 4
    assert told[0] == told[3]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nodes": {"conv9": {"program": 0, "first": 0}}}, "'conv9' is not a node that runs on a unit"),
        ({"nodes": {"conv0": {"program": 2, "first": 0}}}, "executes program 2, and there are 2"),
        ({"nodes": {"conv0": {"program": -1, "first": 0}}}, "executes program -1"),
        ({"nodes": {"conv0": {"program": 0, "first": -1}}}, "nodes.conv0.first"),
        ({"nodes": {"other": {"program": 0, "first": 0}}}, "program 0 is of pim"),
        ({"programs": [{"device": "gpu", "content": {}}]}, "no unit 'gpu'"),
        ({"programs": {}}, "'programs' is {}"),
    ],
)
def test_content_that_does_not_match_the_model_is_named(change: Mapping[str, Any], words: str, tmp_path: Path) -> None:
    backend = NewtonBackend("pim", PIM)
    document = json.loads(gzip.decompress(written(programs(backend), backend)))
    path = tmp_path / "streams.json.gz"
    path.write_bytes(gzip.compress(json.dumps({**document, **change}).encode()))
    units = {"pim": backend, "second": NewtonBackend("second", PIM)}
    with pytest.raises(DataError, match=re.escape(words)):
        read_programs(path, {**DEVICES, "other": "second"}, units)
