"""Published tables of measured kernels: every format, and errors in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from pimflow.errors import InputDataError
from pimflow.ir import Conv2d, Elementwise, Gemm, OnnxOp
from pimflow.runtime.gpu.measured import table_text
from pimflow.runtime.gpu.published import read_rows
from pimflow.runtime.gpu.work import MatrixWork, gpu_work

DATA = Path(__file__).parent.parent.parent / "data" / "measured"


def write(folder: Path, name: str, *lines: str) -> Path:
    path = folder / name
    path.write_text("\n".join(("# NVIDIA X1, cuDNN 9; somewhere", *lines)) + "\n")
    return path


def test_every_shipped_table_is_read() -> None:
    counts = {path.stem: len(read_rows(path)) for path in DATA.glob("*.csv")}
    assert counts == {
        "t4_fp16_conv": 47,
        "t4_fp16_gemm": 79,
        **{f"t4_fp32_{op}": 300 for op in ("add", "bmm", "conv", "linear", "ln", "relu", "softmax")},
        "h200-fp16": 810,
        "h200-fp32": 453,
        "h200-models": 246,
    }
    for board in ("T4", "H200"):
        tables = DATA.glob(f"{board.lower()}*.csv")
        assert {row.machine for path in tables for row in read_rows(path)} == {f"NVIDIA {board}"}


def test_a_column_major_product_is_the_transposed_one(tmp_path: Path) -> None:
    """C = A B of column-major matrices: 35 x 8457 from 1760, A stored transposed."""
    header = "m,n,k,trans_a,trans_b,us"
    rows = read_rows(write(tmp_path, "x1_fp16_gemm.csv", header, "35,8457,1760,T,N,149.0", "35,8457,1760,N,T,149.0"))
    assert rows[0].op == Gemm(trans_b=True)
    assert rows[0].inputs == ((8457, 1760), (35, 1760))
    assert rows[1].op == Gemm(trans_a=True)
    assert rows[1].inputs == ((1760, 8457), (1760, 35))
    assert all(row.outputs == ((8457, 35),) for row in rows)
    assert (rows[0].dtype, rows[0].machine, rows[0].versions) == ("float16", "NVIDIA X1", "cuDNN 9; somewhere")
    for row in rows:
        work = gpu_work(row.op, *row.values(), 2)
        assert isinstance(work, MatrixWork)
        assert (work.m, work.n, work.k) == (8457, 35, 1760)


def test_what_the_columns_of_products_mean(tmp_path: Path) -> None:
    """NeuSight's n is the summed dimension, and a linear layer has a bias."""
    batched = read_rows(write(tmp_path, "x1_fp32_bmm.csv", "us,b,m,n,k", "39.0,32,54,36,3"))[0]
    assert (batched.inputs, batched.outputs) == (((32, 54, 36), (32, 36, 3)), ((32, 54, 3),))
    linear = read_rows(write(tmp_path, "x1_fp32_linear.csv", "us,b,m,n,k", "39.0,1,54,36,3"))[0]
    assert linear.op == Gemm(trans_b=True)
    assert (linear.inputs, linear.outputs) == (((54, 36), (3, 36), (3,)), ((54, 3),))


def test_convolutions(tmp_path: Path) -> None:
    header = "width,height,in_channels,batch,out_channels,kernel_w,kernel_h,pad_w,pad_h,stride_w,stride_h,forward_us"
    row = read_rows(write(tmp_path, "x1_fp16_conv.csv", header, "700,161,1,16,32,20,5,0,0,2,2,4161.0"))[0]
    assert row.op == Conv2d((5, 20), (2, 2), (0, 0, 0, 0))
    assert (row.inputs, row.outputs) == (((16, 1, 161, 700), (32, 1, 5, 20)), ((16, 32, 79, 341),))
    header = "us,b,input_channel,output_channel,kernel_size,input_size,stride,padding"
    row = read_rows(write(tmp_path, "x1_fp32_conv.csv", header, "764.8,2,17,11,3,12,1,1"))[0]
    assert row.op == Conv2d((3, 3), (1, 1), (1, 1, 1, 1))
    assert (row.inputs, row.outputs) == (((2, 17, 12, 12), (11, 17, 3, 3)), ((2, 11, 12, 12),))


def test_kernels_over_rows(tmp_path: Path) -> None:
    ops = {}
    for name in ("relu", "add", "softmax", "ln"):
        row = read_rows(write(tmp_path, f"x1_fp32_{name}.csv", "us,b,h", "31.5,20,30"))[0]
        assert row.outputs == ((20, 30),)
        ops[name] = (row.op, len(row.inputs))
    assert ops["relu"] == (Elementwise("Relu"), 1)
    assert ops["add"] == (Elementwise("Add"), 2)
    assert isinstance(ops["softmax"][0], OnnxOp)
    assert ops["ln"][1] == 3


def test_a_table_of_pimflow_is_read_under_any_name(tmp_path: Path) -> None:
    rows = read_rows(DATA / "t4_fp16_gemm.csv")
    for name in ("mine.csv", "my_fp16_gemm.csv"):
        path = tmp_path / name
        path.write_text(table_text(rows))
        assert [row.key for row in read_rows(path)] == [row.key for row in rows]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("us,b", "31.5,20"), r"line 2: missing column h"),
        (("us,b,h", "31.5,20,x"), r"line 3: 'x' is not a number"),
        (("us,b,h", "31.5,20,30", "31.5,20"), r"line 4: None is not a number"),
        (("us,b,h", "nan,20,30"), r"line 3: 'nan' is not a number"),
        (("us,b,h",), r"has no rows"),
    ],
)
def test_errors_are_named(tmp_path: Path, lines: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputDataError, match=message):
        read_rows(write(tmp_path, "x1_fp32_relu.csv", *lines))


def test_a_missing_file() -> None:
    with pytest.raises(InputDataError, match=r"cannot read absent_fp32_relu\.csv"):
        read_rows("absent_fp32_relu.csv")
