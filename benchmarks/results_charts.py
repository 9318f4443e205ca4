"""The charts of docs/results.md. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from results_data import LABELS, MODELS, POLICY_LABELS, Record, mean, one

COLORS = {
    "newton+": "#c9d6df",
    "newton++": "#8fb3cc",
    "pipeline": "#4f8fba",
    "md-dp": "#2a6a9e",
    "pimflow": "#123f66",
    "auto": "#e07b39",
}
MODEL_COLORS = dict(zip(MODELS, ("#123f66", "#2a6a9e", "#4f8fba", "#9c6ade", "#5b8c5a"), strict=True))
PUBLISHED = {  # (figure, model or "mean", policy) to the published value
    ("conv_speedup", "mobilenet-v2", "newton++"): 1.365,
    ("conv_speedup", "mobilenet-v2", "pipeline"): 1.413,
    ("conv_speedup", "mobilenet-v2", "md-dp"): 1.436,
    ("conv_speedup", "mobilenet-v2", "pimflow"): 1.481,
    ("conv_speedup", "mean", "newton++"): 1.20,
    ("conv_speedup", "mean", "pimflow"): 1.30,
    ("speedup", "mobilenet-v2", "pimflow"): 1.38,
    ("speedup", "efficientnet-b0", "pimflow"): 1.43,
    ("speedup", "mean", "newton++"): 1.13,
    ("speedup", "mean", "pimflow"): 1.34,
    ("energy_change", "mean", "pimflow"): -0.26,
}


def draw(records: Sequence[Record], folder: Path) -> None:
    """Draws every chart into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    plt.rcParams.update(
        {
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlelocation": "left",
            "axes.titleweight": "bold",
            "axes.grid": True,
            "axes.grid.axis": "y",
            "grid.color": "#e6e6e6",
            "axes.axisbelow": True,
            "legend.frameon": False,
        }
    )
    _policies(records, folder / "policies.png", "strict")
    _policies(records, folder / "published.png", "policies")
    _energy(records, folder / "energy.png")
    _channels(records, folder / "channels.png")
    _buffers_and_stages(records, folder / "buffers-stages.png")
    _timing(records, folder / "timing.png")


def _save(path: Path) -> None:
    # No date or version in the file: the same figures give the same bytes.
    plt.savefig(path, dpi=130, metadata={"Software": None})
    plt.close()


def _value(records: Sequence[Record], study: str, model: str, policy: str, figure: str) -> float:
    if model == "mean":
        return mean(records, study, policy, figure)
    return float(one(records, study, model, policy)[figure])


def _bars(
    axes: Axes, records: Sequence[Record], study: str, figure: str, policies: Sequence[str], scale: float = 1.0
) -> None:
    """Bars by model and policy; published figures are marked on those made under the published rules."""
    groups = (*MODELS, "mean")
    width = 0.82 / len(policies)
    marked = False
    for index, policy in enumerate(policies):
        offset = (index - (len(policies) - 1) / 2) * width
        places = [group + offset + (0.25 if groups[group] == "mean" else 0) for group in range(len(groups))]
        heights = [scale * _value(records, study, group, policy, figure) for group in groups]
        axes.bar(places, heights, 0.92 * width, color=COLORS[policy], label=POLICY_LABELS[policy])
        for place, group in zip(places, groups, strict=True):
            published = PUBLISHED.get((figure, group, policy))
            if published is not None and study == "policies":
                label = None if marked else "published"
                axes.plot(place, scale * published, "D", ms=4.5, mfc="white", mec="#c1121f", mew=1.3, label=label)
                marked = True
    ticks = [*range(len(MODELS)), len(MODELS) + 0.25]
    axes.set_xticks(ticks, [*(LABELS[model] for model in MODELS), "mean of five"])
    axes.tick_params(axis="x", length=0)


def _policies(records: Sequence[Record], path: Path, study: str) -> None:
    _, axes = plt.subplots(2, 1, figsize=(9.5, 6.4), layout="constrained", sharex=True)
    for axis, figure, title in zip(
        axes, ("conv_speedup", "speedup"), ("All convolutions", "Whole model, end to end"), strict=True
    ):
        _bars(axis, records, study, figure, tuple(POLICY_LABELS))
        axis.set_title(title)
        axis.set_ylabel("speedup over the GPU")
        axis.set_ylim(0.9)
        axis.axhline(1.0, color="#555555", lw=0.8)
    axes[0].legend(ncols=7, loc="upper right", fontsize=8, columnspacing=1.0, handlelength=1.2)
    _save(path)


def _energy(records: Sequence[Record], path: Path) -> None:
    _, axes = plt.subplots(figsize=(9.5, 3.3), layout="constrained")
    _bars(axes, records, "strict", "energy_change", ("newton++", "md-dp", "pimflow", "auto"), scale=100)
    axes.set_title("Energy of one inference, against the GPU alone")
    axes.set_ylabel("change in %")
    axes.axhline(0.0, color="#555555", lw=0.8)
    axes.legend(ncols=5, loc="lower right", fontsize=8)
    _save(path)


def _lines(
    axes: Axes, records: Sequence[Record], study: str, policy: str, knob: str, figure: str, **knobs: object
) -> None:
    counts = sorted({record[knob] for record in records if record["study"] == study and record[knob] is not None})
    for model in MODELS:
        values = [one(records, study, model, policy, **{knob: count}, **knobs)[figure] for count in counts]
        axes.plot(counts, values, "o-", ms=3.5, lw=1.3, color=MODEL_COLORS[model], label=LABELS[model])
    means = [mean(records, study, policy, figure, **{knob: count}, **knobs) for count in counts]
    axes.plot(counts, means, "s--", ms=4, lw=1.6, color="#e07b39", label="mean of five")
    axes.set_xticks(counts)
    axes.axhline(1.0, color="#555555", lw=0.8)


def _channels(records: Sequence[Record], path: Path) -> None:
    _, axes = plt.subplots(1, 2, figsize=(9.5, 3.5), layout="constrained", sharey=True)
    for axis, figure, title in zip(axes, ("conv_speedup", "speedup"), ("All convolutions", "End to end"), strict=True):
        _lines(axis, records, "channels", "pimflow", "channels", figure)
        axis.set_title(f"{title}, PIMFlow")
        axis.set_xlabel("PIM channels of 32")
    axes[0].set_ylabel("speedup over the GPU")
    axes[1].legend(fontsize=8, loc="upper left")
    _save(path)


def _buffers_and_stages(records: Sequence[Record], path: Path) -> None:
    _, axes = plt.subplots(1, 2, figsize=(9.5, 3.5), layout="constrained")
    _lines(axes[0], records, "buffers", "pimflow", "buffers", "conv_speedup")
    axes[0].set_title("Global buffers, PIMFlow")
    axes[0].set_xlabel("buffers that a mapping may use")
    _lines(axes[1], records, "stages", "pipeline", "stages", "conv_speedup")
    axes[1].set_title("Stages of a pipeline, Pipeline")
    axes[1].set_xlabel("stages")
    axes[0].set_ylabel("speedup, all convolutions")
    axes[1].legend(fontsize=8, ncols=2, loc="center right", bbox_to_anchor=(1.0, 0.36))
    _save(path)


def _timing(records: Sequence[Record], path: Path) -> None:
    _, axes = plt.subplots(figsize=(9.5, 3.3), layout="constrained")
    groups = (*MODELS, "mean")
    kinds = [(policy, timing) for policy in ("newton++", "pimflow", "auto") for timing in ("artifact", "strict")]
    width = 0.82 / len(kinds)
    for index, (policy, timing) in enumerate(kinds):
        study = "policies" if timing == "artifact" else "strict"
        values = [float(one(records, study, model, policy)["speedup"]) for model in MODELS]
        values.append(mean(records, study, policy, "speedup"))
        places = [place + (index - (len(kinds) - 1) / 2) * width for place in range(len(groups))]
        hatch = "////" if timing == "strict" else None
        label = f"{POLICY_LABELS[policy]}, {timing}"
        axes.bar(places, values, 0.92 * width, color=COLORS[policy], hatch=hatch, edgecolor="white", label=label)
    axes.set_xticks(range(len(groups)), [*(LABELS[model] for model in MODELS), "mean of five"])
    axes.tick_params(axis="x", length=0)
    axes.set_ylim(0.9)
    axes.axhline(1.0, color="#555555", lw=0.8)
    axes.set_title("End to end under both timing profiles")
    axes.set_ylabel("speedup over the GPU")
    axes.legend(ncols=3, fontsize=8, loc="upper right")
    _save(path)
