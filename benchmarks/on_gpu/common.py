"""What the sections of `measure.py` share: clocks, the compiled kernels, tables in page-locked memory, power."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

HERE = Path(__file__).parent


def seconds_of(run: Callable[[], object]) -> float:
    """Wall-clock seconds."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def library() -> ctypes.CDLL:
    """The functions of kernels.cu, compiled for the GPU."""
    path = Path(tempfile.gettempdir()) / "pimflow_kernels.so"
    if not path.exists():
        command = ["nvcc", "-O3", "-arch=native", "-Xcompiler", "-fPIC", "-shared", str(HERE / "kernels.cu")]
        subprocess.run([*command, "-o", str(path)], check=True)
    found = ctypes.CDLL(str(path))
    long, pointer, integer = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int
    signatures: Mapping[str, tuple[Any, Sequence[Any]]] = {
        "host_memory": (pointer, [long]),
        "read_rows_ms": (ctypes.c_float, [pointer, pointer, pointer, long, integer, integer, integer, integer]),
        "read_rows_on": (
            integer,
            [pointer, pointer, pointer, pointer, long, integer, integer, integer, integer],
        ),
        "checked_rows_ms": (ctypes.c_float, [pointer, pointer, long, integer, integer, pointer]),
        "copy_us": (ctypes.c_double, [pointer, pointer, long, integer]),
        "round_trip_ns": (ctypes.c_double, [pointer, long, long, long]),
        "launches_us": (ctypes.c_double, [integer, long, integer]),
        "issuing_us": (ctypes.c_double, [integer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found


def table_of(lib: ctypes.CDLL, size: int) -> tuple[int, npt.NDArray[np.float32]]:
    """Page-locked memory, its address and its contents as fp32: the place of each, as a part of 2**24."""
    address = lib.host_memory(size)
    if not address:
        raise MemoryError(f"cannot lock {size:,} bytes")
    values = np.ctypeslib.as_array((ctypes.c_float * (size // 4)).from_address(address))
    step = 1 << 24
    pattern = np.arange(step, dtype=np.float32) / step
    for first in range(0, len(values), step):
        part = values[first : first + step]
        part[:] = pattern[: len(part)]
    return address, values


def rows_of(count: int, table_rows: int, seed: int) -> npt.NDArray[np.int64]:
    """Random row numbers, the same in every run."""
    return np.random.default_rng(seed).integers(0, table_rows, count)


def event_times_us(run: Callable[[], object], repeats: int) -> list[float]:
    """Times between two events around a run, in microseconds."""
    import torch

    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return times


def kernel_times_us(run: Callable[[], object]) -> dict[str, float]:
    """Time of kernels in a run, by PyTorch's profiler, in microseconds by kernel name."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(5):
            run()
        torch.cuda.synchronize()
    times = {event.key[:90]: event.self_device_time_total / 5 for event in seen.key_averages()}
    return {"total": sum(times.values())} | dict(sorted(times.items(), key=lambda item: -item[1])[:12])


class Board:
    """The GPU's power."""

    def __init__(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._nvml, self._device = pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
        self.name = pynvml.nvmlDeviceGetName(self._device)

    def watts(self, run: Callable[[], object], seconds: float = 2.0) -> dict[str, float]:
        """Mean power while something runs again and again, by the energy counter."""
        import torch

        until = time.perf_counter() + 0.5
        while time.perf_counter() < until:
            run()
        torch.cuda.synchronize()
        begin, energy, turns = time.perf_counter(), self._energy(), 0
        while time.perf_counter() < begin + seconds:
            run()
            turns += 1
        torch.cuda.synchronize()
        spent, took = self._energy() - energy, time.perf_counter() - begin
        clock = self._nvml.nvmlDeviceGetClockInfo(self._device, self._nvml.NVML_CLOCK_SM)
        return {"w": spent / took, "runs_per_s": turns / took, "sm_mhz": clock}

    def _energy(self) -> float:
        return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._device)) * 1e-3
