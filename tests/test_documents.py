"""Every JSON document that a verb prints or writes states its format and matches its schema in docs/schemas."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from pimflow.cli import verbs
from pimflow.compiled import FORMAT
from pimflow.version import FORMATS, format_of
from support.cli import Capture, document, run
from support.schemas import COMMON, check, schemas
from support.upmem.graphs import uniform

CASES: Mapping[str, tuple[str, ...]] = {
    "cache info": (),
    "calibrate": ("--from", "{table}", "--folds", "2"),
    "compare": ("zoo:toy",),
    "compile": ("zoo:toy", "-o", "{tmp}/again"),
    "diff": ("{folder}", "{folder}"),
    "explain": ("{folder}", "conv2"),
    "front": ("zoo:toy",),
    "gnn-epoch": ("{graph}", "--features", "20", "--batch", "50"),
    "inspect": ("zoo:toy",),
    "layer": ("--matmul", "m=1,k=1280,n=1000"),
    "opt": ("--list",),
    "simulate": ("{trace}",),
    "sweep": ("{sweep}", "-o", "{tmp}/runs", "-j", "1"),
    "targets list": (),
    "train": ("zoo:toy", "--target", "a100-ssd"),
    "tune-graph": ("{graph}", "--features", "64", "--baselines", "--backward"),
    "verify": ("{folder}",),
    "zoo list": (),
}
KINDS = {"cache info": "cache", "opt": "passes", "targets list": "targets", "zoo list": "zoo"}
FOLDER_KINDS = {"manifest": "output"}


@pytest.fixture(scope="module", params=["artifact", "strict"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documents") / "out"
    policy = {"artifact": "pim", "strict": "auto"}[request.param]
    assert run("compile", "zoo:toy", "-o", folder, "--policy", policy, "--timing", request.param, "--no-cache") == 0
    return folder


def test_no_verb_is_left_out() -> None:
    files = {
        path.stem.replace("_", "-"): path.read_text().count("add_json(")
        for path in Path(verbs.__file__).parent.glob("*.py")
    }
    assert {verb: count for verb, count in files.items() if count} == Counter(verb.split()[0] for verb in CASES)


@pytest.fixture
def places(folder: Path, tmp_path: Path, capsys: Capture) -> dict[str, Path]:
    """The values of placeholders in the verbs' arguments."""
    table, trace = folder.with_name("toy.csv"), tmp_path / "conv2.pim"
    if not table.exists():
        assert run("profile", "zoo:toy", "--runs", 1, "--warmup", 0, "-o", table) == 0
    capsys.readouterr()
    assert run("trace", folder, "conv2") == 0
    trace.write_text(capsys.readouterr().out)
    graph = tmp_path / "graph.npz"
    np.savez(graph, edge_index=uniform(300, 2000).edge_index(), num_nodes=300)
    sweep = tmp_path / "sweep.toml"
    sweep.write_text('models = ["zoo:toy", "zoo:gcn"]\npolicies = ["md-dp"]\n[grid]\npim.channels = [8, 16, 40]\n')
    return {"table": table, "tmp": tmp_path, "trace": trace, "folder": folder, "graph": graph, "sweep": sweep}


def document_of(verb: str, places: Mapping[str, Path], capsys: Capture) -> dict[str, Any]:
    arguments = (argument.format(**places) for argument in CASES[verb])
    found: dict[str, Any] = document(capsys, *verb.split(), *arguments)
    return found


@pytest.mark.parametrize("verb", CASES)
def test_a_verbs_document_matches_its_schema(verb: str, places: Mapping[str, Path], capsys: Capture) -> None:
    found = document_of(verb, places, capsys)
    kind = KINDS.get(verb, verb)
    assert found["format"] == format_of(kind)
    assert next(iter(found)) == "format"
    check(found, kind)


def json_files(folder: Path) -> dict[str, Any]:
    """The JSON documents of an output folder, by kind."""
    found = {path.name.partition(".")[0]: json.loads(path.read_text()) for path in folder.glob("*.json")}
    for path in folder.glob("*.json.gz"):
        found[path.name.partition(".")[0]] = json.loads(gzip.decompress(path.read_bytes()))
    return {FOLDER_KINDS.get(name, name): content for name, content in found.items()}


def test_every_file_of_an_output_folder_matches_its_schema(folder: Path) -> None:
    assert run("verify", folder) == 0
    files = json_files(folder)
    assert set(files) == {"config", "memory", "output", "plan", "streams", "timeline", "verification"}
    for kind, content in files.items():
        check(content, kind)
        form = content["otherData"]["format"] if kind == "timeline" else content["format"]
        assert form == (FORMAT if kind in ("config", "streams") else format_of(kind))


def test_schemas_and_formats_are_of_the_same_documents() -> None:
    assert set(schemas()) == {*FORMATS, "config", "streams", COMMON}
    for kind, schema in schemas().items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["$id"] == f"{kind}.schema.json"
        assert kind == COMMON or schema["title"]


def changed(value: Any) -> Iterator[Any]:
    """The document with an additional key, and with a missing one."""
    yield {**value, "surprise": 1}
    yield {key: inner for key, inner in value.items() if key != "nodes"}
    node = value["nodes"][0]
    yield {**value, "nodes": [{**node, "energy_mj": "1"}]}
    yield {**value, "nodes": [{**node, "energy_parts_mj": {"gpu": 1.0}}]}
    yield {**value, "nodes": [{**node, "energy_pj": 1.0}]}
    yield {**value, "format": "pimflow-compile/0"}


def test_a_schema_refuses_wrong_documents(tmp_path: Path, capsys: Capture) -> None:
    right = document(capsys, "compile", "zoo:toy", "-o", tmp_path / "out", "--policy", "gpu")
    for wrong in changed(right):
        with pytest.raises(AssertionError):
            check(wrong, "compile")


def quantities(value: Any, path: str = "") -> Iterator[str]:
    """The path of every number in a document."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from quantities(inner, f"{path}/{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from quantities(inner, path)
    elif isinstance(value, float):
        yield path


@pytest.mark.parametrize("verb", ["compile", "compare", "inspect", "layer", "simulate"])
def test_times_are_in_us_and_energies_in_mj(verb: str, places: Mapping[str, Path], capsys: Capture) -> None:
    """One unit per quantity across all verbs: the key of every time or energy names that unit, and no other."""
    paths = sorted(set(quantities(document_of(verb, places, capsys))))
    assert not [path for path in paths if re.search(r"_(ns|ms|s|pj|nj|uj|j)(/|$)", path)]
    named = [path for path in paths if re.search(r"time|energy(?!_change)", path)]
    assert any("_us" in path for path in paths)
    assert [path for path in named if "_us" not in path and "_mj" not in path] == []
