"""Arrays of .npz files: mapped if they are stored uncompressed, else unpacked, and never larger than memory."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pimflow.errors import GraphDataError, OutputError
from pimflow.records import dataclass
from pimflow.sparse.memory import available_bytes, size_text

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_ALIGNMENT = 64
_PIECE_BYTES = 1 << 24
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_PADDING_TAG = 0x5A45  # not a registered extra field


@dataclass(frozen=True)
class StoredArray:
    """An array of a file, not read yet.

    Args:
        path: the file.
        member: the entry of the archive.
        shape, dtype: shape and element type of the array.
        by_columns: whether its elements are stored column by column.
        offset: offset of its elements in the entry.
    """

    path: Path
    member: zipfile.ZipInfo
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    by_columns: bool
    offset: int

    @property
    def bytes(self) -> int:
        """The size of its elements in bytes."""
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize

    @property
    def is_mapped(self) -> bool:
        """Whether it is stored uncompressed, so that it is mapped instead of read."""
        return self.member.compress_type == zipfile.ZIP_STORED and self.bytes > 0

    def read(self) -> npt.NDArray[Any]:
        """The array, read-only.

        Raises:
            GraphDataError: the file is damaged.
        """
        order: Any = "F" if self.by_columns else "C"
        if self.is_mapped:
            begin = _data_offset(self.path, self.member) + self.offset
            mapped: npt.NDArray[Any] = np.memmap(self.path, self.dtype, "r", begin, self.shape, order)
            return mapped
        array: npt.NDArray[Any] = np.empty(self.shape, self.dtype, order)
        octets = array.reshape(-1, order="A").view(np.uint8)
        with zipfile.ZipFile(self.path) as archive, archive.open(self.member) as file:
            file.read(self.offset)
            for first in range(0, self.bytes, _PIECE_BYTES):
                piece = file.read(min(_PIECE_BYTES, self.bytes - first))
                octets[first : first + len(piece)] = np.frombuffer(piece, np.uint8)
                if len(piece) < min(_PIECE_BYTES, self.bytes - first):
                    raise GraphDataError(f"{self.path}: {self.member.filename} ends too early", "save the file again")
            file.read(1)  # reaching the end verifies the checksum
        array.flags.writeable = False
        return array


def open_arrays(path: Path, wanted: frozenset[str] | None = None) -> dict[str, StoredArray]:
    """The arrays of an .npz file, by name, none of them read yet.

    Args:
        path: the file.
        wanted: names of the arrays to open; None for all.

    Raises:
        GraphDataError: it is not such a file, an array holds objects, or the arrays do not fit into memory.
    """
    with zipfile.ZipFile(path) as archive:
        named = ((info.filename.removesuffix(".npy"), info) for info in archive.infolist())
        arrays = {name: _opened(path, archive, info) for name, info in named if wanted is None or name in wanted}
    unpacked = sum(array.bytes for array in arrays.values() if not array.is_mapped)
    room = available_bytes()
    if unpacked > room:
        raise GraphDataError(
            f"{path}: its arrays unpack to {size_text(unpacked)}, but {size_text(room)} of memory is free",
            "use a machine with more memory",
        )
    return arrays


def forms_in(path: Path) -> Iterator[tuple[str, StoredArray | None]]:
    """The names of all arrays of an .npz file, each with the array, or with None if it cannot be opened."""
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            try:
                array = _opened(path, archive, info)
            except (GraphDataError, *DAMAGED):
                array = None
            yield info.filename.removesuffix(".npy"), array


def _opened(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> StoredArray:
    name = info.filename
    with archive.open(info) as file:
        try:
            version = np.lib.format.read_magic(file)
        except ValueError:
            raise GraphDataError(
                f"{path}: {name} is not an array of numpy's", "save edge_index, [2, E], with numpy.savez"
            ) from None
        if version not in _HEADERS:
            raise GraphDataError(f"{path}: {name} has version {version} of numpy's format", "save it with numpy.savez")
        shape, by_columns, dtype = _HEADERS[version](file)
        array = StoredArray(path, info, tuple(map(int, shape)), dtype, by_columns, file.tell())
    if dtype.hasobject:
        raise GraphDataError(f"{path}: {name} holds Python objects, which are never loaded", "save arrays of numbers")
    if array.offset + array.bytes != info.file_size:
        raise GraphDataError(
            f"{path}: {name} should have {array.bytes} bytes of elements, but has {info.file_size - array.offset}",
            "the file is damaged; save it again",
        )
    return array


def _data_offset(path: Path, info: zipfile.ZipInfo) -> int:
    """The offset of an entry's bytes in the file, which depends on the lengths of the fields in its local header."""
    with path.open("rb") as file:
        file.seek(info.header_offset)
        header = file.read(_LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size or header[:4] != b"PK\x03\x04":
        raise GraphDataError(f"{path}: {info.filename} has no local header", "the file is damaged; save it again")
    *_, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
    begin: int = info.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes
    if begin + info.file_size > path.stat().st_size:
        raise GraphDataError(f"{path}: {info.filename} ends too early", "the file is damaged; save it again")
    return begin


def write_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Writes arrays by name in a form that can be mapped; the same arrays give the same bytes.

    Raises:
        OutputError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        _write(temporary, arrays)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OutputError(f"cannot write {path}: {error.strerror or error}", "choose another file") from None


def _write(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            info = zipfile.ZipInfo(f"{name}.npy")
            assert archive.fp is not None
            info.extra = _padding(archive.fp.tell() + _LOCAL_HEADER.size + len(info.filename))
            with archive.open(info, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def _padding(begin: int) -> bytes:
    """An extra field that aligns an entry's bytes, which makes mapped arrays faster; `begin` is their offset without
    it.

    The length of numpy's own header is a multiple of the alignment; zipfile adds 20 bytes for 64-bit sizes.
    """
    length = -(begin + 20 + 4) % _ALIGNMENT
    return struct.pack("<HH", _PADDING_TAG, length) + bytes(length)


DAMAGED = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)
"""The exceptions that reading a damaged file, or one that is not an .npz file, may raise."""
