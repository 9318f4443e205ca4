"""Writes a compiled model to a folder."""

from __future__ import annotations

import platform
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from pimflow.bundle.files import path_argument, sha256_of, write_json, write_line, write_records
from pimflow.bundle.folder import new_output
from pimflow.bundle.graphs import write_graph
from pimflow.bundle.original import copy_model
from pimflow.bundle.programs import ProgramTable
from pimflow.bundle.source import ModelSource, onnx_bytes
from pimflow.compiled.data_digest import data_digest
from pimflow.compiled.original import inputs_bound
from pimflow.compiled.result import CompiledResult
from pimflow.compiled.stamp_cache import StampCache
from pimflow.data import encode
from pimflow.errors import ModelError
from pimflow.ir import Graph
from pimflow.onnxio import save_onnx
from pimflow.onnxio.export import SplitModel
from pimflow.onnxio.runtime import runtime_version
from pimflow.onnxio.save import DATA_SUFFIX, Stored
from pimflow.records import dataclass
from pimflow.runtime.execute.background import in_background
from pimflow.search.progress import Tell, silent
from pimflow.search.run_cache import RunCache
from pimflow.search.solver import cache_of, run_cache, stream_cache
from pimflow.targets import TargetRecord, to_toml
from pimflow.verify.running import check_compiled, check_original
from pimflow.version import __version__, format_of

FORMAT = "pimflow/7"
ORIGINAL = "original"
PROGRAM = "model.onnx"
SPARSE_PROGRAM = "model.pimir"
GRAPH = "graph.npz"
WRITTEN = frozenset(
    {PROGRAM, SPARSE_PROGRAM, GRAPH}
    | {"config.json", "memory.json", "plan.json", "streams.json.gz", "target.toml", "timeline.json"}
)
"""The files of `save` apart from the original, whose digest is part of config.json."""


def save(model: CompiledResult, folder: str | Path, progress: Tell = silent) -> Path:
    """Writes a compiled model to a folder, whole or not at all.

    Args:
        model: the compiled model.
        folder: the output folder.
        progress: receives a line of text for every file.

    Raises:
        OutputError: the folder cannot be written, or holds something other than an unchanged output of pimflow.
        ModelError: the rewritten model does not run; or the original is gone, or was changed since it was compiled.
    """
    folder = path_argument(folder, "folder")
    digests: dict[str, str] = {}
    stamps = StampCache(cache_of(model.options))
    with new_output(folder, digests, stamps.seen) as scratch:
        progress(f"writing {PROGRAM}")
        stored = _save_program(model, scratch)
        with in_background(partial(_check, model, scratch / PROGRAM, stored, digests), model.options.jobs):
            _save_records(model, scratch, digests, progress)
            progress("checking what was written")
    stamps.seen.update(model.source.stamps)
    stamps.save()
    return folder


def _save_program(model: CompiledResult, folder: Path) -> tuple[Stored, ...]:
    """Writes the rewritten graph as ONNX and returns the tensors in the file of weights next to it. ONNX has sparse ops
    only as patterns, so a graph with these is also written as text, for `load`; as ONNX only if the patterns fit."""
    graph = model.graph
    if model.spill is not None:
        from pimflow.report.spill import marked

        graph = marked(graph, model.spill)
    if model.network is None:
        return save_onnx(graph, folder / PROGRAM)
    write_graph(graph, folder / SPARSE_PROGRAM)
    model.network.adjacency.save(folder / GRAPH)
    with suppress(ModelError):
        return save_onnx(graph, folder / PROGRAM)
    return ()


def _check(model: CompiledResult, program: Path, stored: Sequence[Stored], digests: dict[str, str]) -> None:
    """Runs the written model once, unless an earlier run did, or the options leave it out. Its weights are computed
    from the original's. Adds its digest to `digests`, and that of a file of weights."""
    options = model.options
    if stored:
        data = program.with_name(program.name + DATA_SUFFIX)
        digests[data.name] = data_digest(data, stored, model.source, cache_of(options))
    if not options.check or not program.exists():
        return
    digests[PROGRAM] = sha256_of(program)
    runs = run_cache(options, runtime_version()) if model.network is None else RunCache(None, "")
    tried = (model.source.sha256, digests[PROGRAM], options.seed)
    if not runs.has(*tried) and _runs(model, program):
        runs.put(*tried)


def _runs(model: CompiledResult, program: Path) -> bool:
    """Whether the written model runs, as far as is known. If it does not, and neither does the original, the error is
    that of the original."""
    try:
        return check_compiled(program, model.graph, model.options.seed)
    except ModelError:
        adjacency = None if model.network is None else model.network.adjacency
        bound = inputs_bound(model.source, adjacency, model.options)
        check_original(model.source.as_file(), model.graph, model.options.seed, bound)
        raise


def _save_records(model: CompiledResult, folder: Path, digests: dict[str, str], progress: Tell) -> None:
    """Writes all files except the program; adds the original's digest to `digests` if the original is a file."""
    if model.source.zoo is None:
        progress("writing the original")
    original = _save_original(model.source, folder)
    if model.source.path is not None:
        digests[original] = model.source.sha256
    progress("writing plan.json")
    write_records(folder / "plan.json", _saved_plan(model), depth=3)
    progress("writing memory.json")
    write_records(folder / "memory.json", {"format": format_of("memory"), **model.memory.as_json()}, depth=2)
    progress("writing timeline.json")
    write_line(folder / "timeline.json", model.trace_in_pieces())
    progress("writing streams.json.gz")
    _write_streams(model, folder / "streams.json.gz")
    (folder / "target.toml").write_text(to_toml(model.machine.target), encoding="utf-8")
    write_json(folder / "config.json", _config(model, original))


def _write_streams(model: CompiledResult, path: Path) -> None:
    """Writes the units' programs, from the cache if an earlier run wrote the same ones."""
    units = model.machine.costs.units
    table = ProgramTable(model.programs, devices_off_the_host(model.graph, units), units)
    cache = stream_cache(model.options, table.content_key and f"{FORMAT} {table.content_key}")
    packed = cache.packed
    if packed is None:
        packed = table.packed(FORMAT)
        cache.put(packed)
    path.write_bytes(packed)


def _saved_plan(model: CompiledResult) -> dict[str, Any]:
    """The document and the plan, without values that vary from run to run: the same input gives the same bytes."""
    document = model.document(lazily=True)
    del document["search"]["seconds"], document["output_dir"]
    plan = encode(replace(model.plan, search_seconds=0.0), tagged=True)
    return {"format": format_of("plan"), **document, "plan": plan}


def _save_original(source: ModelSource, folder: Path) -> str:
    if source.zoo is not None:
        return source.text
    source.check_unchanged()
    content = source.content
    if isinstance(content, str):
        copied = copy_model(content, folder / ORIGINAL, whole=source.is_whole).relative_to(folder).as_posix()
        source.check_unchanged()  # nor meanwhile
        return copied
    copy = folder / ORIGINAL / "model.onnx"
    copy.parent.mkdir()
    assert not isinstance(content, SplitModel)  # of the zoo
    copy.write_bytes(onnx_bytes(content))
    return copy.relative_to(folder).as_posix()


def _config(model: CompiledResult, original: str) -> dict[str, Any]:
    header = Header(
        format=FORMAT,
        versions={
            "pimflow": __version__,
            "python": platform.python_version(),
            "onnx": onnx.__version__,
            "onnxruntime": runtime_version(),
            "numpy": np.__version__,
        },
        model=model.source.text,
        name=model.source.name,
        original=original,
        original_sha256=model.source.sha256,
        command=model.command,
        machine=TargetRecord.of(model.machine.target),
        graph_is_estimate=None if model.network is None else model.network.is_estimate,
    )
    return {**encode(header), **encode(replace(model.options, policy=model.plan.policy))}


@dataclass(frozen=True)
class Header:
    """The part of config.json that is not options."""

    format: str
    versions: Mapping[str, str]
    model: str
    name: str
    original: str
    original_sha256: str
    command: str | None
    machine: TargetRecord
    graph_is_estimate: bool | None = None
    """For a graph network, whether its graph is a random one; None for other models."""


def devices_off_the_host(graph: Graph, units: Container[str]) -> dict[str, str]:
    """The device, by node, of all nodes that run on one of the given units."""
    return {node.name: node.device for node in graph.nodes if node.device is not None and node.device in units}
