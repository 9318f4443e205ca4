"""Makes docs/training.md: SSDTrain's machine and models, and the plan for their activations under every choice; and the
memory of training steps that PyTorch ran on a GPU, next to what pimflow predicts for them.

    python benchmarks/training_results.py

Weights are never computed: a model is differentiated, priced and planned from its shapes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pimflow.api.training_steps import OPTIMISE
from pimflow.ir import Builder, Graph, MatMul
from pimflow.passes.differentiate import Differentiate, training_step
from pimflow.report.training import Endurance
from pimflow.runtime.costs import CostModel
from pimflow.runtime.offload.channel import Channel
from pimflow.runtime.offload.planning import plan_activations
from pimflow.runtime.offload.requirements import Requirements
from pimflow.runtime.offload.rule import adaptive_rule
from pimflow.runtime.offload.run import ActivationPlan, Run, simulate
from pimflow.runtime.offload.search import chain_of
from pimflow.runtime.offload.trace import Buffer, Kernel, Trace, trace_of
from pimflow.targets import load_target

PAGE = Path(__file__).parent.parent / "docs" / "training.md"
MEASURED = Path(__file__).parent.parent / "tests" / "data" / "measured" / "h200.json"
MODELS = ((8192, 4), (12288, 3), (16384, 2))
BATCH, TOKENS, HEAD, SHARE, WORDS = 16, 1024, 256, 2, 30592
COUNTED = (906_269_696, 285_283_328, 1_208_194_048, 503_387_136, 358_819_840, 59_787_264)
"""The peak bytes of PyTorch's tensors alone in each measured step, from `on_gpu/counted_training.py`."""


class Layers(Builder):
    """The parts of a transformer, without weights in memory."""

    def lazy(self, *shape: int) -> str:
        """A half-precision weight without elements in memory."""
        return self.constant(np.broadcast_to(np.zeros((), np.float16), shape), "weight")

    def linear(self, x: str, inner: int, outer: int) -> str:
        """x W + b."""
        return self.add(self.op(MatMul(), x, self.lazy(inner, outer)), self.lazy(outer))

    def norm(self, x: str, features: int, name: str = "") -> str:
        """Layer norm over the features."""
        weights = (self.lazy(features), self.lazy(features))
        return self.onnx("LayerNormalization", x, *weights, name=name, axis=-1)

    def lookup(self, rows: int, index: str, features: int) -> str:
        """The rows of a table at an index [texts, tokens]."""
        shape = (*self.shape(index), features)
        return self.onnx("Gather", self.lazy(rows, features), index, shape=shape, axis=0)

    def attention(self, x: str, heads: int, head: int) -> str:
        """Attention with heads of `head` features, operator by operator."""
        texts, tokens, features = self.shape(x)
        orders = ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
        query, key, value = (
            self.transpose(self.reshape(self.linear(x, features, heads * head), texts, tokens, heads, head), *order)
            for order in orders
        )
        scale = self.constant(np.array(1 / math.sqrt(head), np.float16))
        shares = self.onnx("Softmax", self.mul(self.op(MatMul(), query, key), scale), axis=-1)
        joined = self.transpose(self.op(MatMul(), shares, value), 0, 2, 1, 3)
        return self.linear(self.reshape(joined, texts, tokens, heads * head), heads * head, features)

    def feed_forward(self, x: str, features: int, inner: int) -> str:
        """Two linear layers with a Gelu between."""
        return self.linear(self.elementwise("Gelu", self.linear(x, features, inner)), inner, features)


class Transformer(Layers):
    """An encoder with pre-norm layers (Megatron's BERT), as seen by one of two GPUs that divide every layer.

    Each GPU has half of the heads, of the inner features and of the words; sums over both GPUs are not modelled.
    """

    def layer(self, x: str, features: int) -> str:
        """Attention and two linear layers, each after a norm and with a skip connection."""
        x = self.add(x, self.attention(self.norm(x, features), features // HEAD // SHARE, HEAD))
        return self.add(x, self.feed_forward(self.norm(x, features), features, 4 * features // SHARE))


def transformer(features: int, layers: int) -> Graph:
    """Word embeddings, layers, and scores of words."""
    net = Transformer("bert", opset=20)
    words = net.input(BATCH, TOKENS, name="words", dtype="int64")
    x = net.lookup(WORDS // SHARE, words, features)
    for _ in range(layers):
        x = net.layer(x, features)
    return net.graph(net.op(MatMul(), net.norm(x, features), net.lazy(features, WORDS // SHARE)))


def bert(columns: int, layers: int, heads: int, texts: int, tokens: int) -> Graph:
    """transformers' BertModel without its pooler, and the mean square of its output in single precision."""
    net = Layers("bert", opset=20)
    words = net.input(texts, tokens, name="words", dtype="int64")
    kinds = net.constant(np.zeros((1, tokens), np.int64), "kinds")
    places = net.constant(np.arange(tokens, dtype=np.int64)[None], "places")
    x = net.add(net.lookup(30522, words, columns), net.lookup(2, kinds, columns))
    x = net.norm(net.add(x, net.lookup(512, places, columns)), columns, "kept")
    for _ in range(layers):
        x = net.norm(net.add(net.attention(x, heads, columns // heads), x), columns)
        x = net.norm(net.add(net.feed_forward(x, columns, 4 * columns), x), columns, "kept")
    x = net.onnx("Cast", x, dtype="float32", to=1, name="output")
    squares = net.elementwise("Pow", x, net.constant(np.array(2, np.float32)))
    return net.graph(net.onnx("ReduceMean", squares, shape=(), keepdims=0))


@dataclass(frozen=True)
class Predicted:
    """What a step of `bert` has in memory, apart from weights, their gradients and the words, and its time.

    Args:
        saved_bytes: after the model's last kernel, before the loss.
        peak_bytes: at most.
        time_us: of its kernels.
    """

    saved_bytes: int
    peak_bytes: int
    time_us: float

    @classmethod
    def of(cls, step: dict[str, Any]) -> Predicted:
        """By pimflow, for a measured step."""
        graph = bert(*(step[size] for size in ("columns", "layers", "heads", "texts", "tokens")))
        made = training_step(graph, Differentiate("sum"))
        trace = trace_of(OPTIMISE.run(made.graph).graph, made.forward, CostModel(load_target("h200")))
        plan = layers_again(trace) if step["recomputed"] else ActivationPlan()
        run = simulate(trace, plan)
        place = [kernel.name for kernel in trace.kernels].index("output")
        alive = 0
        for _, event, which, size in run.log:
            alive += size
            if (event, which) == ("run", place):
                break
        saved_bytes = alive - sum(trace.sizes[buffer] for buffer in trace.kernels[place].writes)
        return cls(saved_bytes, run.peak_bytes, run.time_us)


def layers_again(trace: Trace) -> ActivationPlan:
    """The plan that keeps what enters a layer of `bert`, and computes all else in it again (gradient checkpointing)."""
    names = [kernel.name for kernel in trace.kernels]
    inside = [
        buffer
        for buffer in trace.saved
        if names.index("kept") < (place := trace.uses[buffer][0]) < names.index("output")
        and not names[place].startswith("kept")
    ]
    ordered = sorted(inside, key=lambda buffer: (trace.last_write(buffer), buffer))
    return ActivationPlan(recomputed={buffer: chain for buffer in ordered if (chain := chain_of(trace, buffer))})


def uniform(layers: int, layer_us: float = 1000.0, layer_bytes: int = 1_000_000) -> Trace:
    """Layers that each save one buffer, with a backward pass that takes twice as long as the forward pass."""
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
    """Keep all, the rule, and the search with an increasing set of choices."""
    yield Row("keep", simulate(trace, ActivationPlan()))
    yield Row("SSDTrain's rule", simulate(trace, adaptive_rule(trace, channel, trace.modules), channel))
    yield Row("recompute, up to 10 % slower", plan_activations(trace, None, Requirements(slower_percent=10)).run)
    yield Row("offload", plan_activations(trace, channel, Requirements(recompute=False)).run)
    yield Row("auto", plan_activations(trace, channel).run)
    yield Row("auto, up to 10 % slower", plan_activations(trace, channel, Requirements(slower_percent=10)).run)


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
        trace = trace_of(OPTIMISE.run(step.graph).graph, step.forward, costs)
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


def compared() -> str:
    """What pimflow predicts for the measured steps, what PyTorch's tensors take, and what was measured."""
    rows = []
    for step, counted in zip(json.loads(MEASURED.read_text())["training"], COUNTED, strict=True):
        found = Predicted.of(step)
        rows.append(
            (
                f"{step['columns']:,} columns, {step['layers']} layers" + (", again" if step["recomputed"] else ""),
                f"{found.saved_bytes / 1e6:,.1f}",
                f"{step['saved_bytes'] / 1e6:,.1f}",
                f"{100 * (found.saved_bytes / step['saved_bytes'] - 1):+.1f} %",
                f"{found.peak_bytes / 1e6:,.1f}",
                f"{counted / 1e6:,.1f}",
                f"{step['peak_bytes'] / 1e6:,.1f}",
                f"{100 * (found.peak_bytes / step['peak_bytes'] - 1):+.1f} %",
                f"{found.time_us:,.0f}",
                f"{step['kernels_us']:,.0f}",
                f"{100 * (found.time_us / step['kernels_us'] - 1):+.1f} %",
            )
        )
    memory = ("saved: pimflow", "measured", "", "peak: pimflow", "PyTorch's tensors", "measured", "")
    return table(("step", *memory, "us: pimflow", "measured", ""), rows)


def chains() -> str:
    """The rule and the search, with drives of increasing bandwidth."""
    trace = uniform(24)
    rows = []
    for share in (0.2, 0.4, 0.8, 1.0, 1.2, 2.0, 4.0):
        rate = share * trace.buffers[0].bytes / 2000.0
        channel = Channel(rate, rate)
        plan = adaptive_rule(trace, channel, min_elements=0)
        rule, found = simulate(trace, plan, channel), plan_activations(trace, channel, Requirements(recompute=False))
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

`pimflow train MODEL` ([cli.md](cli.md#train)) builds a training step of a model, prices it on the machine's host and
plans what to do with the activations that the forward pass saves for the backward pass: keep each of them in memory,
offload it to SSDs and prefetch it later, or recompute it.

```sh
pimflow train zoo:toy --target a100-ssd --loss cross-entropy
```

The trained parameters are recognised by how the model uses them: float constants of products, norms and lookups,
and constants that are added or multiplied elementwise, except masks (values that are not finite, huge, or zeros and
one other value, as in Swin's windows and GPT-2's causal mask). A single number is a parameter only where it cannot be a
setting: a weight or bias of a product (a head with one output), the scale or shift of a batch norm, or the slope of a
PRelu. A stored table of computed values, such as sines, looks like a learned one and counts as a parameter.

A parameter counts once and as a whole: also if the model reads only some rows of it (positions), or reads it
transposed as well (a table of words that is also the last layer's weight), even if the exporter has stored the
transposed copy. Equal elements are no parameter where weights multiply them (ones for vertices without features, the
zeros with which a recurrent cell begins) or where a norm of groups leaves the scale to the next node, nor are the
zeros that a recurrent operator starts from or that mask nothing in front of a Softmax. What an exporter has already
computed from parameters cannot be taken apart again: it counts as it is stored. In an export for inference that
includes the scales of batch norms in front of which convolutions stand.

A graph network is trained on its graph (`--graph`, or the zoo's), with its relational layers in the form whose step
is fastest ([gnn.md](gnn.md#relational-layers)); every weight remains a parameter of its own, also where it multiplies
nothing but what follows from the graph, such as the degrees of vertices.

A step is simulated as follows. The GPU runs one kernel after the other, a single channel serves stores and loads in
the order in which they are issued, and memory is allocated and freed along the way. Data in transit pass through
the GPU's memory, so kernels slow down meanwhile by their mean share of that memory's bandwidth, as if all kernels
were memory-bound: by as many bytes as are moved, however fast the drives are
([architecture.md](architecture.md#activations-that-do-not-fit)). Tests compare this simulation with
one that goes clock tick by clock tick, and the search with every plan of the form "keep from the i-th layer on".
On an H200, kernels that are bound by memory took 1.0 to 2.2 % longer beside copies over PCIe 5.0, which take 1.1 % of
its memory's bandwidth. A product, at the limit of the board's power, took 1.3 % longer beside stores, and 17 % beside
loads, for which we have no explanation (`tests/data/measured/h200.json`, `beside`).

A recomputed activation may be computed from others that are recomputed. Those come first, and stay in memory until
the backward pass no longer needs them.

In addition there are plans that page: between two kernels that touch it, any buffer may move to the SSDs, gradients
included and as often as needed; the buffers that are needed soonest stay as long as there is room. pimflow tries 32
such plans, each for less room than the one before, down to what a single kernel touches, and takes the best if it
is better.

If memory is limited (by `--limit-gib`, or by what is left of the GPU's memory), the search also goes through
stages: it finds a fast plan for more memory, starts from that plan with a quarter less of the missing memory, and
so on; the last stage starts from a plan for less memory than allowed.

Both kinds of plans are then refined by exchanges: for each offloaded or recomputed buffer the search tries the
other of the two, and keeping it, either alone or in exchange for one of the four smallest buffers that could make
room for it.

All of this is done for plans that only offload, for those that only recompute, and for mixtures, so that what is
allowed in addition never makes a plan worse. A larger limit still may: limits are searched independently. Of 65 evenly
spaced limits for each of three models (squeezenet-1.1, HGT, a GPT-2 of 2 layers) on `a100-ssd`, 110 can be met by
recomputing alone, and 4 of these plans (squeezenet-1.1) are slower than one for less memory, by up to 1.7 %. Of those
that only offload, to drives with 0.3 of the bandwidth that saving everything during the forward pass needs, 1 of 195
is (HGT), by 1.0 %; in an earlier measurement with other drives it was 8 of 195, by up to 7.6 %. For the same reason, a
step that may be longer (`--slower`) may have a higher peak. Only plans that do not depend on the limit would rule this
out. Those of one ladder of 32 limits, each improved from the one before, take 2.3 to 3.2 times as long to find
(squeezenet-1.1, the GPT-2), and are slower by 1.0 % on average and by up to 27 %.

## SSDTrain's models on its machine

Megatron's BERT with {batch} texts of {tokens:,} tokens in half precision, on one of two A100s that share every
layer by tensor parallelism (`a100-ssd`, [targets.md](targets.md#memory-tiers)), including the loss and plain SGD.
No weights are materialised: everything follows from shapes. The peak is that of activations alone: all live data
except weights, gradients of weights, inputs and results. "Years" is how long the drives last, by their rated
endurance, if such steps run back to back.

{transformers}

Apart from the rule, and from plans that are allowed to be slower, no plan waits for the drives; their steps are
longer only because of the bandwidth that the transfers take.

**Published** (Wu et al., SSDTrain, DAC 2025; arXiv 2408.10013): activation peak -47 %, step time as without.
**Ours**: the table. **Why they differ**, as far as can be told without their traces: theirs is the peak of
PyTorch's allocator; ours counts live bytes, without workspaces, all-reduce buffers and fragmentation. Their
attention is one fused kernel; ours also saves the attention probabilities (a sixth of what a layer saves), which
can be offloaded too. Our times are the cost model's. The drives write at the rate of their data sheet, which the
plans with the lowest peaks use almost fully, and the all-reduces between the GPUs, which would give the drives more
time, are not modelled. The rule waits here because a module is a single product: data prefetched when the next
module begins arrive too late.

## Compared with PyTorch on an H200

Steps of transformers' BertModel (eager attention, no dropout, no pooler) in half precision, in MB: the two larger ones
with 8 texts of 512 tokens, the last with 8 of 128. The loss is the mean square of the output in single precision.
"Again" means that every layer is computed again from its input: PyTorch's gradient checkpointing, and a plan that does
the same.

{compared}

**Measured** with PyTorch 2.11: what its allocator has in use after the forward pass, and at most during a step that
adds to existing gradients, without weights, gradients and words (`benchmarks/on_gpu/training.py`). "PyTorch's tensors"
are counted without a GPU (`benchmarks/on_gpu/counted_training.py`). **Why they differ**:

- *Saved*: PyTorch keeps the mean and deviation of each row for every norm, and the types of tokens (less than 0.1 %);
  pimflow computes the former again. With 768 columns the rest is the allocator's: it does not split off less than 1 MiB
  of a large block, which takes 5.2 and 1.2 MB.
- *PyTorch's tensors at the peak*: the caller holds the model's output until the step is over, although the loss has a
  copy. With everything kept, both peaks are in the gradient of the loss, for which PyTorch makes two more copies in
  single precision than the derivative of a square needs. With layers computed again, a weight's gradient exists next to
  the one that it is added to (2,048 and 768 columns); pimflow writes it where it stays.
- *Measured*: PyTorch sums a gradient's rows for a bias in parts, in a buffer of 512 bytes for each column and part:
  134.2 MB, 138.4 MB (2,048 columns) and 25.2 MB (768). It does not grow with the layers, and hardly with the columns
  beyond that. With it, and with the room in blocks, PyTorch's tensors at that moment make up all six measured peaks to
  the byte.

So these steps need 20 to 84 MB more than pimflow says. **Times** are those of kernels alone, predicted for the target
`h200`; Python made the steps 1.3 to 14 times as long. PyTorch copies operands before products, scales scores in a
kernel of its own and adds to existing gradients, which pimflow does not price. A Gelu that an exporter spelled out
around Erf is trained as the one operator that PyTorch runs, so that the exported model saves as much as the original.

## Where the drives cannot keep up

24 equal layers whose backward passes take twice as long as their forward passes. A bandwidth of 1 loads one layer
back in the time of one backward pass. "Elsewhere" is an independent event simulation of the same step.

{chains}

The rule accounts for all writes and one load, and prefetches a module when the backward pass of the next one
begins: if a load takes longer than that, every layer waits. The search offloads fewer layers, none of them
needlessly, and starts to prefetch them earlier, though no earlier than it must for no kernel to wait. It reaches
the same peak without any stall.
"""


def main() -> None:
    """Write the page."""
    parts = {"transformers": transformers(), "compared": compared(), "chains": chains()}
    PAGE.write_text(TEXT.format(batch=BATCH, tokens=TOKENS, **parts))
    print(PAGE.read_text())


if __name__ == "__main__":
    main()
