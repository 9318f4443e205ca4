"""Tables of measured kernel times: `pimflow profile` writes them, and they can replace the GPU model's times.

The file is CSV with the columns of `COLUMNS`, in any order and possibly with others, and one kernel per row. Shapes are
written `1x3x224x224`, several separated by `;` (an absent optional input is empty, a scalar is `scalar`). An op's
attributes are a JSON object of its fields. `op`, shapes and attributes together identify a kernel; a bias is ignored.
If the time of an op depends on the elements of constants, the attributes include their digests as `content`.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pimflow.data import decode, encode, read_file
from pimflow.errors import DataError, InputDataError
from pimflow.ir import OnnxOp, Op, OpaqueAttribute, Shape, Value
from pimflow.ir.analysis.content import Content
from pimflow.ir.ops.base import op_of_onnx_name
from pimflow.ir.ops.contraction import Contraction
from pimflow.records import dataclass

_MAX_DIGITS = 18


@dataclass(frozen=True)
class MeasuredRow:
    """One kernel's time: the median over its runs, in microseconds, and where it was measured.

    `content` holds the digests of constants that the time depends on (`ir.analysis.content`).
    """

    op: Op
    inputs: tuple[Shape | None, ...]
    outputs: tuple[Shape, ...]
    dtype: str
    time_us: float
    machine: str = ""
    versions: str = ""
    content: Content = ()

    @property
    def key(self) -> KernelKey:
        """The key that identifies the kernel."""
        return kernel_key(self.op, self.inputs, self.content)

    def values(self) -> tuple[list[Value | None], list[Value]]:
        """Operands and results as values, for the cost model."""
        inputs = [None if shape is None else Value(f"in{i}", shape, self.dtype) for i, shape in enumerate(self.inputs)]
        return inputs, [Value(f"out{i}", shape, self.dtype) for i, shape in enumerate(self.outputs)]


COLUMNS = ("op", "input_shapes", "output_shapes", "attributes", "dtype", "time_us", "machine", "versions")


class MeasuredTable:
    """Kernel times by op and shapes; the median if a kernel was measured several times."""

    def __init__(self, rows: Iterable[MeasuredRow]) -> None:
        times: dict[KernelKey, list[float]] = {}
        for row in rows:
            times.setdefault(row.key, []).append(row.time_us)
        from statistics import median  # imports fractions and decimal too

        self._times = {key: median(values) for key, values in times.items()}
        self._least: dict[str, float] = {}
        for (name, *_), time_us in self._times.items():
            self._least[name] = min(time_us, self._least.get(name, math.inf))

    def __len__(self) -> int:
        return len(self._times)

    @property
    def digest(self) -> str:
        """A digest of the content: equal for equal tables, whatever the order of their rows."""
        return hashlib.sha256(repr(sorted(self._times.items(), key=repr)).encode()).hexdigest()

    def time_us(self, op: Op, inputs: Sequence[Value | None], content: Content = ()) -> float | None:
        """The measured time of an op with these operand shapes and contents of constants, or None."""
        return self._times.get(kernel_key(op, [None if value is None else value.shape for value in inputs], content))

    def shortest_us(self, op: Op) -> float:
        """The shortest time of all kernels with an op's name; infinite if there is none."""
        return self._least.get(op.onnx_name, math.inf)


KernelKey = tuple[str, tuple["Shape | None", ...], str]


def kernel_key(op: Op, inputs: Sequence[Shape | None], content: Content = ()) -> KernelKey:
    """The key of a kernel: op, operand shapes (without a bias, which is fused), attributes and content."""
    operands = tuple(inputs[:2]) if isinstance(op, Contraction) else tuple(inputs)
    return op.onnx_name, operands, attributes_text(op, content)


def attributes_text(op: Op, content: Content = ()) -> str:
    """An op's fields as a JSON object with sorted keys; attributes that the compiler does not read are digests."""
    fields = {key: _plain(value) for key, value in op.attributes} if hasattr(op, "attributes") else encode(op)
    if content:
        fields["content"] = list(content)
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def _plain(value: object) -> object:
    if isinstance(value, OpaqueAttribute):
        return "sha256:" + hashlib.sha256(value.serialized).hexdigest()[:16]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value


def cells(row: MeasuredRow) -> dict[str, Any]:
    """A row by column, as text except for the time."""
    values = (
        row.op.onnx_name,
        ";".join(map(_shape_text, row.inputs)),
        ";".join(map(_shape_text, row.outputs)),
        attributes_text(row.op, row.content),
        row.dtype,
        row.time_us,
        row.machine,
        row.versions,
    )
    return dict(zip(COLUMNS, values, strict=True))


def table_text(rows: Iterable[MeasuredRow]) -> str:
    """Rows as CSV text."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow((cells(row) | {"time_us": f"{row.time_us:.3f}"}).values())
    return text.getvalue()


def read_table(path: str | Path) -> list[MeasuredRow]:
    """Reads rows from CSV.

    Raises:
        InputDataError: the file cannot be read, lacks a column, or a row is malformed (the message names the line).
    """
    try:
        text = read_file(path).decode("utf-8")
    except OSError as error:
        raise InputDataError(f"cannot read {path}: {error.strerror}", "check the path") from None
    except UnicodeDecodeError as error:
        raise InputDataError(f"cannot read {path}: {error}", "give a CSV file made by `pimflow profile`") from None
    reader = csv.DictReader(io.StringIO(text), strict=True)
    try:
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise InputDataError(
                f"{path}, line 1: missing column {', '.join(missing)}", "its header must name " + ",".join(COLUMNS)
            )
        rows = [_row(record, f"{path}, line {reader.line_num}") for record in reader]
    except csv.Error as error:
        raise InputDataError(f"{path}, line {reader.line_num + 1}: {error}", "correct the line") from None
    if not rows:
        raise InputDataError(f"{path} has no rows", "profile a model first: `pimflow profile MODEL -o FILE.csv`")
    return rows


def _row(record: Mapping[str, str | None], where: str) -> MeasuredRow:
    cells = {name: record[name] for name in COLUMNS}
    if None in cells.values() or None in record:  # csv: None for missing cells, surplus ones under key None
        raise InputDataError(f"{where}: wrong number of cells", "every row needs one cell per column")
    text = {name: str(value) for name, value in cells.items()}
    outputs = _shapes(text["output_shapes"], where)
    if None in outputs:
        raise InputDataError(f"{where}: an output has no shape", "write shapes as 1x3x224x224")
    inputs = _shapes(text["input_shapes"], where)
    op, content = _op(text["op"], text["attributes"], where)
    ranks = op.least_ranks
    if len(inputs) < len(ranks) or any(len(s or ()) < rank for s, rank in zip(inputs, ranks, strict=False)):
        raise InputDataError(
            f"{where}: operands {text['input_shapes']!r} do not fit {text['op']}", "correct the shapes"
        )
    return MeasuredRow(
        op=op,
        inputs=inputs,
        outputs=tuple(shape for shape in outputs if shape is not None),
        dtype=text["dtype"],
        time_us=_time(text["time_us"], where),
        machine=text["machine"],
        versions=text["versions"],
        content=content,
    )


def _time(text: str, where: str) -> float:
    try:
        time_us = float(text)
    except ValueError:
        time_us = math.nan
    if not 0 < time_us < math.inf:
        raise InputDataError(f"{where}: time_us is {text!r}", "it must be a positive number")
    return time_us


def _shape_text(shape: Shape | None) -> str:
    if shape is None:
        return ""
    return "x".join(map(str, shape)) if shape else "scalar"


def _shapes(text: str, where: str) -> tuple[Shape | None, ...]:
    return tuple(_shape(part.strip(), where) for part in text.split(";"))


def _shape(text: str, where: str) -> Shape | None:
    if text == "":
        return None
    if text == "scalar":
        return ()
    parts = text.split("x")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise InputDataError(f"{where}: {text!r} is not a shape", "write shapes as 1x3x224x224")
    if any(len(part) > _MAX_DIGITS for part in parts):
        raise InputDataError(f"{where}: {text[:40]!r}... has an impossibly large size", "correct the shape")
    return tuple(int(part) for part in parts)


def _op(name: str, attributes: str, where: str) -> tuple[Op, Content]:
    try:
        fields = json.loads(attributes)
    except (ValueError, RecursionError) as error:
        raise InputDataError(f"{where}: attributes are not JSON: {error}", "write {} if there are none") from None
    if not isinstance(fields, dict) or not name:
        raise InputDataError(f"{where}: op or attributes missing", "write {} if an op has no attributes")
    kind: type[Any] | None = op_of_onnx_name(name)
    if kind is None:
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
        return OnnxOp(name, attributes=tuple(sorted(values.items()))), ()
    try:
        content: Content = ()
        if kind.content_operands:
            content = decode(tuple[str | None, ...], fields.pop("content", None), path="content")
        op: Op = decode(kind, fields)
    except DataError as error:
        raise InputDataError(f"{where}: attributes of {name} are {attributes}: {error.what}", error.hint) from None
    return op, content
