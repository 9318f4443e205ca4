"""Measures on a machine with an NVIDIA GPU what pimflow's targets describe and what its cost models predict.

    python benchmarks/on_gpu/measure.py OUT [SECTION ...]     # needs PyTorch with CUDA, nvcc and nvidia-ml-py

A section writes OUT/SECTION.json, or tables of kernels OUT/*.csv that `pimflow calibrate` reads. Nothing here uses
pimflow's cost models; only what they are compared with is measured. What it gave on an H200 is in
tests/data/measured: h200.json was put together from the sections, and has neither `places` nor `gradients`, which were
written later; `rows` and `beside` have become more detailed since.

| section | what |
|---|---|
| links | reads of rows over the link by the GPU, copies, the round trip |
| places | the same reads by the size of the table |
| counted | the same reads, for a profiler to count requests and sectors: see below |
| host | gathers by the CPU, copies from pageable memory as PyTorch does them, how long its threads stay awake |
| launches | kernels queued, in a graph, and waited for |
| power | of the board: idle, copying, reading over the link, multiplying |
| beside | kernels beside copies over the link |
| rows | rows read by index from the GPU's memory, products with sparse matrices |
| epochs | mini-batches of GraphSAGE, for every placement of the features |
| training | activations and times of training steps |
| gradients | gradients of convolutions by weights and inputs |
| kernels | kernels of random shapes, and of models from the zoo |
| models | whole models as one graph of kernels |

Hardware counters of `counted` (the file in tests/data/measured has their sums):

    ncu --csv --page raw -k regex:read_rows --metrics lts__t_requests_srcunit_tex_aperture_sysmem_op_read.sum,\\
lts__t_sectors_srcunit_tex_aperture_sysmem_op_read.sum,pcie__read_bytes.sum python measure.py OUT counted
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from common import Board, event_times_us, library, rows_of, seconds_of, table_of

TABLE_BYTES = 4 << 30
ROW_BYTES = (128, 256, 400, 512, 516, 1024, 1172, 1372, 2048, 2052, 2408, 3200, 4096)


def read_us(
    lib: ctypes.CDLL,
    table: int,
    result: int,
    seed: int,
    row_bytes: int,
    count: int,
    rotated: bool,
    shape: tuple[int, int],
) -> float:
    """The time of reading `count` random rows of the large table, with a grid of (blocks, threads)."""
    import torch

    index = torch.from_numpy(rows_of(count, TABLE_BYTES // row_bytes, seed)).cuda()
    torch.cuda.synchronize()
    ms = lib.read_rows_ms(result, table, index.data_ptr(), count, row_bytes // 4, rotated, *shape)
    return float(ms) * 1e3


def links(out: Path) -> Any:
    """Reads of rows, copies and latencies."""
    import torch

    lib = library()
    table, _ = table_of(lib, TABLE_BYTES)
    written = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    result = written.data_ptr()
    found: dict[str, Any] = {"reads": [], "copies": [], "partial": []}
    for row_bytes in ROW_BYTES:
        for count in (64, 1024, 16384, (64 << 20) // row_bytes):
            for rotated in (False, True):
                fixed = (row_bytes, count, rotated, (0, 256))
                times = [read_us(lib, table, result, seed, *fixed) for seed in range(6)]
                found["reads"].append({"row_bytes": row_bytes, "rows": count, "rotated": rotated, "us": times[1:]})
    for blocks in (1, 2, 4, 8, 13, 26, 52, 132, 264, 528):
        times = [read_us(lib, table, result, seed, 2048, 16384, False, (blocks, 1024)) for seed in range(4)]
        found["partial"].append({"blocks": blocks, "threads": 1024, "bytes": 2048 * 16384, "us": times[1:]})
    pageable = np.zeros(256 << 20, np.uint8)
    for size in (4, 4096, 65536, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20):
        repeats = 5 if size > 1 << 24 else 25
        found["copies"].append(
            {
                "bytes": size,
                "pinned_us": lib.copy_us(result, table, size, repeats),
                "pageable_us": lib.copy_us(result, pageable.ctypes.data, size, repeats),
                "back_us": lib.copy_us(table, result, size, repeats),
            }
        )
    found["round_trip_ns"] = lib.round_trip_ns(table, TABLE_BYTES // 8, 4099 * 16 + 1, 4000)
    return found


def places(out: Path) -> Any:
    """Reads of rows by the size of the table, which the GPU's address translation may not cover."""
    import torch

    lib = library()
    most = 1 << 34
    table = lib.host_memory(most)
    written = torch.empty(128 << 20, dtype=torch.uint8, device="cuda")
    found: list[dict[str, Any]] = []
    for row_bytes in (32, 64, *ROW_BYTES):
        aligned = row_bytes in (128, 512, 2048)
        for exponent in range(26, 35) if aligned else (28,):
            count, table_rows = (32 << 20) // row_bytes, (1 << exponent) // row_bytes
            for rotated in (False,) if aligned else (False, True):
                times = []
                for seed in range(6):
                    index = torch.from_numpy(rows_of(count, table_rows, seed)).cuda()
                    torch.cuda.synchronize()
                    shape = (count, row_bytes // 4, rotated, 0, 256)
                    times.append(lib.read_rows_ms(written.data_ptr(), table, index.data_ptr(), *shape) * 1e3)
                record = {"row_bytes": row_bytes, "rows": count, "table_bytes": 1 << exponent, "rotated": rotated}
                found.append(record | {"us": times[1:]})
    return found


def counted(out: Path) -> Any:
    """Reads of rows for a profiler to count: the order is that of the result, each checked against the table."""
    lib = library()
    table, _ = table_of(lib, 1 << 28)
    found = []
    for row_bytes in ROW_BYTES:
        for rotated in (False, True):
            index = rows_of(8192, (1 << 28) // row_bytes, 7)
            wrong = ctypes.c_int64(-1)
            lib.checked_rows_ms(table, index.ctypes.data, len(index), row_bytes // 4, rotated, ctypes.addressof(wrong))
            found.append({"row_bytes": row_bytes, "rotated": rotated, "rows": len(index), "wrong": wrong.value})
    return found


def gathered(rows: Any, index: Any, locked: Any) -> tuple[float, float, float, float]:
    """Seconds of a gather into page-locked memory, into new memory, of its copy, and of both as users write them."""
    import torch

    into = locked[: index.numel() * rows.shape[1]].view(-1, rows.shape[1])
    fixed = seconds_of(lambda: torch.index_select(rows, 0, index, out=into))
    made: list[Any] = []
    fresh = seconds_of(lambda: made.append(torch.index_select(rows, 0, index)))
    torch.cuda.synchronize()
    copied = seconds_of(lambda: (made[0].to("cuda"), torch.cuda.synchronize()))
    both = seconds_of(lambda: (rows[index].to("cuda"), torch.cuda.synchronize()))
    return fixed, fresh, copied, both


def host(out: Path) -> Any:
    """The CPU's part: gathers, copies as PyTorch does them, threads that stay awake."""
    import torch

    found: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "gathers": [],
        "openmp": torch.__config__.parallel_info(),
    }
    size = TABLE_BYTES
    table = torch.empty(size // 4).uniform_()
    locked = torch.empty(16 << 20, pin_memory=True)
    names = ("into_pinned_us", "into_new_us", "copy_us", "as_users_write_it_us")
    for row_bytes in ROW_BYTES:
        rows = table[: size // row_bytes * (row_bytes // 4)].view(-1, row_bytes // 4)
        for count in (1024, 16384, (64 << 20) // row_bytes):
            turns = [gathered(rows, torch.from_numpy(rows_of(count, len(rows), seed)), locked) for seed in range(5)]
            times = {name: median(turn) * 1e6 for name, turn in zip(names, zip(*turns, strict=True), strict=True)}
            found["gathers"].append({"row_bytes": row_bytes, "rows": count} | times)
    found["awake"] = []
    rows = table[: 1 << 24].view(-1, 256)
    index = torch.from_numpy(rows_of(8192, len(rows), 0))
    for pause in (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3, 0.5):
        busy, wall = [], []
        for _ in range(2):
            time.sleep(0.6)
            torch.index_select(rows, 0, index)
            begin, cpu = time.perf_counter(), time.process_time()
            time.sleep(pause)
            busy.append(time.process_time() - cpu)
            wall.append(time.perf_counter() - begin)
        found["awake"].append({"pause_s": pause, "wall_s": median(wall), "cpu_s": median(busy)})
    return found


def launches(out: Path) -> Any:
    """Kernels of several lengths: queued, in a graph, waited for."""
    lib = library()
    found: dict[str, Any] = {"issuing_us": lib.issuing_us(500), "kernels": []}
    for cycles in (0, 1000, 3000, 5000, 10000, 20000, 40000):
        row = {"cycles": cycles}
        for mode, name in enumerate(("queued_us", "graph_us", "waited_us")):
            row[name] = lib.launches_us(400, cycles, mode)
        found["kernels"].append(row)
    return found


def power(out: Path) -> Any:
    """The board's power by what it does."""
    import torch

    lib, board = library(), Board()
    table, _ = table_of(lib, 1 << 30)
    found: dict[str, Any] = {"board": board.name, "states": {}}
    found["rapl"] = (
        [str(path) for path in Path("/sys/class/powercap").glob("*")] if Path("/sys/class/powercap").exists() else []
    )
    states = found["states"]
    result = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    index = {size: torch.from_numpy(rows_of((64 << 20) // size, (1 << 30) // size, 0)).cuda() for size in (512, 2052)}
    pinned = torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True)
    big = torch.randn(1 << 28, device="cuda")
    other = torch.empty_like(big)
    tiny = torch.ones(32, device="cuda")

    def waited(run: Callable[[], object]) -> Callable[[], object]:
        def both() -> None:
            run()
            torch.cuda.synchronize()

        return both

    def reading(size: int, rotated: int, blocks: int = 0) -> Callable[[], object]:
        count = len(index[size])
        return lambda: lib.read_rows_ms(
            result.data_ptr(), table, index[size].data_ptr(), count, size // 4, rotated, blocks, 1024 if blocks else 256
        )

    def sparsely() -> None:
        tiny.add_(1)
        time.sleep(0.001)

    time.sleep(4)
    states["idle, context open"] = board.watts(lambda: time.sleep(0.05), 3)
    states["idle, synchronised every ms"] = board.watts(waited(sparsely))
    states["tiny kernels"] = board.watts(lambda: tiny.add_(1))
    states["one block spins"] = board.watts(lambda: lib.launches_us(1, 2_000_000, 0))
    states["copy from pinned"] = board.watts(waited(lambda: result.copy_(pinned, non_blocking=True)))
    states["read rows of 512"] = board.watts(reading(512, 0))
    states["read rows of 2052, rotated"] = board.watts(reading(2052, 1))
    states["read rows of 512, 13 blocks"] = board.watts(reading(512, 0, 13))
    states["copy in memory"] = board.watts(waited(lambda: other.copy_(big))) | {"bytes": 2 * big.nbytes}
    for dtype in (torch.float16, torch.float32):
        a, b = (torch.randn(8192, 8192, device="cuda", dtype=dtype) for _ in range(2))
        states[f"product of {dtype}"] = board.watts(waited(lambda: a @ b)) | {"macs": 8192**3}  # noqa: B023
    small = torch.randn(1 << 22, device="cuda")
    states["copy in the cache"] = board.watts(
        waited(lambda: [torch.neg(small, out=other[: 1 << 22]) for _ in range(20)])
    ) | {"bytes": 2 * small.nbytes * 20}
    return found


def beside(out: Path) -> Any:
    """Kernels alone, and beside copies to and from the host."""
    import torch

    side = torch.cuda.Stream()
    pinned = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    a, b = (torch.randn(4096, 4096, device="cuda", dtype=torch.float16) for _ in range(2))
    big = torch.randn(1 << 28, device="cuda")
    other = torch.empty_like(big)
    attention = torch.randn(16, 16, 1024, 1024, device="cuda", dtype=torch.float16)
    kernels: Mapping[str, Callable[[], object]] = {
        "product": lambda: [a @ b for _ in range(60)],
        "copy": lambda: [other.copy_(big) for _ in range(20)],
        "softmax": lambda: [torch.softmax(attention, -1) for _ in range(30)],
    }
    copies: Mapping[str, Callable[[], object]] = {
        "loads": lambda: there.copy_(pinned, non_blocking=True),
        "stores": lambda: pinned.copy_(there, non_blocking=True),
    }
    return [
        {"kernel": name, "copy": way} | _beside(run, copy, side)
        for name, run in kernels.items()
        for way, copy in copies.items()
    ]


def _beside(run: Callable[[], object], copy: Callable[[], object], side: Any) -> dict[str, float]:
    """Times of both alone and of the kernels beside the copy, which is longer, in turn."""
    import torch

    alone, together = [], []
    for _ in range(7):
        alone += event_times_us(run, 1)
        with torch.cuda.stream(side):
            copy()
        together += event_times_us(run, 1)
        torch.cuda.synchronize()
    copied = median(event_times_us(copy, 3))
    return {"alone_us": median(alone), "together_us": median(together), "copy_us": copied}


def rows(out: Path) -> Any:
    """Rows read by index from the GPU's memory, and sums over random graphs, by the size of what is read."""
    import torch

    lib = library()
    found: dict[str, Any] = {"gathers": [], "sums": []}
    count = 1 << 20
    for columns in (32, 128):
        for exponent in range(12, 23):
            table = torch.randn(1 << exponent, columns, device="cuda")
            index = torch.from_numpy(rows_of(count, 1 << exponent, 0)).cuda()
            into = torch.empty(count, columns, device="cuda")
            torch.index_select(table, 0, index, out=into)
            library_us = median(event_times_us(lambda: torch.index_select(table, 0, index, out=into), 7))  # noqa: B023
            given = (into.data_ptr(), table.data_ptr(), index.data_ptr(), count, columns, 0, 0, 256)
            ours_us = median([lib.read_rows_ms(*given) * 1e3 for _ in range(8)][1:])
            record = {"table_rows": 1 << exponent, "rows": count, "columns": columns}
            found["gathers"].append(record | {"torch_us": library_us, "own_us": ours_us})
    for vertices, degree in ((1 << 14, 64), (1 << 16, 32), (1 << 18, 16), (1 << 20, 16), (1 << 21, 8)):
        edges = vertices * degree
        col = torch.from_numpy(np.sort(rows_of(edges, vertices, 1).reshape(vertices, degree), axis=1).ravel()).cuda()
        rowptr = torch.arange(0, edges + 1, degree, device="cuda")
        matrix = torch.sparse_csr_tensor(
            rowptr.int(), col.int(), torch.ones(edges, device="cuda"), (vertices, vertices)
        )
        for width in (32, 128):
            x = torch.randn(vertices, width, device="cuda")
            matrix @ x
            us = median(event_times_us(lambda: matrix @ x, 9))  # noqa: B023
            found["sums"].append({"vertices": vertices, "degree": degree, "columns": width, "us": us})
    return found


def kernels(out: Path) -> Any:
    """Tables of kernels of random shapes, in both types, and of models."""
    from shapes import random_kernels

    import pimflow
    from pimflow.runtime.gpu.measured import MeasuredRow, table_text
    from pimflow.runtime.gpu.profiling import profile_model
    from pimflow.runtime.gpu.profiling_cuda import CudaTimer

    summary = {}
    for operand, limit in (("fp16", 70.0), ("fp32", 45.0)):
        timer = CudaTimer(operand)
        found: list[MeasuredRow] = []
        begin = time.perf_counter()
        for graph in random_kernels(operand):
            if time.perf_counter() - begin > limit:
                break
            found += profile_model(graph, "cuda", timer=timer, warmup=3, repeats=5)
        (out / f"random-{operand}.csv").write_text(table_text(found))
        summary[operand] = {"rows": len(found), "seconds": time.perf_counter() - begin}
    measured: list[str] = []
    for name in MODELS:
        begin = time.perf_counter()
        text = pimflow.profile(f"zoo:{name}", device="cuda", runs=5).csv()
        measured += text.splitlines()[bool(measured) :]
        summary[name] = {"seconds": time.perf_counter() - begin}
    (out / "models-fp16.csv").write_text("\n".join(dict.fromkeys(measured)) + "\n")
    return summary


MODELS = (
    *("mobilenet-v2", "resnet-50", "vgg-16", "efficientnet-b0", "mnasnet-1.0"),
    *("bert-base-128", "vit-b-16", "convnext-tiny"),
)


def models(out: Path) -> Any:
    """Whole models: every node by PyTorch, the kernels in one graph, replayed."""
    import torch
    from chain import ModelChain

    found = {}
    for name in MODELS:
        with torch.inference_mode():
            chain = ModelChain(torch, f"zoo:{name}")
            us = median(event_times_us(chain.captured(), 15))
            found[name] = {"us": us, "left_out": chain.left_out, "run": chain.run}
    return found


def epochs(out: Path) -> Any:
    """Mini-batches of GraphSAGE."""
    from epochs import measured_epochs

    return measured_epochs()


def training(out: Path) -> Any:
    """Training steps of transformers."""
    from training import measured_steps

    return measured_steps()


def gradients(out: Path) -> Any:
    """Gradients of convolutions by weights and by inputs, in half precision."""
    from gradients import measured_gradients

    return measured_gradients(40.0)


SECTIONS: Mapping[str, Callable[[Path], Any]] = {
    "links": links,
    "host": host,
    "launches": launches,
    "power": power,
    "beside": beside,
    "rows": rows,
    "epochs": epochs,
    "training": training,
    "kernels": kernels,
    "models": models,
    "places": places,
    "gradients": gradients,
    "counted": counted,
}


def main() -> None:
    """Run the sections named on the command line, or all."""
    out, *names = sys.argv[1:]
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)

    failed = False
    for name in names or SECTIONS:
        begin = time.perf_counter()
        try:
            (folder / f"{name}.json").write_text(json.dumps(SECTIONS[name](folder), indent=1))
            say = "done"
        except Exception:  # the other sections are worth having
            traceback.print_exc()
            say = "failed"
            failed = True
        print(f"{name}: {say} in {time.perf_counter() - begin:.1f} s", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
