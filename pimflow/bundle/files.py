"""Files: byte-stable JSON documents, digests, and single files written atomically."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from pimflow.data import open_file, read_file
from pimflow.errors import ArgumentError, OptionError, OutputError, kind_of

_MAX_JSON_BYTES = 512 << 20
_SMALL_BYTES = 16 << 20
_MAX_EXPANSION = 100
"""The largest accepted ratio of unpacked to packed size. Streams unpack to 28 to 60 times their size; a malicious gzip
file could reach a thousand."""
_CHUNK_ENTRIES = 1000
"""The number of list entries that are converted to text at a time."""


def path_argument(value: object, name: str) -> Path:
    """Convert the argument of this name to a path.

    Raises:
        ArgumentError: it is not a path.
        OptionError: no file can have this path: it has a NUL, or a character that file names cannot hold.
    """
    if not isinstance(value, (str, os.PathLike)):
        raise ArgumentError(f"{name!r} is {kind_of(value)}", "give a path")
    path = os.fsdecode(value)
    try:
        is_possible = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        is_possible = False
    if not is_possible:
        raise OptionError(f"{name!r} is {path!r}, which no file can be called", "give another path")
    return Path(path)


def json_text(document: Any, indent: int | None = 2) -> str:
    """One JSON document as byte-stable text."""
    return json.dumps(document, indent=indent, allow_nan=False, separators=None if indent else (",", ":")) + "\n"


def write_json(path: Path, document: Any) -> None:
    """Write a byte-stable JSON document."""
    path.write_text(json_text(document), encoding="utf-8")


def write_line(path: Path, document: Mapping[str, Any]) -> None:
    """Write a byte-stable JSON object on a single line. The text of its lists, which may be iterators, is never in
    memory as a whole."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(_line_chunks(document))
        file.write("\n")


def _line_chunks(document: Mapping[str, Any]) -> Iterator[str]:
    """The output of `json_text` without indentation, in pieces."""
    before = "{"
    for key, value in document.items():
        yield f"{before}{json.dumps(key)}:"
        before = ","
        if not isinstance(value, (list, Iterator)):
            yield _compact_json(value)
            continue
        opening, entries = "[", iter(value)
        while part := list(islice(entries, _CHUNK_ENTRIES)):
            yield opening + _compact_json(part)[1:-1]
            opening = ","
        yield "]" if opening == "," else "[]"
    yield "}" if document else "{}"


# Documents are trees, so none is searched for cycles.
_compact_json = json.JSONEncoder(allow_nan=False, check_circular=False, separators=(",", ":")).encode
_spaced_json = json.JSONEncoder(allow_nan=False, check_circular=False).encode


def write_records(path: Path, document: Any, depth: int) -> None:
    """Write a long, byte-stable JSON document. Its text is never in memory as a whole.

    Args:
        path: of the file.
        document: its content; lists may be iterators.
        depth: the number of levels that are indented; anything deeper, or in a list, is on one line.
    """
    with path.open("w", encoding="utf-8") as file:
        file.writelines(_indented_chunks(document, depth))
        file.write("\n")


def _indented_chunks(value: Any, depth: int, margin: str = "\n") -> Iterator[str]:
    if not depth or not isinstance(value, (dict, list, tuple, Iterator)):
        yield _spaced_json(value)
        return
    inner = margin + "  "
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    before = opening
    for item in value:
        text = before + inner + _spaced_json(item)
        before = ","
        if isinstance(value, dict):
            yield text + ": "
            yield from _indented_chunks(value[item], depth - 1, inner)
        else:
            yield text
    yield opening + closing if before == opening else margin + closing


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not UTF-8, or not JSON.
    """
    return parse_json(read_file(path, _MAX_JSON_BYTES))


def parse_json(data: bytes) -> Any:
    """The content of a JSON document.

    Raises:
        ValueError: it is not UTF-8 or not JSON, has a number with thousands of digits, or is nested thousands of levels
            deep.
    """
    try:
        return json.loads(data.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_packed(path: Path) -> bytes:
    """The content of a gzip file that pimflow wrote.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not a gzip file, is truncated or damaged, or unpacks to far more than its size suggests.
    """
    packed = read_file(path, _MAX_JSON_BYTES)
    max_bytes = _SMALL_BYTES + _MAX_EXPANSION * len(packed)
    unpack = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        data = unpack.decompress(packed, max_bytes + 1)
    except zlib.error as error:
        raise ValueError(f"gzip data is broken ({error})") from None
    if len(data) > max_bytes:
        raise ValueError(f"{len(packed):,} bytes unpack to more than {max_bytes:,}")
    if not unpack.eof:
        raise ValueError("gzip data is cut short")
    return data


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, read in blocks.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    with open_file(path) as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def parent_folders(place: Path) -> Iterator[None]:
    """Create the missing folders around a file or folder that the block writes; remove them again if the block fails.

    Raises:
        OSError: they cannot be created.
    """
    missing = [folder for folder in place.absolute().parents if not folder.exists()]
    place.absolute().parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for folder in missing:
            with suppress(OSError):  # fails if another process has written there
                folder.rmdir()
        raise


def check_new(path: Path) -> None:
    """Refuse a file that already exists; called before long work, so that the refusal comes at once.

    Raises:
        OutputError: it exists.
    """
    if os.path.lexists(path) and path.exists():  # a name that is too long is refused when it is written
        raise OutputError(f"{path} exists", "choose another name, or remove it first")


def write_new_file(path: Path, data: bytes) -> None:
    """Write a file atomically. An existing file is not overwritten; missing folders around it are created.

    Raises:
        OutputError: it exists, or cannot be written.
    """
    check_new(path)
    try:
        with parent_folders(path):
            replace_file(path, data)
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}", "check the folder and its permissions"
        ) from None


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically: the new content is written next to it and then moved into place.

    Raises:
        OSError: it cannot be written.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
    scratch = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        scratch.chmod(0o666 & ~_umask())
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
