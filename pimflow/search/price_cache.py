"""The price cache: what every candidate costs, content-addressed, on disk, shared by processes.

One file per (package version, code, target, cost model), a line per record:

    <key: 32 hex digits> <value: float.hex(), "none", or "=" and a text> <crc32 of the two: 8 hex digits>

Whole plans (`kept_plans`) and what backends have learnt of work (`Backend.learnt`) are texts in files of their own.

A record is appended with one write under an advisory lock, so writers never mix their lines. A line whose checksum
does not fit (a torn write, a flipped bit, a truncated file), or whose value is no time that anything can take, is left
out, computed again, and swept out of the file.
Nothing that is wrong with the file or its folder ever stops a compile: the cache then is in memory only, and one
warning says so.
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
from pathlib import Path
from typing import BinaryIO

from pimflow import plugins
from pimflow.cache import STATISTICS_SUFFIX, cache_folder
from pimflow.data import open_file
from pimflow.errors import OptionError
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
"""What is written beside a file that it is to replace."""
_COST_PACKAGES = ("ir", "onnxio", "codegen", "passes", "runtime", "search", "sparse", "targets")
_COST_SUFFIXES = (".py", ".toml", ".csv")
_THIS_PROCESS = os.urandom(16)


class CacheWarning(UserWarning):
    """The price cache on disk is damaged or cannot be used; results are right, only slower to get."""


@dataclass(frozen=True)
class CacheInfo:
    """What is on disk: the folder, its files, their records that are intact, graphs with statistics, and bytes."""

    folder: str
    files: int
    records: int
    damaged: int
    graphs: int
    bytes: int


def code_fingerprint(also: tuple[str, ...] = ()) -> str:
    """Hash of all code that a cost depends on: the version, every source and data file of the package that has a part
    in it, other packages that add backends, policies or passes to it, and the modules outside that have registered ops,
    rules, units or backends. Edited code never reads the costs of other code. `also` names more packages."""
    digest = hashlib.blake2b(_package_fingerprint(also).encode() + plugins.fingerprint(), digest_size=16)
    for name in outside_modules(*KINDS.values()):
        digest.update(f"{name}\0".encode() + _source_of(name) + b"\0")
    return digest.hexdigest()


def _source_of(module: str) -> bytes:
    """A module's source; one that has none (a prompt, a notebook) is like no other process's."""
    file = getattr(sys.modules.get(module), "__file__", None)
    try:
        return _THIS_PROCESS if file is None else Path(file).read_bytes()
    except OSError:
        return _THIS_PROCESS


@cache
def _package_fingerprint(also: tuple[str, ...]) -> str:
    digest = hashlib.blake2b(__version__.encode(), digest_size=16)
    for package in (*_COST_PACKAGES, *also):
        digest.update(_sources_of(package))
    return digest.hexdigest()


@cache
def _sources_of(package: str) -> bytes:
    """A digest of the source and data files of a package of ours, by their names in it."""
    digest = hashlib.blake2b(package.encode(), digest_size=16)
    root = Path(__file__).resolve().parent.parent / package
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(name for name in names if name.endswith(_COST_SUFFIXES)):
            path = Path(folder, name)
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
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

    A cost is a float in microseconds, or None for a candidate that cannot be built. New records are written by `flush`,
    which is also called when there are many of them.

    Args:
        folder: where the file is; None keeps costs in memory only.
        scope: everything that all costs of this cache depend on (target, code, cost model), as text.
        most_bytes: size of the file from which it is begun anew.
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
        """Adds a cost (first come, first kept)."""
        if key not in self._costs:
            self._costs[key] = cost
            self._write(key, cost)

    @property
    def texts(self) -> Mapping[str, str]:
        """All texts by key."""
        return self._texts

    def put_text(self, key: str, text: str) -> None:
        """Adds a text of one line (first come, first kept).

        Args:
            key: as of a cost; a text is kept beside a cost of the same key.
            text: ASCII.
        """
        if key not in self._texts:
            self._texts[key] = text
            self._write(key, text)

    @property
    def folder(self) -> Path | None:
        """Where the file is; None if costs are kept in memory only."""
        return None if self.path is None else self.path.parent

    def _write(self, key: str, value: float | str | None) -> None:
        if self.path is None:
            return
        self._fresh.append(_record(key, value))
        if len(self._fresh) >= 4096:
            self.flush()

    def flush(self) -> None:
        """Writes new records to disk; a failure turns the disk off, with one warning."""
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
            _warn(f"{damaged} damaged records of the price cache {path} are ignored and will be computed again")
            intact: list[tuple[str, float | str | None]] = [*self._costs.items(), *self._texts.items()]
            with contextlib.suppress(OSError):  # a file that cannot be mended is only warned of again
                _replace(path, b"".join(_record(key, value) for key, value in intact))

    def _give_up(self, why: str) -> None:
        self.path = None
        _warn(f"{why}; continuing without it")


def key_of(content: str) -> str:
    """The key of a candidate whose canonical text is `content`."""
    return _digest(content)


def cache_clear(folder: Path | None = None) -> int:
    """Removes every file of the cache under the cache folder, and what killed processes left of them; returns how many.

    Statistics of graphs are among them. Other files are left alone, whatever their suffix: ours are named by a digest.
    """
    where = folder or cache_folder()
    removed = 0
    for path in (path for name in (_TABLE, _STATISTICS, _SCRATCH) for path in _cache_files(where, name)):
        with contextlib.suppress(OSError):
            path.unlink()
            removed += 1
    return removed


def cache_info(folder: Path | None = None) -> CacheInfo:
    """What is in the cache folder."""
    where = folder or cache_folder()
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


def _cache_files(folder: Path, name: re.Pattern[str] = _TABLE) -> tuple[Path, ...]:
    """The files in a folder that are named as ours are; a link, folder or FIFO of such a name is not ours."""
    try:
        ours = (path for path in folder.iterdir() if name.fullmatch(path.name))
        return tuple(sorted(path for path in ours if stat.S_ISREG(path.lstat().st_mode)))
    except OSError:
        return ()


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _record(key: str, value: float | str | None) -> bytes:
    text = f"={value}" if isinstance(value, str) else "none" if value is None else float(value).hex()
    body = f"{key} {text}"
    return f"{body} {zlib.crc32(body.encode()):08x}\n".encode()


def _parse(content: bytes) -> tuple[dict[str, float | None], dict[str, str], int]:
    """Intact costs, intact texts, and how many lines are neither."""
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
    """A finite number that is not negative.

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
            file.truncate(0)  # a file this big is cheaper to compute again than to read
            size = 0
        if size and not _ends_with_newline(path):
            data = b"\n" + data  # a writer was cut off: its torn line must not swallow our first one
        file.write(data)
        file.flush()


def _replace(path: Path, data: bytes) -> None:
    """Puts new content in place of a file, whole or not at all. What others append meanwhile may be lost, no more."""
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
    """An advisory lock where the platform and the file system have one. It is waited for, but not for long: without it
    a line may be read half written, which the checksum finds out."""
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
    yield  # closing the file gives the lock back


def _warn(message: str) -> None:
    warnings.warn(message, CacheWarning, stacklevel=3)
