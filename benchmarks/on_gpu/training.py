"""Training steps of BERT on a GPU: the peak of activations and the time, with and without recomputed layers."""

from __future__ import annotations

from statistics import median
from typing import Any

import torch
from common import event_times_us, kernel_times_us
from transformers import BertConfig, BertModel

SIZES = ((1024, 4, 16, 8, 512), (2048, 3, 16, 8, 512), (768, 12, 12, 8, 128))
"""Columns, layers, heads, texts and their tokens."""


def configuration(columns: int, layers: int, heads: int) -> BertConfig:
    """BERT without dropout, with attention written out."""
    return BertConfig(
        hidden_size=columns,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * columns,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
    )


def measured_steps() -> list[dict[str, Any]]:
    """Every size, with activations kept and with layers recomputed."""
    return [_measured(sizes, recomputed) for sizes in SIZES for recomputed in (False, True)]


def _measured(sizes: tuple[int, ...], recomputed: bool) -> dict[str, Any]:
    columns, layers, heads, texts, tokens = sizes
    config = configuration(columns, layers, heads)
    torch.cuda.empty_cache()
    model = BertModel(config, add_pooling_layer=False).cuda().half().train()
    if recomputed:
        model.gradient_checkpointing_enable()
    ids = torch.randint(0, config.vocab_size, (texts, tokens), device="cuda")
    saved: list[int] = []

    def step() -> None:
        output = model(ids).last_hidden_state
        saved.append(torch.cuda.memory_allocated())
        output.float().pow(2).mean().backward()

    step()  # gradients exist from now on
    torch.cuda.synchronize()
    state = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - state
    return {
        "columns": columns,
        "layers": layers,
        "heads": heads,
        "texts": texts,
        "tokens": tokens,
        "recomputed": recomputed,
        "saved_bytes": saved[-1] - state,
        "peak_bytes": peak,
        "state_bytes": state,
        "step_us": median(event_times_us(step, 7)),
        "kernels_us": kernel_times_us(step),
    }
