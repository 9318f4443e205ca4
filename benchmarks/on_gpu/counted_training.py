"""What PyTorch's tensors take in the steps that `training.py` measures, counted on tensors without data.

    python benchmarks/on_gpu/counted_training.py

Needs PyTorch and transformers, but no GPU: autograd saves the same tensors. The allocator's blocks are rounded to 512
bytes here as there; buffers that kernels allocate for themselves, and blocks that are not split, are not counted.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from training import SIZES, configuration
from transformers import BertModel


class Live(TorchDispatchMode):
    """Counts the bytes of the storages that exist, apart from given ones, and their maximum."""

    def __init__(self, given: list[torch.Tensor]) -> None:
        super().__init__()
        self.storages: Any = weakref.WeakSet(tensor.untyped_storage() for tensor in given)
        self.bytes = self.peak = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and count the storages of its results."""
        made = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            storage = tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else None
            if storage is None or storage in self.storages:
                continue
            self.storages.add(storage)
            size = -(-storage.nbytes() // 512) * 512
            self.bytes += size
            self.peak = max(self.peak, self.bytes)
            weakref.finalize(storage, self._freed, size)
        return made

    def _freed(self, size: int) -> None:
        self.bytes -= size


def counted(sizes: tuple[int, ...], recomputed: bool) -> tuple[int, int]:
    """Bytes after the forward pass, and at most, of one step."""
    columns, layers, heads, texts, tokens = sizes
    config = configuration(columns, layers, heads)
    torch.set_default_dtype(torch.half)
    with torch.device("meta"):
        model = BertModel(config, add_pooling_layer=False).train()
    torch.set_default_dtype(torch.float)
    if recomputed:
        model.gradient_checkpointing_enable()
    ids = torch.zeros((texts, tokens), dtype=torch.int64, device="meta")
    for weight in model.parameters():
        weight.grad = torch.empty_like(weight)
    weights = list(model.parameters())
    live = Live([ids, *model.buffers(), *weights, *(weight.grad for weight in weights)])
    with live:
        output = model(ids).last_hidden_state
        saved = live.bytes
        output.float().pow(2).mean().backward()
    return saved, live.peak


def main() -> None:
    """Print every size, with activations kept and with layers recomputed."""
    for sizes in SIZES:
        for recomputed in (False, True):
            print(*sizes, "recomputed" if recomputed else "kept", *counted(sizes, recomputed))


if __name__ == "__main__":
    main()
