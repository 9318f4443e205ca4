"""Mini-batches of GraphSAGE on a GPU, sampled by pimflow: transfers, steps and power for every placement."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from common import Board, kernel_times_us, library, seconds_of, table_of
from torch import nn

from pimflow.gnn.loop import sample_epoch
from pimflow.sparse import Graph
from pimflow.sparse.sampling import Batch
from pimflow.targets import load_target

PLACEMENTS = ("resident", "gather", "gather-pageable", "zero-copy", "zero-copy-plain")
HIDDEN, CLASSES, BATCH, FAN_OUTS, BATCHES = 256, 47, 1000, (25, 10), 8
GRAPHS = {"reddit": (602, 232_965), "ogbn-products": (100, 2_449_029), "twitter7": (343, 2_900_000)}
"""Columns of features, and rows of the table: ids of larger graphs are taken modulo these."""


class Mean(torch.autograd.Function):
    """A sparse matrix times a dense one, with the transposed matrix made beforehand."""

    @staticmethod
    def forward(context: Any, x: Any, matrix: Any, transposed: Any) -> Any:
        context.transposed = transposed
        return matrix @ x

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        return context.transposed @ gradients[0], None, None


class Sage(nn.Module):
    """GraphSAGE with means over two hops."""

    def __init__(self, features: int) -> None:
        super().__init__()
        sizes = ((features, HIDDEN), (HIDDEN, CLASSES))
        self.own = nn.ModuleList(nn.Linear(*size) for size in sizes)
        self.mean = nn.ModuleList(nn.Linear(*size) for size in sizes)

    def forward(self, x: Any, hops: Sequence[tuple[Any, Any]]) -> Any:
        for number, (matrix, transposed) in enumerate(hops):
            mean = Mean.apply(x, matrix, transposed) if x.requires_grad else matrix @ x
            x = self.own[number](x[: matrix.shape[0]]) + self.mean[number](mean)
            x = torch.relu(x) if number + 1 < len(hops) else x
        return x


def matrices(hop: Graph) -> tuple[Any, Any]:
    """The mean over a hop's neighbours and its transpose, as sparse matrices on the GPU."""
    rowptr = torch.from_numpy(np.asarray(hop.rowptr, np.int64)).cuda()
    col = torch.from_numpy(np.asarray(hop.col, np.int64)).cuda()
    degree = rowptr[1:] - rowptr[:-1]
    values = (1.0 / degree.clamp(min=1).float()).repeat_interleave(degree)
    row = torch.arange(hop.num_dst, device="cuda").repeat_interleave(degree)
    forward = torch.sparse_csr_tensor(rowptr.int(), col.int(), values, (hop.num_dst, hop.num_src))
    order = torch.sort(col, stable=True).indices
    starts = torch.zeros(hop.num_src + 1, dtype=torch.int64, device="cuda")
    starts[1:] = torch.bincount(col, minlength=hop.num_src).cumsum(0)
    size = (hop.num_src, hop.num_dst)
    return forward, torch.sparse_csr_tensor(starts.int(), row[order].int(), values[order], size)


@dataclass
class Prepared:
    """A batch whose rows and edges are on the GPU, and its rows on the host too."""

    index: Any
    device_index: Any
    hops: list[tuple[Any, Any]]

    @classmethod
    def of(cls, batch: Batch, vertices: int) -> Prepared:
        """A sampled batch."""
        index = torch.from_numpy(np.asarray(batch.vertices, np.int64) % vertices)
        return cls(index, index.cuda(), [matrices(hop) for hop in batch.hops])


class Features:
    """A table in the host's and in the GPU's memory, and the ways to read its rows."""

    def __init__(self, columns: int, vertices: int, most: int) -> None:
        self._library, self._columns = library(), columns
        self._address, values = table_of(self._library, columns * vertices * 4)
        self.on_host = torch.from_numpy(values).view(vertices, columns)
        self.on_gpu = self.on_host.cuda()
        self._locked = torch.empty(most * columns, pin_memory=True)

    def fetch(self, placement: str, batch: Prepared) -> Any:
        """The rows of a batch, on the GPU once its stream gets there."""
        count = len(batch.index)
        if placement == "resident":
            return self.on_gpu.index_select(0, batch.device_index)
        if placement == "gather-pageable":
            return self.on_host.index_select(0, batch.index).to("cuda")
        if placement == "gather":
            into = self._locked[: count * self._columns].view(count, self._columns)
            torch.index_select(self.on_host, 0, batch.index, out=into)
            return into.to("cuda", non_blocking=True)
        x = torch.empty(count, self._columns, device="cuda")
        stream, rotated = torch.cuda.current_stream().cuda_stream, placement == "zero-copy"
        rows = (x.data_ptr(), self._address, batch.device_index.data_ptr(), count, self._columns)
        self._library.read_rows_on(stream, *rows, rotated, 0, 256)
        return x


def measured_epochs() -> dict[str, Any]:
    """All graphs."""
    return {name: _measured(name, *sizes) for name, sizes in GRAPHS.items()}


def _measured(name: str, columns: int, vertices: int) -> dict[str, Any]:
    amounts: dict[str, Any] = {"fan_outs": FAN_OUTS, "batch": BATCH, "hidden": HIDDEN, "classes": CLASSES}
    sampled = sample_epoch(name, "sage", load_target("rtx3090"), **amounts, batches=BATCHES, seed=0)
    batches = [one.batch.single for one in sampled.drawn]
    features = Features(columns, vertices, max(len(one.vertices) for one in batches))
    prepared = [Prepared.of(one, vertices) for one in batches]
    step = _step(columns)
    found: dict[str, Any] = {
        "columns": columns,
        "table_rows": vertices,
        "rows": [len(one.vertices) for one in batches],
        "edges": [one.edges for one in batches],
        "placements": {place: _placed(place, features, prepared, step) for place in PLACEMENTS},
    }
    x = features.fetch("resident", prepared[0])
    found["kernels_us"] = kernel_times_us(lambda: step(x, prepared[0].hops))
    return found


def _step(columns: int) -> Callable[[Any, Any], None]:
    model = Sage(columns).cuda()
    adam = torch.optim.Adam(model.parameters(), fused=True)
    labels, loss = torch.randint(0, CLASSES, (BATCH,), device="cuda"), nn.CrossEntropyLoss()

    def step(x: Any, hops: Any) -> None:
        adam.zero_grad(set_to_none=True)
        loss(model(x, hops), labels).backward()
        adam.step()

    return step


def _placed(
    placement: str, features: Features, batches: Sequence[Prepared], step: Callable[[Any, Any], None]
) -> dict[str, Any]:
    first = features.fetch(placement, batches[0])
    torch.cuda.synchronize()
    assert torch.equal(first, features.fetch("resident", batches[0])), placement
    transfers, steps = [], []
    for turn in range(4):
        for batch in batches:
            torch.cuda.synchronize()
            begin = time.perf_counter()
            x = features.fetch(placement, batch)
            torch.cuda.synchronize()
            fetched = time.perf_counter()
            step(x, batch.hops)
            torch.cuda.synchronize()
            if turn:
                transfers.append((fetched - begin) * 1e6)
                steps.append((time.perf_counter() - fetched) * 1e6)

    def loop() -> None:
        for batch in batches:
            step(features.fetch(placement, batch), batch.hops)
        torch.cuda.synchronize()

    loop()
    walls = [seconds_of(loop) / len(batches) * 1e6 for _ in range(3)]
    return {
        "transfer_us": median(transfers),
        "transfers_us": transfers,
        "step_us": median(steps),
        "batch_us": median(walls),
        "board": Board().watts(loop, 1.5),
    }
