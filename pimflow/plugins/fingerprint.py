"""A fingerprint of other packages' code that affects prices: those that add backends, policies or passes.

All installed ones count, loaded or not, so that a fingerprint does not depend on what a process did before. Targets are
excluded, because their values are part of every key.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from pimflow.plugins.entries import BACKENDS, PASSES, POLICIES, Plugin, forget_entries, installed

_THIS_PROCESS = os.urandom(16)


def fingerprint() -> bytes:
    """A hash of all files of such packages; empty if there are none."""
    return _fingerprint(tuple(sys.path))


def forget() -> None:
    """Make the next call read the files again."""
    forget_entries()
    _fingerprint.cache_clear()


@cache
def _fingerprint(_path: tuple[str, ...]) -> bytes:
    plugins = installed((BACKENDS, PASSES, POLICIES))
    if not plugins:
        return b""
    digest = hashlib.blake2b(digest_size=16)
    for plugin in plugins:
        digest.update(f"{plugin.group} {plugin.name} {plugin.value} {plugin.package}\0".encode())
    for file in sorted({file for plugin in plugins for file in (*_recorded(plugin), *_found(plugin))}):
        digest.update(f"{file}\0".encode() + _content(file) + b"\0")
    return digest.digest()


def _content(file: Path) -> bytes:
    """A digest of a file's content; for an unreadable file, a value unique to this process."""
    try:
        return hashlib.blake2b(file.read_bytes(), digest_size=16).digest()
    except OSError:
        return _THIS_PROCESS


def _recorded(plugin: Plugin) -> Iterator[Path]:
    """The files that a package was installed with, as far as they were recorded."""
    for file in plugin.distribution.files or ():
        inside = file.parts[0] != ".." and not file.parts[0].endswith((".dist-info", ".egg-info"))
        if inside and file.suffix != ".pyc" and not file.is_absolute():
            yield Path(os.path.realpath(str(file.locate())))


def _found(plugin: Plugin) -> Iterator[Path]:
    """The files of the outermost package around the plugin's module, or of the module, where Python would find it."""
    top, *inner = plugin.module.split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return
    if spec.submodule_search_locations is None:
        yield Path(os.path.realpath(spec.origin or top))
        return
    for location in spec.submodule_search_locations:
        yield from _files(Path(location), inner, is_package=spec.origin is not None)


def _files(folder: Path, inner: list[str], *, is_package: bool) -> Iterator[Path]:
    """The files of a package; for a namespace package, only those on the path to the module."""
    if is_package or not inner:
        every = (Path(base, name) for base, _, names in os.walk(folder) for name in names)
        yield from (Path(os.path.realpath(file)) for file in every if file.suffix != ".pyc")
        return
    module = folder / f"{inner[0]}.py"
    if module.is_file():
        yield Path(os.path.realpath(module))
    below = folder / inner[0]
    yield from _files(below, inner[1:], is_package=(below / "__init__.py").is_file())
