"""The price cache: the cost of every candidate, content-addressed, on disk, shared by processes.

There is one file per (package version, code, target, cost model), with one line per record:

    <key: 32 hex digits> <value: float.hex(), "none", or "=" and a text> <crc32 of the two: 8 hex digits>

Whole plans (`plan_cache`) and the records of backends (`Backend.new_records`) are texts in files of their own.

A record is appended with one write under an advisory lock, so lines of different writers never mix. A line with a wrong
checksum (a torn write, a flipped bit, a truncated file), or with a value that is not a valid time, is ignored, computed
again, and removed from the file. A damaged file or folder never stops a compile: the cache is then in memory only, and
one warning says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import stat
import sys
import time
import warnings
import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from pimflow import plugins
from pimflow.cache import STATISTICS_SUFFIX, cache_folder
from pimflow.data import open_file, read_argument
from pimflow.errors import OptionError, counted
from pimflow.ir.registry import outside_modules
from pimflow.records import dataclass
from pimflow.targets.schema import KINDS
from pimflow.version import __version__

MAX_CACHE_BYTES = 64 << 20
_LOCK_TRIES = 200
_LOCK_WAIT_S = 0.01
_SUFFIX = ".prices"
_TABLE = re.compile(rf"[0-9a-f]{{32}}\{_SUFFIX}")
_STATISTICS = re.compile(rf"[0-9a-f]{{32}}-[0-9a-f]{{16}}\{STATISTICS_SUFFIX}")
_SCRATCH = re.compile(rf"[0-9a-f]{{32}}(-[0-9a-f]{{16}}\{STATISTICS_SUFFIX})?\.[0-9]+\.tmp")
"""Temporary files, written next to the file that they will replace."""
_COST_PACKAGES = ("ir", "onnxio", "codegen", "passes", "runtime", "search", "sparse", "targets")
_COST_SUFFIXES = (".py", ".toml", ".csv")
_THIS_PROCESS = os.urandom(16)


class CacheWarning(UserWarning):
    """The price cache on disk is damaged or unusable; results are correct but take longer."""


@dataclass(frozen=True)
class CacheInfo:
    """The contents of the cache: the folder, its files, their intact and damaged records, graphs with statistics, and
    bytes."""

    folder: str
    files: int
    records: int
    damaged: int
    graphs: int
    bytes: int


def code_fingerprint(extra_packages: tuple[str, ...] = ()) -> str:
    """Hash of all code that a cost depends on: the version, every relevant source and data file of the package, other
    packages that add backends, policies or passes, and outside modules that have registered ops, rules, units or
    backends. Edited code never reads the costs of other code. `extra_packages` are included as well."""
    digest = hashlib.blake2b(_package_fingerprint(extra_packages).encode() + plugins.fingerprint(), digest_size=16)
    for name in outside_modules(*KINDS.values()):
        digest.update(f"{name}\0".encode() + _source_of(name) + b"\0")
    return digest.hexdigest()


def _source_of(module: str) -> bytes:
    """A module's source; a module without a file (a prompt, a notebook) matches no other process's."""
    file = getattr(sys.modules.get(module), "__file__", None)
    try:
        return _THIS_PROCESS if file is None else Path(file).read_bytes()
    except OSError:
        return _THIS_PROCESS


@cache
def _package_fingerprint(extra_packages: tuple[str, ...]) -> str:
    digest = hashlib.blake2b(__version__.encode(), digest_size=16)
    for package in (*_COST_PACKAGES, *extra_packages):
        digest.update(_sources_of(package))
    return digest.hexdigest()


@cache
def _sources_of(package: str) -> bytes:
    """A digest of the source and data files in a subpackage of pimflow, with their relative paths."""
    digest = hashlib.blake2b(package.encode(), digest_size=16)
    root = str(Path(__file__).resolve().parent.parent / package)
    for folder, folders, names in os.walk(root):
        folders.sort()
        within = folder[len(root) :].replace(os.sep, "/")
        for name in sorted(name for name in names if name.endswith(_COST_SUFFIXES)):
            with FileIO(f"{folder}{os.sep}{name}") as file:  # for hundreds of files, twice as fast as a Path
                digest.update(f"{within}/{name}".encode() + b"\0" + file.read() + b"\0")
    return digest.digest()


def open_user_cache(scope: str) -> PriceCache:
    """The cache in the user's cache folder; in memory only, with a warning, if there is no such folder."""
    return PriceCache(user_folder(), scope)


def user_folder() -> Path | None:
    """The user's cache folder; None, with a warning, if there is none."""
    try:
        return cache_folder()
    except OptionError as error:
        _warn(str(error))
        return None


class PriceCache:
    """Costs by key, in memory and (unless `folder` is None) on disk.

    A cost is a float in microseconds, or None for a candidate that cannot be built. `flush` writes new records; it is
    also called automatically when there are many.

    Args:
        folder: where the file is; None for in memory only.
        scope: everything that all costs of this cache depend on (target, code, cost model), as text.
        most_bytes: the maximum size of the file; a larger one is started over.
    """

    def __init__(self, folder: Path | None, scope: str, most_bytes: int = MAX_CACHE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._costs: dict[str, float | None] = {}
        self._texts: dict[str, str] = {}
        self._fresh: list[bytes] = []
        self.path = None if folder is None else folder / f"{_digest(scope)}{_SUFFIX}"
        if self.path is not None:
            self._load(self.path)

    def __len__(self) -> int:
        return len(self._costs)

    def __contains__(self, key: str) -> bool:
        return key in self._costs

    def get(self, key: str, default: float | None = None) -> float | None:
        """The cost under a key (None: it cannot be built), or the default."""
        return self._costs.get(key, default)

    def put(self, key: str, cost: float | None) -> None:
        """Add a cost; an existing one stays."""
        if key not in self._costs:
            self._costs[key] = cost
            self._write(key, cost)

    @property
    def texts(self) -> Mapping[str, str]:
        """All texts by key."""
        return self._texts

    def put_text(self, key: str, text: str) -> None:
        """Add a text of one line; an existing one stays.

        Args:
            key: as for a cost; a text and a cost can have the same key.
            text: ASCII.
        """
        if key not in self._texts:
            self._texts[key] = text
            self._write(key, text)

    @property
    def folder(self) -> Path | None:
        """The folder of the file; None if costs are in memory only."""
        return None if self.path is None else self.path.parent

    def _write(self, key: str, value: float | str | None) -> None:
        if self.path is None:
            return
        self._fresh.append(_record(key, value))
        if len(self._fresh) >= 4096:
            self.flush()

    def flush(self) -> None:
        """Write new records to disk; a failure disables the disk cache, with one warning."""
        if self.path is None or not self._fresh:
            return
        data = b"".join(self._fresh)
        self._fresh.clear()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _append(self.path, data, self._most_bytes)
        except OSError as error:
            self._give_up(f"cannot write the price cache in {self.path.parent}: {error.strerror or error}")

    def _load(self, path: Path) -> None:
        try:
            content = _read(path)
        except FileNotFoundError:
            return
        except OSError as error:
            self._give_up(f"cannot read the price cache in {path.parent}: {error.strerror or error}")
            return
        self._costs, self._texts, damaged = _parse(content)
        if damaged:
            records = counted(damaged, "damaged record")
            _warn(f"the price cache {path} has {records}, now ignored and to be computed again")
            intact: list[tuple[str, float | str | None]] = [*self._costs.items(), *self._texts.items()]
            with contextlib.suppress(OSError):  # if the file cannot be repaired, the next run warns again
                _replace(path, b"".join(_record(key, value) for key, value in intact))

    def _give_up(self, why: str) -> None:
        self.path = None
        _warn(f"{why}; continuing without it")


def key_of(content: str) -> str:
    """The key of a candidate whose canonical text is `content`."""
    return _digest(content)


def cache_clear(folder: str | Path | None = None) -> int:
    """Remove every cache file in the cache folder, including leftovers of killed processes; return how many were
    removed.

    This includes the statistics of graphs. Other files are left alone, whatever their suffix: cache files are named by
    a digest. A `CacheWarning` says how many could not be removed.

    Raises:
        OptionError: `folder` is not a path.
    """
    where = _folder_argument(folder)
    removed, kept = 0, []
    for path in [path for name in (_TABLE, _STATISTICS, _SCRATCH) for path in _cache_files(where, name)]:
        try:
            path.unlink()
            removed += 1
        except FileNotFoundError:
            continue  # another process removed it
        except OSError as error:
            kept.append(error.strerror or str(error))
    if kept:
        _warn(f"{len(kept)} of the files in {where} cannot be removed: {kept[0]}; check the permissions of the folder")
    return removed


def cache_info(folder: str | Path | None = None) -> CacheInfo:
    """What is in the cache folder (or in another folder of that kind).

    Raises:
        OptionError: `folder` is not a path.
    """
    where = _folder_argument(folder)
    files = records = broken = size = graphs = 0
    for path in _cache_files(where):
        with contextlib.suppress(OSError):
            content = _read(path)
            costs, texts, damaged = _parse(content)
            files, size = files + 1, size + len(content)
            records, broken = records + len(costs) + len(texts), broken + damaged
    for path in _cache_files(where, _STATISTICS):
        with contextlib.suppress(OSError):
            graphs, size = graphs + 1, size + path.stat().st_size
    return CacheInfo(str(where), files, records, broken, graphs, size)


def _folder_argument(folder: str | Path | None) -> Path:
    text: str | None = read_argument("folder", str | None, folder)
    return Path(text) if text else cache_folder()


def _cache_files(folder: Path, name: re.Pattern[str] = _TABLE) -> tuple[Path, ...]:
    """The regular files in a folder with names like those of cache files; links, folders and FIFOs do not count."""
    try:
        ours = (path for path in folder.iterdir() if name.fullmatch(path.name))
        return tuple(sorted(path for path in ours if stat.S_ISREG(path.lstat().st_mode)))
    except (OSError, ValueError):
        return ()


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _record(key: str, value: float | str | None) -> bytes:
    text = f"={value}" if isinstance(value, str) else "none" if value is None else float(value).hex()
    body = f"{key} {text}"
    return f"{body} {zlib.crc32(body.encode()):08x}\n".encode()


def _parse(content: bytes) -> tuple[dict[str, float | None], dict[str, str], int]:
    """Intact costs, intact texts, and the number of damaged lines."""
    costs: dict[str, float | None] = {}
    texts: dict[str, str] = {}
    damaged = 0
    for line in content.split(b"\n"):
        if not line:
            continue
        body, _, crc = line.rpartition(b" ")
        if len(crc) != 8 or f"{zlib.crc32(body):08x}".encode() != crc:
            damaged += 1
            continue
        key, _, value = body.decode("latin-1").partition(" ")
        if value.startswith("="):
            texts[key] = value[1:]
            continue
        try:
            costs[key] = None if value == "none" else _price(value)
        except ValueError:
            damaged += 1
    return costs, texts, damaged


def _price(text: str) -> float:
    """A finite, non-negative number.

    Raises:
        ValueError: it is anything else.
    """
    try:
        value = float.fromhex(text)
    except OverflowError:
        raise ValueError(text) from None
    if not 0 <= value < math.inf:
        raise ValueError(text)
    return value


def _read(path: Path) -> bytes:
    with open_file(path) as file, _locked(file, shared=True):
        return file.read()


def _append(path: Path, data: bytes, most_bytes: int) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(path, flags, 0o666), "ab") as file, _locked(file, shared=False):
        size = os.fstat(file.fileno()).st_size
        if size + len(data) > most_bytes:
            file.truncate(0)  # computing a file this large again is cheaper than reading it
            size = 0
        if size and not _ends_with_newline(path):
            data = b"\n" + data  # a writer was cut off: its torn line must not corrupt our first one
        file.write(data)
        file.flush()


def _replace(path: Path, data: bytes) -> None:
    """Atomically replace the content of a file. Records that others append meanwhile may be lost, nothing else."""
    scratch = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        scratch.write_bytes(data)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


@contextlib.contextmanager
def _locked(file: BinaryIO, *, shared: bool) -> Iterator[None]:
    """An advisory lock, if the platform and the file system have one. The wait for it is limited: without it a line may
    be read half written, which the checksum detects."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(file, mode | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(_LOCK_WAIT_S)
        except OSError:  # this file system has no locks
            break
    yield  # closing the file releases the lock


def _warn(message: str) -> None:
    warnings.warn(message, CacheWarning, stacklevel=3)
