"""Makes docs/training.md: SSDTrain's machine and models, with what becomes of activations under every choice.

    python benchmarks/training_results.py

Weights are never made: a model is differentiated, priced and planned by its shapes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pimflow.api.training_steps import BEHIND
from pimflow.ir import Builder, Graph, MatMul
from pimflow.passes.differentiate import Differentiate, training_step
from pimflow.report.training import Endurance
from pimflow.runtime.costs import CostModel
from pimflow.runtime.offload.channel import Channel
from pimflow.runtime.offload.planning import plan_activations
from pimflow.runtime.offload.rule import adaptive_rule
from pimflow.runtime.offload.run import ActivationPlan, Run, follow
from pimflow.runtime.offload.trace import Buffer, Kernel, Trace, trace_of
from pimflow.runtime.offload.wish import Wish
from pimflow.targets import load_target

PAGE = Path(__file__).parent.parent / "docs" / "training.md"
MODELS = ((8192, 4), (12288, 3), (16384, 2))
BATCH, TOKENS, HEAD, SHARE, WORDS = 16, 1024, 256, 2, 30592


class Transformer(Builder):
    """An encoder with the norms in front (Megatron's BERT), the share of one of two GPUs that divide every layer.

    Each has half of the heads, of the inner features and of the words; sums over both GPUs are not modelled.
    """

    def lazy(self, *shape: int) -> str:
        """A weight of half precision without elements in memory."""
        return self.constant(np.broadcast_to(np.zeros((), np.float16), shape), "weight")

    def linear(self, x: str, inner: int, outer: int) -> str:
        """x W + b."""
        return self.add(self.op(MatMul(), x, self.lazy(inner, outer)), self.lazy(outer))

    def norm(self, x: str, features: int) -> str:
        """Over the features."""
        return self.onnx("LayerNormalization", x, self.lazy(features), self.lazy(features), axis=-1)

    def attention(self, x: str, features: int) -> str:
        """Of this GPU's heads, operator by operator."""
        heads = features // HEAD // SHARE
        orders = ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
        query, key, value = (
            self.transpose(self.reshape(self.linear(x, features, heads * HEAD), BATCH, TOKENS, heads, HEAD), *order)
            for order in orders
        )
        scale = self.constant(np.array(1 / math.sqrt(HEAD), np.float16))
        shares = self.onnx("Softmax", self.mul(self.op(MatMul(), query, key), scale), axis=-1)
        joined = self.transpose(self.op(MatMul(), shares, value), 0, 2, 1, 3)
        return self.linear(self.reshape(joined, BATCH, TOKENS, heads * HEAD), heads * HEAD, features)

    def layer(self, x: str, features: int) -> str:
        """Attention and two linear layers, each behind a norm and beside a skip."""
        x = self.add(x, self.attention(self.norm(x, features), features))
        inner = 4 * features // SHARE
        up = self.elementwise("Gelu", self.linear(self.norm(x, features), features, inner))
        return self.add(x, self.linear(up, inner, features))


def transformer(features: int, layers: int) -> Graph:
    """Words, layers, and scores of words."""
    net = Transformer("bert", opset=20)
    words = net.input(BATCH, TOKENS, name="words", dtype="int64")
    table = net.lazy(WORDS // SHARE, features)
    x = net.onnx("Gather", table, words, shape=(BATCH, TOKENS, features), axis=0)
    for _ in range(layers):
        x = net.layer(x, features)
    return net.graph(net.op(MatMul(), net.norm(x, features), net.lazy(features, WORDS // SHARE)))


def uniform(layers: int, layer_us: float = 1000.0, layer_bytes: int = 1_000_000) -> Trace:
    """Layers that each save one buffer, whose backward pass takes twice the forward pass."""
    buffers = tuple(Buffer(f"saved{layer}", layer_bytes, layer_bytes) for layer in range(layers))
    ahead = [Kernel(f"forward{layer}", layer_us, (layer - 1,) if layer else (), (layer,)) for layer in range(layers)]
    back = [Kernel(f"backward{layer}", 2 * layer_us, (layer,), ()) for layer in reversed(range(layers))]
    return Trace((*ahead, *back), layers, buffers)


@dataclass(frozen=True)
class Row:
    """One choice for one step."""

    name: str
    run: Run


def choices(trace: Trace, channel: Channel) -> Iterator[Row]:
    """Keep, the rule, and what the search finds with more and more to choose from."""
    yield Row("keep", follow(trace, ActivationPlan()))
    yield Row("SSDTrain's rule", follow(trace, adaptive_rule(trace, channel, trace.modules), channel))
    yield Row("recompute, up to 10 % slower", plan_activations(trace, None, Wish(slower_percent=10)).run)
    yield Row("offload", plan_activations(trace, channel, Wish(recompute=False)).run)
    yield Row("auto", plan_activations(trace, channel).run)
    yield Row("auto, up to 10 % slower", plan_activations(trace, channel, Wish(slower_percent=10)).run)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, names on the left and figures on the right."""
    marks = ["---" if place == 0 else "---:" for place in range(len(head))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, marks, *rows))


def transformers() -> str:
    """A table for every model."""
    target = load_target("a100-ssd")
    assert target.memory is not None
    ssd = target.memory.ssd
    assert ssd is not None
    channel, costs, parts = Channel.of(ssd, target.any_gpu), CostModel(target), []
    for features, layers in MODELS:
        step = training_step(transformer(features, layers), Differentiate("cross-entropy", optimiser="sgd"))
        trace = trace_of(BEHIND.run(step.graph).graph, step.forward, costs)
        made = list(choices(trace, channel))
        kept = made[0].run
        rows = []
        for row in made:
            life = Endurance.of(row.run, trace, ssd)
            rows.append(
                (
                    row.name,
                    f"{row.run.peak_bytes / 1e9:.2f}",
                    f"{100 * (row.run.peak_bytes / kept.peak_bytes - 1):+.1f} %",
                    f"{row.run.time_us / 1e3:,.1f}",
                    f"{100 * (row.run.time_us / kept.time_us - 1):+.1f} %",
                    f"{life.written_bytes / 1e9:.2f}",
                    f"{life.tb_a_day:,.0f}",
                    "" if life.years is None else f"{life.years:.1f}",
                )
            )
        head = ("activations", "peak GB", "change", "step ms", "change", "GB written", "TB a day", "years")
        saved = f"{trace.saved_bytes / 1e9:.2f} GB saved, forward pass {trace.forward_us / 1e3:,.1f} ms"
        parts.append(f"### {features:,} features, {layers} layers\n\n{saved}.\n\n{table(head, rows)}")
    return "\n\n".join(parts)


def chains() -> str:
    """The rule and the search over drives of more and more bandwidth."""
    trace = uniform(24)
    rows = []
    for share in (0.2, 0.4, 0.8, 1.0, 1.2, 2.0, 4.0):
        rate = share * trace.buffers[0].bytes / 2000.0
        channel = Channel(rate, rate)
        plan = adaptive_rule(trace, channel, least_elements=0)
        rule, found = follow(trace, plan, channel), plan_activations(trace, channel, Wish(recompute=False))
        published = {0.4: "34 to 38 %", 0.8: "10 to 18 %"}.get(share, "0.4 to 5.9 %" if share > 1 else "")
        rows.append(
            (
                f"{share:g}",
                f"{len(plan.offloaded)}",
                f"{100 * rule.stall_us / trace.time_us:.1f} %",
                published,
                f"{rule.peak_bytes / 1e6:.0f}",
                f"{len(found.plan.offloaded)}",
                f"{100 * found.run.stall_us / trace.time_us:.1f} %",
                f"{found.run.peak_bytes / 1e6:.0f}",
            )
        )
    head = ("bandwidth", "rule: layers", "waits", "elsewhere", "peak", "search: layers", "waits", "peak")
    return table(head, rows)


TEXT = """# Training steps and their activations

<!-- made by benchmarks/training_results.py -->

`pimflow train MODEL` ([cli.md](cli.md#train)) makes a training step of a model, prices it on the machine's host and
plans what becomes of the activations that the forward pass saves for the backward pass: each is kept, offloaded to
SSDs and asked back, or recomputed.

```sh
pimflow train zoo:toy --target a100-ssd --loss cross-entropy
```

What is trained is found by where the model reads it: float constants of products, norms and lookups, and those that
are added or multiplied by, but for masks (not finite, huge, or zeros and one other value, as Swin's windows and GPT-2's
order of words have them). A table that was computed once and stored, as of sines, looks like a learned one and counts.

A graph network is trained on its graph (`--graph`, or the zoo's), with relational layers in the form whose step takes
least time ([gnn.md](gnn.md#relational-layers)); every weight stays one by itself.

How a step is followed: the GPU runs one kernel after the other, one channel serves stores and loads in the order in
which they are asked for, and memory is taken and given back. What is moved passes the GPU's memory, so that kernels
are slower meanwhile by its share of that memory's bandwidth, as if memory bound them all
([architecture.md](architecture.md#activations-that-do-not-fit)). Tests hold that against a clock that ticks, and the
search against every "keep from the i-th layer on".

What is recomputed may be made of what is recomputed itself: that is made before, and stays until the backward pass is
through with it.

Beside these plans there are those that page: between two kernels that touch it any buffer may leave for the SSDs, each
time, gradients too; those stay that are wanted back soonest, as long as there is room. Of 32 such plans, each for less
room than the one before, down to what one kernel touches, the best is taken where it is better.

Where room is short (`--limit-gib`, or what the GPU's memory leaves) plans are reached by stages too: each is as fast as
is found in its room before the next, with a quarter less of what is missing, begins from it; the last begins from one
for less than is asked for. More room seldom takes longer then, but may, by up to a percent: limits are searched apart.

At the end of both, for each buffer that is offloaded or recomputed, it is tried whether it had better be so the other
way, or stay, alone or with one of the four smallest that could make room for it instead.

## SSDTrain's models on its machine

Megatron's BERT, {batch} texts of {tokens:,} tokens, half precision, the share of one of two A100 that divide every
layer (`a100-ssd`, [targets.md](targets.md#memory-tiers)); loss and plain SGD included. Weights are never made: all of
this follows from shapes. A peak is of activations alone: all that is alive beside weights, gradients of weights,
inputs and results. Years are until what the drives are rated for has been written, by such steps one after the other.

{transformers}

No plan that is not said to be slower waits for the drives; what its step takes longer is that share.

**Published** (Wu et al., SSDTrain, DAC 2025; arXiv 2408.10013): activation peak -47 %, step time as without.
**Ours**: the table. **Why they differ**, as far as can be told without their traces: theirs is the peak of PyTorch's
allocator, ours are live bytes, without workspaces, buffers of the sums over both GPUs, and gaps. Their attention is
one fused kernel; ours saves its shares too (a sixth of what a layer saves), which are offloaded as well. Times are
the cost model's, drives write at their data sheet's rate, of which the plans with the lowest peaks use nearly all,
and sums over both GPUs, which would leave the drives more time, are left out. The rule waits here because a module is
a single product: what is asked back as the next one begins comes too late.

## Where the drives cannot keep up

24 equal layers, backward passes twice as long as forward passes; bandwidth in units of what brings a layer back while
the next one's backward pass runs. "Elsewhere" is another event model of the same step.

{chains}

The rule counts all writes and one load, and asks a module back as the next one's backward pass begins: where a load
takes longer than that, every layer waits. The search offloads fewer layers, none in vain, and asks for them earlier,
as late as no kernel waits for: the same peak, and no wait.
"""


def main() -> None:
    """Writes the page."""
    PAGE.write_text(TEXT.format(batch=BATCH, tokens=TOKENS, transformers=transformers(), chains=chains()))
    print(PAGE.read_text())


if __name__ == "__main__":
    main()
