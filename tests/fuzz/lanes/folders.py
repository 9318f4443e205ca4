"""Damaged and crafted output folders: loading, verifying and tracing fail in one line or are right."""

from __future__ import annotations

import filecmp
import gzip
import json
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from fuzz.apart import apart
from fuzz.mutators import damaged
from fuzz.verdict import Verdict
from pimflow.bundle.manifest import MANIFEST, write_manifest
from pimflow.cli import main

_FILES = ("config.json", "plan.json", "streams.json.gz", "target.toml", "model.onnx", MANIFEST, "original/toy.onnx")
_ODD: tuple[Any, ...] = (None, True, -1, 0, 1 << 70, 1e308, "", "x" * 5000, "../../..", "\x1b[31m", [], {}, [[]],
                         {"": 0}, {"type": "os.system"}, [None] * 3, "nan", 3.5)  # fmt: skip


@cache
def sound() -> Path:
    """A valid output folder, made once in a separate process, among the campaign's temporary files."""
    home = Path(tempfile.mkdtemp(prefix="fuzz-sound-"))
    model, out = str(home / "toy.onnx"), str(home / "out")
    exported = apart(lambda: main(["zoo", "export", "toy", "-o", model]))
    compiled = apart(lambda: main(["compile", model, "-o", out, "--policy", "pimflow", "--no-cache"]))
    assert (exported.code, compiled.code) == (0, 0), exported.err + compiled.err
    return home / "out"


def case(seed: int, folder: Path) -> Verdict:
    """Change one file of a valid folder, half of the time with a matching manifest, and load it."""
    rng = Random(seed)
    out = folder / "out"
    shutil.copytree(sound(), out)
    name = rng.choice(_FILES)
    how = rng.choice(_KINDS if name.endswith((".json", ".gz")) else _KINDS[:3])
    how_text = f"{name}, {_change(out / name, how, rng)}"
    signed = name != MANIFEST and rng.random() < 0.7
    if signed:
        (out / MANIFEST).unlink()
        apart(lambda: write_manifest(out))  # a FIFO would not be one of its files
        how_text += ", signed"
    verb = rng.choice((["verify", str(out)], ["verify", str(out), "--pim", "values"], ["trace", str(out), "conv1"],
                       ["verify", str(out), "--arena", "--json"]))  # fmt: skip
    ended = apart(lambda: main(verb), limit_bytes=4 << 30)
    if ended.complaint:
        return Verdict("loads badly", f"{how_text}, {verb[0]}: {ended.complaint}")
    if ended.code != 2 and not signed and not _alike(out):
        return Verdict("a change unnoticed", f"{how_text}, {verb[0]}: exit {ended.code}")
    return Verdict(f"{'signed' if signed else 'unsigned'}, exit {ended.code}")


def _alike(out: Path) -> bool:
    """Whether nothing that matters differs from the valid folder; a manifest may be formatted differently."""
    names = [path.relative_to(sound()) for path in sound().rglob("*") if path.is_file() and path.name != MANIFEST]
    if not all(filecmp.cmp(out / name, sound() / name, shallow=False) for name in names if (out / name).is_file()):
        return False
    manifests = [json.loads((folder / MANIFEST).read_bytes()) for folder in (sound(), out)]
    return bool(manifests[0] == manifests[1])


def _change(path: Path, how: str, rng: Random) -> str:
    data = path.read_bytes()
    if how == "bytes":
        path.write_bytes(damaged(data, rng))
    elif how == "kind":
        path.unlink()
        return _other_kind(path, rng)
    elif how == "content":
        content = rng.choice(
            (b"", b"[" * 100_000, b"9" * 5000, b"\xff\xfe", b'{"a":' * 20_000, data * 2, b"null", b"[]")
        )
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    elif how == "bomb":
        content = rng.choice((b"[]," * (40 << 20), b"\n" * (256 << 20), b'"' + b"a" * (128 << 20)))
        path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content[: 80 << 20])
    else:
        document = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
        where = _changed_value(document, rng)
        text = json.dumps(document).encode()
        path.write_bytes(gzip.compress(text, 1) if path.suffix == ".gz" else text)
        return where
    return how


_KINDS = ("bytes", "kind", "content", "bomb", *["value"] * 12)


def _other_kind(path: Path, rng: Random) -> str:
    kind = rng.choice(("missing", "folder", "fifo", "endless", "dangling"))
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind in ("endless", "dangling"):
        path.symlink_to("/dev/zero" if kind == "endless" else "nowhere")
    return kind


def _changed_value(document: Any, rng: Random) -> str:
    """Replace a value somewhere in a document by something odd; return what was done."""
    parent: Any = [document]
    key: Any = 0
    path = ""
    while parent[key] and isinstance(parent[key], (dict, list)) and rng.random() < 0.9:
        parent = parent[key]
        key = rng.choice(list(parent)) if isinstance(parent, dict) else rng.randrange(len(parent))
        path += f".{key}"
    odd = rng.choice(_ODD)
    what = rng.choice(("replaced", "replaced", "replaced", "dropped", "repeated"))
    if what == "dropped" and path:
        del parent[key]
    elif what == "repeated" and isinstance(parent, list) and path:
        parent.insert(key, parent[key])
    else:
        what = f"replaced by {str(odd)[:30]!r}"
        parent[key] = odd
    return f"{path[:80]} {what}"
