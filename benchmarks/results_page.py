"""The text of docs/results.md: fills the tables and numbers into `results_template.md`, from the records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from string import Template
from typing import Any

from fit_gpu import loss, with_fit
from results_data import LABELS, MODELS, POLICY_LABELS, Figure, Record, mean, one

from pimflow.runtime.gpu.published import read_rows
from pimflow.targets import load_target

GPU = load_target("pimflow").gpu
TEMPLATE = Path(__file__).with_name("results_template.md")
MEASURED_TABLES = sorted((Path(__file__).parent.parent / "tests" / "data" / "measured").glob("t4_*.csv"))
MACHINES = {"strict": "pimflow", "measured-gpu": "turing-pim", "free-launches": "turing-pim, PIM launches free"}
"""Studies of the default machine and of the measured GPU, and their names on the page."""
MEASURED = ("newton++", "pimflow", "auto")
FITTED = ("step_cycles", "fill_cycles", "matrix_efficiency", "depthwise_macs_per_sm_cycle")


def page(
    records: Sequence[Record], shares: Mapping[str, float], near_fits: Sequence[Mapping[str, float]], made: str
) -> str:
    """The whole page.

    Args:
        records: of all studies.
        shares: share of the GPU's run time that 1x1 convolutions and matrix products take, by model.
        near_fits: the parameter sets of the study "near-fits", in order.
        made: one line on how long this took, and where.
    """
    fields = {
        "made": made,
        "fitted": _figures(_fitted(records)),
        "predicted": _figures(_predicted(records, shares)),
        "conv_table": _by_policy(records, "strict", "conv_speedup", "{:.3f}".format),
        "end_table": _by_policy(records, "strict", "speedup", "{:.3f}".format),
        "energy_table": _by_policy(records, "strict", "energy_change", "{:+.1%}".format),
        "artifact_conv_table": _by_policy(records, "policies", "conv_speedup", "{:.3f}".format),
        "artifact_end_table": _by_policy(records, "policies", "speedup", "{:.3f}".format),
        "artifact_energy_table": _by_policy(records, "policies", "energy_change", "{:+.1%}".format),
        "sensitivity_table": _sensitivity(records),
        "transformer_table": _transformers(records),
        "modes_table": _modes(records),
        "channels_conv": _study(records, "channels", "pimflow", "channels", "conv_speedup"),
        "channels_end": _study(records, "channels", "pimflow", "channels", "speedup"),
        "buffers_table": _study(records, "buffers", "pimflow", "buffers", "conv_speedup"),
        "stages_table": _study(records, "stages", "pipeline", "stages", "conv_speedup"),
        "size_table": _sizes(records),
        "padding_table": _padding(records),
        "timing_table": _timing(records),
        "measured_end": _machines(records, "speedup", "{:.3f}".format),
        "measured_conv": _machines(records, "conv_speedup", "{:.3f}".format),
        "measured_energy": _machines(records, "energy_change", "{:+.1%}".format),
        "measured_conclusions": _conclusions(records),
        "measured_kernels": f"{sum(len(read_rows(path)) for path in MEASURED_TABLES):,}",
        "valley_table": _valley(records, near_fits),
        "step_cycles": f"{GPU.step_cycles:.0f}",
        "fill_cycles": f"{GPU.fill_cycles:.0f}",
        "matrix_efficiency": f"{GPU.matrix_efficiency:.3g}",
        "depthwise": f"{GPU.depthwise_macs_per_sm_cycle:g}",
        "memory_efficiency": f"{GPU.memory_efficiency:.0%}",
        "busy_w": f"{GPU.energy.busy_w:g}",
        "power": _power(records),
        "energy_mean": f"{mean(records, 'policies', 'pimflow', 'energy_change'):+.1%}",
        "energy_strict": f"{mean(records, 'strict', 'pimflow', 'energy_change'):+.1%}",
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    return Template(text).substitute(fields | _misses(records) | _auto(records))


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


# ---- published figures


def _figures(figures: Iterable[Figure]) -> str:
    rows = [(f.what, f.text(f.published), f.text(f.ours), f.error, f.why) for f in figures]
    return _table(("figure", "published", "ours", "difference", "remark"), rows)


def _fitted(records: Sequence[Record]) -> list[Figure]:
    def mobile(policy: str) -> Record:
        return one(records, "policies", "mobilenet-v2", policy)

    base = mobile("pimflow")
    figures = [Figure("CONV, GPU alone, cycles", 1.454e6, base["baseline_conv_us"] * GPU.clock_mhz, "cycles")]
    for policy, published in (("newton++", 1.365), ("pipeline", 1.413), ("md-dp", 1.436), ("pimflow", 1.481)):
        figures.append(Figure(f"CONV, {POLICY_LABELS[policy]}", published, mobile(policy)["conv_speedup"]))
    figures.append(Figure("end to end, GPU alone, cycles", 1.44562e6, base["baseline_us"] * GPU.clock_mhz, "cycles"))
    figures.append(Figure("end to end, PIMFlow", 1.44562e6 / 1.047831e6, base["speedup"]))
    return figures


def _predicted(records: Sequence[Record], shares: Mapping[str, float]) -> list[Figure]:
    def best(figure: str, choose: Callable[[Iterable[tuple[float, str]]], tuple[float, str]]) -> tuple[float, str]:
        return choose((one(records, "policies", model, "pimflow")[figure], LABELS[model]) for model in MODELS)

    def average(policy: str, figure: str) -> float:
        return mean(records, "policies", policy, figure)

    conv, end, saved = best("conv_speedup", max), best("speedup", max), best("energy_change", min)
    b0 = one(records, "policies", "efficientnet-b0", "pimflow")["speedup"]
    b6 = one(records, "size", "efficientnet-b6", "pimflow")["speedup"]
    light = [shares[name] for name in ("mobilenet-v2", "efficientnet-b0", "mnasnet-1.0")]
    return [
        Figure("CONV, Newton++, mean of five", 1.20, average("newton++", "conv_speedup")),
        Figure("CONV, PIMFlow, mean of five", 1.30, average("pimflow", "conv_speedup")),
        Figure("CONV, PIMFlow, best model", 1.48, conv[0], why=conv[1]),
        Figure("end to end, Newton++, mean of five", 1.13, average("newton++", "speedup"), why="see 1"),
        Figure("end to end, PIMFlow, mean of five", 1.34, average("pimflow", "speedup"), why="see 1"),
        Figure("end to end, PIMFlow, best model", 1.82, end[0], why=f"{end[1]}; see 2"),
        Figure("energy, PIMFlow, mean of five", -0.26, average("pimflow", "energy_change"), "%", why="see 5"),
        Figure("energy, PIMFlow, best model", -0.39, saved[0], "%", why=saved[1]),
        Figure("end to end, PIMFlow, EfficientNet-B0", 1.43, b0, why="see 3"),
        Figure("end to end, PIMFlow, EfficientNet-B6", 1.07, b6, why="528x528"),
        Figure("1x1 CONV and FC in the GPU's time, least", 0.60, min(light), "share", why="see 4"),
        Figure("1x1 CONV and FC in the GPU's time, most", 0.80, max(light), "share", why="see 4"),
    ]


def _misses(records: Sequence[Record]) -> dict[str, str]:
    """The numbers in the discussion of the differences."""

    def over_newton(figure: str) -> float:
        return mean(records, "policies", "pimflow", figure) / mean(records, "policies", "newton++", figure)

    vgg = one(records, "policies", "vgg-16", "pimflow")
    return {
        "conv_over_newton": f"{over_newton('conv_speedup'):.3f}",
        "end_over_newton": f"{over_newton('speedup'):.3f}",
        "vgg_rest": f"{1 - vgg['baseline_conv_us'] / vgg['baseline_us']:.0%}",
        "vgg_limit": f"{vgg['baseline_us'] / vgg['conv_us']:.2f}",
        "b0_conv": f"{one(records, 'policies', 'efficientnet-b0', 'pimflow')['conv_speedup']:.3f}",
    }


# ---- policies


def _by_policy(records: Sequence[Record], study: str, figure: str, text: Callable[[float], str]) -> str:
    rows = [
        (LABELS[model], *(text(one(records, study, model, policy)[figure]) for policy in POLICY_LABELS))
        for model in MODELS
    ]
    rows.append(("**mean of five**", *(text(mean(records, study, policy, figure)) for policy in POLICY_LABELS)))
    return _table(("model", *POLICY_LABELS.values()), rows)


def _auto(records: Sequence[Record]) -> dict[str, str]:
    ratios = {
        model: one(records, "strict", model, "auto")["speedup"] / one(records, "strict", model, "pimflow")["speedup"]
        for model in MODELS
    }
    least = min(ratios, key=lambda model: ratios[model])
    return {
        "auto_gain": f"{math.prod(ratios.values()) ** (1 / len(ratios)) - 1:.1%}",
        "auto_least": f"{ratios[least] - 1:.1%}",
        "auto_least_model": LABELS[least],
    }


def _modes(records: Sequence[Record]) -> str:
    rows = []
    for model in MODELS:
        for policy in ("pimflow", "auto"):
            record = one(records, "strict", model, policy)
            shares = [f"{record['mode_share'][mode]:.0%}" for mode in ("gpu", "pim", "md-dp", "pipeline")]
            splits = ", ".join(f"{ratio} %: {count}" for ratio, count in record["ratio_histogram"].items())
            found = (str(record["candidates"]), f"{record['search_seconds']:.1f} s")
            rows.append((LABELS[model], POLICY_LABELS[policy], *shares, splits or "none", *found))
    header = ("model", "policy", "GPU", "PIM", "MD-DP", "pipeline", "rows on PIM in MD-DP", "candidates", "search")
    return _table(header, rows)


# ---- variations of the machine


def _study(records: Sequence[Record], study: str, policy: str, knob: str, figure: str) -> str:
    counts = sorted({record[knob] for record in records if record["study"] == study})
    rows = [
        (LABELS[model], *(f"{one(records, study, model, policy, **{knob: c})[figure]:.3f}" for c in counts))
        for model in MODELS
    ]
    rows.append(("**mean of five**", *(f"{mean(records, study, policy, figure, **{knob: c}):.3f}" for c in counts)))
    return _table((knob, *map(str, counts)), rows)


def _sizes(records: Sequence[Record]) -> str:
    found = [one(records, "policies", "efficientnet-b0", policy) for policy in ("newton++", "pimflow")]
    found += [one(records, "size", "efficientnet-b6", policy) for policy in ("newton++", "pimflow")]
    rows = [
        (LABELS[r["model"]], POLICY_LABELS[r["policy"]], f"{r['conv_speedup']:.3f}", f"{r['speedup']:.3f}")
        for r in found
    ]
    return _table(("model", "policy", "CONV", "end to end"), rows)


def _padding(records: Sequence[Record]) -> str:
    kinds = [(policy, study) for policy in ("md-dp", "pimflow", "auto") for study in ("padding", "policies")]
    rows = [
        (LABELS[model], *(f"{one(records, study, model, policy)['speedup']:.3f}" for policy, study in kinds))
        for model in MODELS
    ]
    rows.append(("**mean of five**", *(f"{mean(records, study, policy, 'speedup'):.3f}" for policy, study in kinds)))
    names = {"padding": "any padding", "policies": "both sides alike"}
    return _table(("model", *(f"{POLICY_LABELS[policy]}, {names[study]}" for policy, study in kinds)), rows)


def _timing(records: Sequence[Record]) -> str:
    kinds = [(policy, study) for policy in ("newton++", "pimflow", "auto") for study in ("policies", "strict")]
    rows = [
        (LABELS[model], *(f"{one(records, study, model, policy)['speedup']:.3f}" for policy, study in kinds))
        for model in MODELS
    ]
    rows.append(("**mean of five**", *(f"{mean(records, study, policy, 'speedup'):.3f}" for policy, study in kinds)))
    names = {"policies": "artifact", "strict": "strict"}
    return _table(("model", *(f"{POLICY_LABELS[policy]}, {names[study]}" for policy, study in kinds)), rows)


# ---- the other GPU


def _machines(records: Sequence[Record], figure: str, text: Callable[[float], str]) -> str:
    """A figure on both machines and with free launches, by model, all under the timing profile `strict`."""
    kinds = [(study, policy) for study in MACHINES for policy in ("newton++", "pimflow", "auto")]
    rows = [
        (LABELS[model], *(text(one(records, study, model, policy, timing="strict")[figure]) for study, policy in kinds))
        for model in MODELS
    ]
    means = (text(mean(records, study, policy, figure, timing="strict")) for study, policy in kinds)
    rows.append(("**mean of five**", *means))
    return _table(("model", *(f"{MACHINES[study]}: {POLICY_LABELS[policy]}" for study, policy in kinds)), rows)


def _conclusions(records: Sequence[Record]) -> str:
    """The gains on each machine, and how much of each gain remains relative to the machine of the paper."""

    def gain(study: str, policy: str, figure: str = "speedup") -> float:
        return mean(records, study, policy, figure, timing="strict") - 1

    def over(study: str, policy: str, other: str) -> float:
        return (1 + gain(study, policy)) / (1 + gain(study, other)) - 1

    def light(study: str) -> float:
        found = [one(records, study, model, "pimflow", timing="strict")["speedup"] for model in MODELS]
        return fmean(found[:3]) / fmean(found[3:]) - 1

    conclusions: dict[str, Callable[[str], float]] = {
        "PIM alone makes inference faster (Newton++)": lambda study: gain(study, "newton++"),
        "with MD-DP and pipelining, faster still (PIMFlow)": lambda study: gain(study, "pimflow"),
        "these two gain over PIM alone (PIMFlow over Newton++)": lambda study: over(study, "pimflow", "newton++"),
        "searching everything gains more (auto over PIMFlow)": lambda study: over(study, "auto", "pimflow"),
        "convolutions get faster (PIMFlow, CONV)": lambda study: gain(study, "pimflow", "conv_speedup"),
        "energy is saved (PIMFlow)": lambda study: -mean(records, study, "pimflow", "energy_change", timing="strict"),
        "light networks gain more than heavy ones (PIMFlow)": light,
    }
    rows = []
    for conclusion, of in conclusions.items():
        there, *others = (of(study) for study in MACHINES)
        rows.append((conclusion, *(f"{value:+.1%}" for value in (there, *others)), _verdict(there, others[0])))
    return _table(("conclusion, as a gain", *MACHINES.values(), "on the measured GPU"), rows)


def _verdict(there: float, here: float) -> str:
    """How much of a gain remains: at least three quarters counts as holding, less than two percent as none."""
    if here >= 0.75 * there > 0:
        return "holds"
    if here >= 0.02:
        return "weaker"
    return "does not hold" if here > -0.02 else "reversed"


# ---- robustness of the fit


def _power(records: Sequence[Record]) -> str:
    watts = sorted({record["busy_w"] for record in records if record["study"] == "power"})
    return " and ".join(
        f"{mean(records, 'power', 'pimflow', 'energy_change', busy_w=value):+.1%} with {value:g} W" for value in watts
    )


def _sensitivity(records: Sequence[Record]) -> str:
    """Means of the five models with one value changed, the most influential value for `auto` first."""

    def row(what: str, study: str, **knobs: Any) -> tuple[str, ...]:
        found = (
            (policy, figure, mean(records, study, policy, figure, **knobs))
            for figure in ("speedup", "energy_change")
            for policy in ("pimflow", "auto")
        )
        return (what, *(f"{value:.3f}" if figure == "speedup" else f"{value:+.1%}" for _, figure, value in found))

    def swing(path: str) -> float:
        low, high = (mean(records, "sensitivity", "auto", "speedup", scaled=path, factor=f) for f in (0.5, 2.0))
        return abs(math.log(high / low))

    paths = sorted({r["scaled"] for r in records if r["study"] == "sensitivity"}, key=lambda path: (-swing(path), path))
    rows = [row("as shipped", "strict")]
    rows += [
        row(f"`{path}` x {factor:g}", "sensitivity", scaled=path, factor=factor)
        for path in paths
        for factor in (0.5, 2.0)
    ]
    launches = sorted({r["pim_launch_us"] for r in records if r["study"] == "pim-launch"})
    rows += [row(f"`pim.launch_us` = {value:g}", "pim-launch", pim_launch_us=value) for value in launches]
    header = ("value", "PIMFlow", "auto", "PIMFlow, energy", "auto, energy")
    return _table(header, rows)


def _transformers(records: Sequence[Record]) -> str:
    found = [record for record in records if record["study"] == "transformer"]
    rows = []
    for model in dict.fromkeys(record["model"] for record in found):
        mine = {(r["machine"], r["policy"]): r for r in found if r["model"] == model}
        machines = dict.fromkeys(machine for machine, _ in mine)
        best = (mine[machine, "auto"] for machine in machines)
        shares = (f"{r['mode_share']['pim']:.0%}, {r['mode_share']['md-dp']:.0%}" for r in best)
        rows.append(
            (
                model.split("x")[1],
                *(f"{mine[machine, 'auto']['baseline_us']:.0f}" for machine in machines),
                *(f"{mine[machine, policy]['speedup']:.2f}" for machine in machines for policy in MEASURED),
                *shares,
            )
        )
    names = list(dict.fromkeys(record["machine"] for record in found))
    header = ["tokens", *(f"{name}: GPU alone, us" for name in names)]
    header += [f"{name}: {POLICY_LABELS[policy]}" for name in names for policy in MEASURED]
    header += [f"{name}: products on PIM, divided" for name in names]
    return _table(header, rows)


def _valley(records: Sequence[Record], near_fits: Sequence[Mapping[str, float]]) -> str:
    header = ("fit", *FITTED, "error of fit", "CONV, N++", "CONV, PF", "e2e, N++", "e2e, PF", "energy, PF")
    rows = [_fit_row("this target", records, {name: getattr(GPU, name) for name in FITTED}, None)]
    rows += [_fit_row(f"fit {index + 1}", records, fit, index) for index, fit in enumerate(near_fits)]
    return _table(header, rows)


def _fit_row(name: str, records: Sequence[Record], fit: Mapping[str, float], index: int | None) -> tuple[str, ...]:
    study = "policies" if index is None else "near-fits"
    error = f"{math.sqrt(loss(with_fit(GPU, fit))):.2f} %"
    means = [
        f"{mean(records, study, policy, figure, near_fit=index):.3f}"
        for figure in ("conv_speedup", "speedup")
        for policy in ("newton++", "pimflow")
    ]
    energy = f"{mean(records, study, 'pimflow', 'energy_change', near_fit=index):+.1%}"
    return name, *(f"{fit[key]:g}" for key in FITTED), error, *means, energy
