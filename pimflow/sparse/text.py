"""Graphs as text: edge lists and MatrixMarket files, plain or gzip."""

from __future__ import annotations

import gzip
import io
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from pimflow.errors import GraphDataError
from pimflow.sparse import checks
from pimflow.sparse.checks import Ints
from pimflow.sparse.forms import Edges, Progress, check_memory

MATRIX_MARKET = b"%%MatrixMarket"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
GZIP = b"\x1f\x8b"

_PIECE_BYTES = 1 << 24
_BLANKS = bytes.maketrans(b",;\t\r", b"    ")
_COMMENT = re.compile(rb"(?:[#%]|//)[^\n]*")
_VERTICES = re.compile(rb"(?i)^\s*(?:[#%]|//).*?\b(?:num_)?nodes\b\s*[:=]?\s*(\d+)", re.MULTILINE)
_WEIGHT = re.compile(rb"""\{[^{}\n]*?['"]weight['"]: *(?:np\.\w+\()?([-+.\w]+)\)?[^{}\n]*\}(?=\s*$)""", re.MULTILINE)
_ATTRIBUTES = re.compile(rb"\{[^{}\n]*\}(?=\s*$)", re.MULTILINE)
"""What networkx.write_edgelist adds to an edge: its attributes as a dict, perhaps with a weight."""
_OTHER_FORM = re.compile(rb"(?i)\s*(?:[<({\[*]|>>|(?:strict\s+)?(?:di)?graph\b[^\n]*[\[{]|graph\s*\[)")
"""How XML, JSON, GML, DOT, Pajek and graph6 begin."""
_LINE_FEED = b"\n"
_NEWLINE, _DOT, _SPACE, _NINE = b"\n. 9"
_EDGES_WANTED = (
    "write a line with two vertex ids for every edge, or save edge_index, [2, E], with numpy.savez; "
    "networkx: write_edgelist(convert_node_labels_to_integers(graph), file)"
)


def read_text(path: Path, progress: Progress) -> Edges:
    """The edges in a text file, plain or gzip.

    A MatrixMarket file is recognised by its first line: entry [i, j] is an edge from i to j, its value the weight.
    Anything else is an edge list: one line per edge with source, destination and optionally a weight, separated by
    blanks or commas, or with the dict of attributes that networkx writes; its `weight` counts. Comments begin with #, %
    or //; one with `nodes: N` gives the number of vertices.

    Raises:
        GraphDataError: a line is neither.
        OSError, EOFError, zlib.error: the file cannot be read.
    """
    with _open(path) as file:
        head = file.read(len(MATRIX_MARKET))
    return _read_matrix(path, progress) if head.lower() == MATRIX_MARKET.lower() else _read_list(path, progress)


def _open(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        is_packed = file.read(len(GZIP)) == GZIP
    return gzip.open(path) if is_packed else path.open("rb")  # type: ignore[return-value]


def _read_matrix(path: Path, progress: Progress) -> Edges:
    from scipy.io import mmread

    # From 1.15 on, scipy has an option for which of its two interfaces to return; the attributes read here are the
    # same.
    which = {"spmatrix": False} if "spmatrix" in signature(mmread).parameters else {}
    with _open(path) as file:
        stated = _stated_entries(path, file)
        check_memory(stated, str(path))
    progress(f"reading {stated:,} entries of {path.name}")
    with _open(path) as file:
        try:
            matrix = mmread(io.BufferedReader(_TextFile(path, file), _PIECE_BYTES), **which)
        except (ValueError, OverflowError, IndexError) as error:
            raise GraphDataError(
                f"{path} is not a MatrixMarket file: {error}", "write it with scipy.io.mmwrite"
            ) from None
    num_src, num_dst = matrix.shape
    return Edges(matrix.row, matrix.col, num_src, num_dst, checks.matrix_weights(matrix.data))


class _TextFile(io.RawIOBase):
    """A text file that ends with a line feed.

    scipy 1.17 looks for the next line feed after a number that something follows, such as an exponent cut off, and
    crashes if it finds none before a null byte or the end of the file.
    """

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path, self._file, self._rest = path, file, _LINE_FEED

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """The next bytes of the file, then the line feed, then none.

        Raises:
            GraphDataError: it is not a text.
        """
        piece = self._file.read(len(buffer))
        if b"\0" in piece:
            raise _no_text(self._path)
        if not piece:
            piece, self._rest = self._rest, b""
        buffer[: len(piece)] = piece
        return len(piece)


def _stated_entries(path: Path, file: IO[bytes]) -> int:
    """The number of entries stated at the head of a MatrixMarket file, doubled if the matrix is symmetric."""
    words = file.readline(1000).decode("ascii", "replace").lower().split()
    if len(words) != 5 or words[1:3] != ["matrix", "coordinate"]:
        raise GraphDataError(
            f"{path}: its first line is {' '.join(words)!r}; a graph is a 'matrix coordinate'", "write it as sparse"
        )
    for line in iter(lambda: file.readline(1 << 16), b""):
        if line.strip() and not line.startswith(b"%"):
            sizes = line.split()
            if len(sizes) == 3 and all(size.isdigit() for size in sizes):
                return int(sizes[2]) * (1 if words[4] == "general" else 2)
            break
    raise GraphDataError(f"{path} does not say how many rows, columns and entries it has", "write it again")


@dataclass
class _EdgeList:
    """A partially read edge list."""

    where: str
    columns: int = 0  # columns of a line; 0 until the first edge is seen
    header: GraphDataError | None = None  # what is wrong with a line of column names if no edge follows
    lines: int = 0
    edges: int = 0
    ids: list[Ints] = field(default_factory=list)  # [edges of a piece, 2]
    weights: list[npt.NDArray[np.float64]] = field(default_factory=list)

    def add(self, piece: bytes) -> None:
        """Adds whole lines."""
        text = _ATTRIBUTES.sub(b" ", _WEIGHT.sub(rb" \1 ", piece)) if b"{" in piece else piece
        text = text.translate(_BLANKS)
        if b"#" in text or b"%" in text or b"/" in text:
            text = _COMMENT.sub(b"", text)
        if not self.columns:
            text = self._begin(text)
        if self.columns:
            self._add_numbers(text)
            check_memory(self.edges, self.where)
        self.lines += piece.count(b"\n")

    def _begin(self, text: bytes) -> bytes:
        """Finds the first edge, which determines the number of columns, and removes a header line before it."""
        lines = text.split(b"\n")
        for number, line in enumerate(lines):
            words = line.split()
            if words and any(_is_number(word) for word in words):
                if len(words) not in (2, 3):
                    hint = "write a source, a destination and maybe a weight"
                    raise self._ragged(text, number, len(words), hint)
                self.columns = len(words)
                break
            if words:
                refusal = self._refusal(number, _quoted(words[0]), _EDGES_WANTED)
                if self.header is not None:
                    raise refusal
                self.header = refusal
            lines[number] = b""
        return b"\n".join(lines)

    def _add_numbers(self, text: bytes) -> None:
        octets = np.frombuffer(text, np.uint8)
        filled = octets > _SPACE
        begins = filled.copy()
        begins[1:] &= ~filled[:-1]
        words = np.cumsum(begins, dtype=np.int32)  # how many words have begun, up to each character
        ends = np.flatnonzero(octets == _NEWLINE)
        per_line = np.diff(words[ends], prepend=np.int32(0))
        wrong = np.flatnonzero((per_line != self.columns) & (per_line != 0))
        if wrong.size:
            line = int(wrong[0])
            raise self._ragged(text, line, per_line[line], f"the lines before have {self.columns}")
        marked = np.flatnonzero((octets > _NINE) | (octets == _DOT))  # characters that do not occur in integers
        fractions = (words[marked] - 1) % self.columns < 2
        if fractions.any():
            self._refuse_word(octets, int(marked[np.argmax(fractions)]), "where a vertex id, an integer, should be")
        numbers = self._parse(text, marked.size > 0, int(words[-1]), octets, begins)
        self._take(numbers.reshape(-1, self.columns))

    def _parse(self, text: bytes, floats: bool, count: int, octets: Any, begins: Any) -> npt.NDArray[Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)
            try:
                numbers = np.fromstring(text, np.float64 if floats else np.int64, sep=" ")
            except (DeprecationWarning, ValueError):
                numbers = np.empty(0)
        if numbers.size != count:
            for begin in np.flatnonzero(begins):
                if not _is_number(bytes(octets[begin : begin + 400]).split()[0]):
                    self._refuse_word(octets, int(begin), "where a number should be")
        return numbers

    def _take(self, table: npt.NDArray[Any]) -> None:
        ids = table[:, :2]
        faults = np.flatnonzero(((ids < 0) | (ids >= checks.MAX_VERTICES)).any(axis=1))
        if faults.size:
            edge = int(faults[0])
            self._refuse_edge(self.edges + edge, ids[edge])
        self.ids.append(ids.astype(np.int32))
        if self.columns == 3:
            self.weights.append(table[:, 2].astype(np.float64))
        self.edges += len(table)

    def _refuse_edge(self, edge: int, pair: Any) -> None:
        src, dst = (int(number) for number in pair)
        bounds = f"vertices are numbered from 0 to {checks.MAX_VERTICES - 1}"
        raise GraphDataError(f"{self.where}: edge {edge} goes from {src} to {dst}; {bounds}")

    def _refusal(self, line: int, found: str, hint: str) -> GraphDataError:
        return GraphDataError(f"{self.where}, line {self.lines + line + 1}: {found} where an edge should be", hint)

    def _ragged(self, text: bytes, line: int, count: int, hint: str) -> GraphDataError:
        """The error about a line with another number of columns, which says what the file may be instead.

        Args:
            text: whole lines, of which the line is one.
            line: its index.
            count: its number of columns.
            hint: what to say if the file seems to be an edge list.
        """
        other = "" if self.edges else _other_list(text)
        return self._refusal(line, _numbers(count), f"the file seems to be {other}; {_EDGES_WANTED}" if other else hint)

    def _refuse_word(self, octets: Any, place: int, what: str) -> None:
        line = int(np.count_nonzero(octets[:place] == _NEWLINE))
        begin = place - len(bytes(octets[max(place - 400, 0) : place + 1]).split()[-1]) + 1
        word = _quoted(bytes(octets[begin : begin + 400]).split()[0])
        raise GraphDataError(f"{self.where}, line {self.lines + line + 1}: {word} {what}", "correct the line")


def _read_list(path: Path, progress: Progress) -> Edges:
    found = _EdgeList(str(path))
    stated: int | None = None
    total = path.stat().st_size
    for done, piece in _whole_lines(path):
        if not found.lines:
            if b"\0" in piece[:4096]:
                raise _no_text(path)
            if _OTHER_FORM.match(_COMMENT.sub(b"", piece[:4096])):
                raise _no_text(path, "an edge list")
            match = _VERTICES.search(piece[:65536])
            stated = int(match.group(1)) if match else None
        found.add(piece)
        progress(f"reading {path.name}: {100 * min(done / total, 1.0):.0f} %, {found.edges:,} edges")
    if not found.edges and stated is None:
        raise found.header or GraphDataError(f"{path} has no edges", _EDGES_WANTED)
    src, dst = (_joined([ids[:, side] for ids in found.ids], np.int32) for side in (0, 1))
    found.ids.clear()
    weight = checks.matrix_weights(_joined(found.weights, np.float64)) if found.columns == 3 else None
    largest = max(int(src.max(initial=-1)), int(dst.max(initial=-1)))
    vertices = stated if stated is not None and stated > largest else None
    return Edges(src, dst, vertices, vertices, weight)


def _other_list(text: bytes) -> str:
    """Which form of a graph with a line for every vertex a text is in; "" if it seems to be none."""
    lines = [line.split() for line in text.rstrip().split(b"\n")]
    while lines and not lines[0]:
        del lines[0]
    head, *others = lines
    filled = [words for words in lines if words]
    if not all(word.isdigit() for words in filled for word in words):
        return ""
    if 2 <= len(head) <= 4 and sum(map(bool, others)) <= int(head[0]) <= len(others) + 1:
        ends = sum(map(len, others))
        if len(head) > 2 or ends == 2 * int(head[1]):
            return "a METIS graph"
    is_adjacency = len(filled) > 2 and len({words[0] for words in filled}) == len(filled)
    return "a list of neighbours by vertex" if is_adjacency else ""


def _no_text(path: Path, form: str = "text") -> GraphDataError:
    return GraphDataError(f"{path} is neither {form} nor an .npz file", _EDGES_WANTED)


def _joined(pieces: list[Any], dtype: Any) -> npt.NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *pieces])


def _whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The file in chunks of whole lines, each with the number of bytes of the file read so far."""
    with path.open("rb") as raw, _unpacked(raw) as file:
        rest = file.read(len(BYTE_ORDER_MARK)).removeprefix(BYTE_ORDER_MARK)
        while piece := file.read(_PIECE_BYTES):
            lines, newline, tail = piece.rpartition(b"\n")
            if newline:
                yield raw.tell(), rest + lines + newline
                rest = tail
            else:
                rest += piece
            if len(rest) > _PIECE_BYTES:
                raise GraphDataError(f"{path} has a line of over {_PIECE_BYTES} characters", _EDGES_WANTED)
        if rest:
            yield raw.tell(), rest + b"\n"


def _unpacked(raw: IO[bytes]) -> IO[bytes]:
    is_packed = raw.read(len(GZIP)) == GZIP
    raw.seek(0)
    return gzip.GzipFile(fileobj=raw) if is_packed else raw  # type: ignore[return-value]


def _quoted(word: bytes) -> str:
    return repr(word[:40].decode("utf-8", "replace"))


def _numbers(count: int) -> str:
    return "1 number" if count == 1 else f"{count} numbers"


def _is_number(word: bytes) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
