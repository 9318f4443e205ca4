"""Tables of measured times: round trips, lookups, and errors that name the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pimflow.errors import InputDataError
from pimflow.ir import Conv2d, Elementwise, Gemm, GlobalPool, MatMul, OnnxOp, Op, Pad, Pool2d, Transpose, Value
from pimflow.runtime.gpu.measured import COLUMNS, MeasuredRow, MeasuredTable, read_table, table_text

CONV = Conv2d((3, 3), (2, 2), (1, 1, 1, 1), groups=2)
ROWS = [
    MeasuredRow(CONV, ((1, 8, 9, 9), (4, 4, 3, 3), (4,)), ((1, 4, 5, 5),), "float16", 12.5, "GPU x", "lib 1, lib 2"),
    MeasuredRow(Gemm(alpha=0.5, trans_b=True), ((1, 8), (4, 8)), ((1, 4),), "float16", 3.25),
    MeasuredRow(MatMul(), ((2, 8, 4), (4, 3)), ((2, 8, 3),), "float32", 1.125),
    MeasuredRow(Pool2d("average", (2, 2), count_include_pad=True), ((1, 2, 4, 4),), ((1, 2, 3, 3),), "float32", 1.0),
    MeasuredRow(GlobalPool("max"), ((1, 2, 4, 4),), ((1, 2, 1, 1),), "float32", 1.0),
    MeasuredRow(Pad((0, 1), (1, 0), 0.5), ((2, 2),), ((3, 3),), "float32", 1.0),
    MeasuredRow(Transpose((1, 0)), ((2, 3),), ((3, 2),), "float32", 1.0),
    MeasuredRow(OnnxOp("Clip", attributes=(("max", 6.0), ("min", 0.0))), ((4,), None, ()), ((4,),), "float32", 0.75),
]


def test_round_trip(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(table_text(ROWS))
    assert read_table(tmp_path / "t.csv") == ROWS
    assert table_text(read_table(tmp_path / "t.csv")) == (tmp_path / "t.csv").read_text()


def values(*shapes: tuple[int, ...]) -> list[Value | None]:
    return [Value("v", shape) for shape in shapes]


def test_look_up_by_op_attributes_and_shapes() -> None:
    table = MeasuredTable(ROWS)
    shapes = ((1, 8, 9, 9), (4, 4, 3, 3))
    assert len(table) == len(ROWS)
    assert table.time_us(CONV, values(*shapes)) == 12.5
    assert table.time_us(CONV, values(*shapes, (4,))) == 12.5  # a bias is fused
    others: list[tuple[Op, tuple[tuple[int, ...], ...]]] = [
        (Conv2d((3, 3), (2, 2), (1, 1, 1, 1)), shapes),
        (CONV, ((1, 8, 9, 10), (4, 4, 3, 3))),
        (Elementwise("Relu"), shapes[:1]),
    ]
    assert [table.time_us(op, values(*found)) for op, found in others] == [None] * 3


def test_elementwise_is_found_under_its_onnx_name() -> None:
    row = MeasuredRow(OnnxOp("Relu"), ((4,),), ((4,),), "float32", 2.0)
    assert MeasuredTable([row]).time_us(Elementwise("Relu"), values((4,))) == 2.0


def test_the_median_of_repeated_measurements_counts() -> None:
    rows = [MeasuredRow(MatMul(), ((2, 2), (2, 2)), ((2, 2),), "float32", time) for time in (1.0, 9.0, 2.0)]
    assert MeasuredTable(rows).time_us(MatMul(), values((2, 2), (2, 2))) == 2.0


def test_digest_depends_on_content_alone() -> None:
    assert MeasuredTable(ROWS).digest == MeasuredTable(ROWS[::-1]).digest != MeasuredTable(ROWS[1:]).digest


HEADER = ",".join(COLUMNS)
GOOD = 'Conv,1x8x9x9;4x8x3x3,1x4x7x7,"{""kernel"":[3,3]}",float16,1.5,m,v'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: missing column op"),
        ("op,time_us\nConv,1\n", "line 1: missing column input_shapes"),
        (f"{HEADER}\n", "has no rows"),
        (f"{HEADER}\n{GOOD}\nConv,1x2\n", "line 3: wrong number of cells"),
        (f"{HEADER}\n{GOOD},surplus\n", "line 2: wrong number of cells"),
        (f"{HEADER}\n{GOOD.replace('1.5', 'fast')}\n", "line 2: time_us is 'fast'"),
        (f"{HEADER}\n{GOOD.replace('1.5', '-1')}\n", "line 2: time_us is '-1'"),
        (f"{HEADER}\n{GOOD.replace('1.5', 'nan')}\n", "line 2: time_us is 'nan'"),
        (f"{HEADER}\n{GOOD.replace('1.5', 'inf')}\n", "line 2: time_us is 'inf'"),
        (f"{HEADER}\n{GOOD.replace('1x8x9x9', '1x8xHxW')}\n", "line 2: '1x8xHxW' is not a shape"),
        (f"{HEADER}\n{GOOD.replace('1x8x9x9', '1x8')}\n", "line 2: operands '1x8;4x8x3x3' do not fit Conv"),
        (f"{HEADER}\n{GOOD.replace('1x4x7x7', '')}\n", "line 2: an output has no shape"),
        (f"{HEADER}\n{GOOD.replace('[3,3]}', '[3,3]')}\n", "line 2: attributes are not JSON"),
        (f"{HEADER}\n{GOOD.replace('[3,3]', '3')}\n", "line 2: attributes of Conv are"),
        (f"{HEADER}\n{GOOD.replace('[3,3]', '[3,3,3]')}\n", "line 2: attributes of Conv are"),
        (f"{HEADER}\n{GOOD.replace('kernel', 'kernels')}\n", "line 2: attributes of Conv are"),
        (f'{HEADER}\n{GOOD}\n"Conv,1', "line 3"),
        ('"op', "line 1: unexpected end of data"),
        (f"{HEADER}\n{'1' * 200_000}\n", "line 2: field larger than field limit"),
    ],
)
def test_malformed_tables_name_the_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(InputDataError) as caught:
        read_table(path)
    assert message in str(caught.value)
    assert "table.csv" in str(caught.value)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InputDataError, match="cannot read"):
        read_table(tmp_path / "missing.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00op")
    with pytest.raises(InputDataError, match="cannot read"):
        read_table(tmp_path / "binary.csv")


def test_columns_may_be_in_any_order_among_others(tmp_path: Path) -> None:
    names = [*reversed(COLUMNS), "note"]
    cells = dict(zip(COLUMNS, ["MatMul", "2x3;3x4", "2x4", "{}", "float32", "5", "", ""], strict=True)) | {"note": "hi"}
    (tmp_path / "t.csv").write_text(",".join(names) + "\n" + ",".join(cells[name] for name in names) + "\n")
    assert read_table(tmp_path / "t.csv") == [MeasuredRow(MatMul(), ((2, 3), (3, 4)), ((2, 4),), "float32", 5.0)]
