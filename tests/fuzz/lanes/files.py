"""Paths that are not files, never end, or claim more than they hold, wherever the command line takes a file."""

from __future__ import annotations

import gzip
import os
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import numpy as np

from fuzz.apart import apart
from fuzz.lanes import folders
from fuzz.verdict import Verdict
from pimflow.cli import main

_VERBS: tuple[tuple[str, ...], ...] = (
    ("compile", "{}.onnx", "-o", "{}.out"),
    ("inspect", "{}.onnx"),
    ("opt", "{}.onnx", "-p", "cleanup"),
    ("opt", "{}.pimir", "-p", "cleanup"),
    ("compile", "zoo:toy", "-o", "{}.out", "--target", "{}.toml"),
    ("compile", "zoo:toy", "-o", "{}.out", "--profile", "{}.csv"),
    ("compile", "zoo:toy", "-o", "{}.odd"),
    ("calibrate", "--from", "{}.csv"),
    ("verify", "sound", "--inputs", "{}.npz"),
    ("verify", "{}.odd"),
    ("trace", "{}.odd", "conv1"),
    ("simulate", "{}.pim"),
    ("simulate", "{}.pim.gz"),
    ("layer", "--conv=ic=64,oc=64,h=7,w=7,k=1", "--target", "{}.toml"),
    ("opt", "zoo:toy", "-p", "cleanup", "-o", "{}.onnx"),
    ("zoo", "export", "toy", "-o", "{}.onnx"),
)


def _empty(path: Path, rng: Random) -> None:
    path.touch()


def _noise(path: Path, rng: Random) -> None:
    path.write_bytes(rng.randbytes(rng.choice((1, 7, 4096))))


def _folder(path: Path, rng: Random) -> None:
    path.mkdir()


def _fifo(path: Path, rng: Random) -> None:
    os.mkfifo(path)


def _endless(path: Path, rng: Random) -> None:
    path.symlink_to("/dev/zero")


def _dangling(path: Path, rng: Random) -> None:
    path.symlink_to("nowhere")


def _circle(path: Path, rng: Random) -> None:
    path.symlink_to(path.name)


def _packed_zeros(path: Path, rng: Random) -> None:
    path.write_bytes(gzip.compress(rng.choice((b"\0", b"\n", b"READRES\n")) * (32 << 20), 1))


def _archive_of_zeros(path: Path, rng: Random) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("input.npy", bytes(64 << 20))


def _claim(path: Path, rng: Random) -> None:
    """An array file that claims to have more elements than it holds."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rng.choice((10**6, 10**13, -4))},), }}".encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("input.npy", b"\x93NUMPY\x01\x00v\x00" + header.ljust(117) + b"\n" + bytes(1 << 20))


def _objects(path: Path, rng: Random) -> None:
    np.savez(path.open("wb"), input=np.array([{"a": 1}], object))


def _bare(path: Path, rng: Random) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


def _lines(path: Path, rng: Random) -> None:
    header = b"op,input_shapes,output_shapes,attributes,dtype,time_us,machine,versions\n"
    odd = rng.choice((b"Conv,1x3,1x3,{},float32,1,a,b\n", b"Conv," + b"9" * 5000 + b",1,{},float32,1,a,b\n",
                      b"Relu,1,1," + b"[" * 100_000 + b",float32,1,a,b\n", b'"', b"0x" + b"f" * 300 + b" COMP\n",
                      b"Relu,1,1,{},float32,1e400,a,b\n", b"\n" * 100_000,
                      b"graph @g {\n" + b"(" * 50_000))  # fmt: skip
    path.write_bytes(rng.choice((header, b"")) + odd)


def _nothing(path: Path, rng: Random) -> None:
    """No file at all."""


Kind = Callable[[Path, Random], None]
_KINDS: tuple[Kind, ...] = (_empty, _noise, _folder, _fifo, _endless, _dangling, _circle, _lines, _packed_zeros,
                            _archive_of_zeros, _claim, _objects, _bare, _nothing)  # fmt: skip
_STEMS = ("file", "file", "file", "n" * 240, "n" * 300, "nul\0", "a/" * 2100 + "b", "esc\x1b[31m", "new\nline", "名")


def case(seed: int, folder: Path) -> Verdict:
    """Run one verb on one such file."""
    rng = Random(seed)
    template, kind, stem = rng.choice(_VERBS), rng.choice(_KINDS), rng.choice(_STEMS)
    where = str(folder / stem)
    words = [word.replace("{}", where).replace("sound", str(folders.sound())) for word in template]
    place = next(Path(word) for word in words if word.startswith(where))
    for word in words:
        if word.startswith(where) and not word.endswith(".out"):
            place = Path(word)
    with suppress(OSError, ValueError):  # no file can have such a name
        kind(place, rng)
    ended = apart(lambda: main(words), limit_bytes=4 << 30)
    what = f"{kind.__name__.strip('_')} as {place.name[:20]!r}.. in {template}"
    if ended.complaint:
        return Verdict("fails badly", f"{what}: {ended.complaint}")
    shown = ended.out + ended.err
    if not all(char.isprintable() or char == "\n" for char in shown):
        return Verdict("raw name", f"{what}: {shown[:200]!r}")
    return Verdict(f"exit {ended.code}")
