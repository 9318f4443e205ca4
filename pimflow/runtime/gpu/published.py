"""Reads published tables of measured kernels unchanged: DeepBench's and NeuSight's, recognised by their file names.

A file name ends in `_fp16_conv.csv` or the like: the element type, then the kind of kernel. The first line, which
starts with `#`, gives machine, versions and source. All other tables are read by `measured.read_table`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from pimflow.data import read_file
from pimflow.errors import InputDataError
from pimflow.ir import Conv2d, Elementwise, Gemm, OnnxOp, Op, Shape, window_out
from pimflow.ir.ops.contraction import PRODUCT
from pimflow.records import dataclass
from pimflow.runtime.gpu.measured import MeasuredRow, read_table

_DTYPES = {"fp16": "float16", "fp32": "float32"}
_NAME = re.compile(r".*_(fp16|fp32)_([a-z]+)\.csv")
Kernel = tuple[Op, tuple[Shape, ...], Shape]
"""An op, its operands and its result."""


@dataclass(frozen=True)
class _Table:
    """The format of a published table: the columns with a kernel's sizes and its time in us, and the kernel."""

    sizes: tuple[str, ...]
    time: str
    kernel: Callable[..., Kernel]
    transposes: tuple[str, ...] = ()  # columns that hold N or T


def read_rows(path: str | Path) -> list[MeasuredRow]:
    """The rows of a published table, or of one written by `pimflow profile`.

    Raises:
        InputDataError: the file cannot be read, lacks a column, or a row is malformed (the message names the line).
    """
    match = _NAME.fullmatch(Path(path).name)
    table = _TABLES.get((match[1], match[2])) if match else None
    if match is None or table is None:
        return read_table(path)
    try:
        text = read_file(path).decode("utf-8")
    except OSError as error:
        raise InputDataError(f"cannot read {path}: {error.strerror}", "check the path") from None
    except UnicodeDecodeError as error:
        raise InputDataError(f"cannot read {path}: {error}", "check the path") from None
    source, _, body = text.partition("\n")
    if not source.startswith("#"):
        return read_table(path)
    machine, _, versions = source.lstrip("# ").partition(",")
    reader = csv.DictReader(io.StringIO(body))
    columns = (*table.sizes, *table.transposes, table.time)
    dtype = _DTYPES[match[1]]
    rows = []
    try:
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            hint = f"it has {', '.join(table.sizes)}"
            raise InputDataError(f"{path}, line 2: missing column {', '.join(missing)}", hint)
        for record in reader:
            where = f"{path}, line {reader.line_num + 1}"
            op, inputs, output = _kernel(table, record, where)
            time_us = _number(record[table.time], where)
            rows.append(MeasuredRow(op, inputs, (output,), dtype, time_us, machine.strip(), versions.strip()))
    except csv.Error as error:
        raise InputDataError(f"{path}, line {reader.line_num + 2}: {error}", "correct the line") from None
    if not rows:
        raise InputDataError(f"{path} has no rows", "give a table with measured kernels")
    return rows


def _kernel(table: _Table, record: Mapping[str, str], where: str) -> Kernel:
    sizes = [round(_number(record[name], where)) for name in table.sizes]
    flags = [record[name] == "T" for name in table.transposes]
    return table.kernel(*sizes, *flags)


def _number(text: str | None, where: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise InputDataError(f"{where}: {text!r} is not a number", "correct the line")
    return value


def _product(m: int, n: int, k: int, left: bool, right: bool) -> Kernel:
    """C[m, n] = A[m, k] B[k, n] with column-major matrices, which is C' = B' A' with row-major ones."""
    first = (k, n) if right else (n, k)
    second = (m, k) if left else (k, m)
    return Gemm(trans_a=right, trans_b=left), (first, second), (n, m)


def _batched(batch: int, m: int, n: int, k: int) -> Kernel:
    """[batch, m, n] times [batch, n, k]: the sum runs over n."""
    return PRODUCT, ((batch, m, n), (batch, n, k)), (batch, m, k)


def _linear(batch: int, m: int, n: int, k: int) -> Kernel:
    """A layer of k outputs with a bias over batch x m rows of n inputs."""
    return Gemm(trans_b=True), ((batch * m, n), (k, n), (k,)), (batch * m, k)


def _convolution(width: int, height: int, channels: int, images: int, filters: int, *window: int) -> Kernel:
    kw, kh, pw, ph, sw, sh = window
    op = Conv2d((kh, kw), (sh, sw), (ph, pw, ph, pw))
    out = (window_out(height, kh, sh, ph, ph, 1), window_out(width, kw, sw, pw, pw, 1))
    return op, ((images, channels, height, width), (filters, channels, kh, kw)), (images, filters, *out)


def _square_convolution(images: int, channels: int, filters: int, side: int, size: int, step: int, pad: int) -> Kernel:
    return _convolution(size, size, channels, images, filters, side, side, pad, pad, step, step)


def _rows_kernel(op: Op, operands: int = 1) -> Callable[[int, int], Kernel]:
    """An op on one or more matrices of the same shape."""
    return lambda rows, columns: (op, ((rows, columns),) * operands, (rows, columns))


def _layer_norm(rows: int, columns: int) -> Kernel:
    op = OnnxOp("LayerNormalization", attributes=(("axis", -1),))
    return op, ((rows, columns), (columns,), (columns,)), (rows, columns)


_BHW = ("b", "h")
_CONV_SIZES = (
    *("width", "height", "in_channels", "batch", "out_channels"),
    *("kernel_w", "kernel_h", "pad_w", "pad_h", "stride_w", "stride_h"),
)
_TABLES: Mapping[tuple[str, str], _Table] = {
    ("fp16", "conv"): _Table(
        _CONV_SIZES,
        "forward_us",
        _convolution,
    ),
    ("fp16", "gemm"): _Table(("m", "n", "k"), "us", _product, ("trans_a", "trans_b")),
    ("fp32", "bmm"): _Table(("b", "m", "n", "k"), "us", _batched),
    ("fp32", "linear"): _Table(("b", "m", "n", "k"), "us", _linear),
    ("fp32", "conv"): _Table(
        ("b", "input_channel", "output_channel", "kernel_size", "input_size", "stride", "padding"),
        "us",
        _square_convolution,
    ),
    ("fp32", "relu"): _Table(_BHW, "us", _rows_kernel(Elementwise("Relu"))),
    ("fp32", "add"): _Table(_BHW, "us", _rows_kernel(Elementwise("Add"), 2)),
    ("fp32", "softmax"): _Table(_BHW, "us", _rows_kernel(OnnxOp("Softmax", attributes=(("axis", -1),)))),
    ("fp32", "ln"): _Table(_BHW, "us", _layer_norm),
}
"""Table formats by element type and kind of kernel."""
