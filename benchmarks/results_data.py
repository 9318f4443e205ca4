"""Queries on the records of `reproduce.py` that the results page and its charts share, and the published figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

Record = dict[str, Any]

LABELS = {
    "mobilenet-v2": "MobileNetV2",
    "efficientnet-b0": "EfficientNet-B0",
    "mnasnet-1.0": "MnasNet 1.0",
    "resnet-50": "ResNet-50",
    "vgg-16": "VGG-16",
    "efficientnet-b6": "EfficientNet-B6",
}
MODELS = tuple(LABELS)[:5]
POLICY_LABELS = {
    "newton+": "Newton+",
    "newton++": "Newton++",
    "pipeline": "Pipeline",
    "md-dp": "MD-DP",
    "pimflow": "PIMFlow",
    "auto": "auto",
}


def one(records: Sequence[Record], study: str, model: str, policy: str, **knobs: Any) -> Record:
    """The single record of a study for a model and a policy, with these overrides."""
    found = [
        record
        for record in records
        if record["study"] == study
        and record["model"] == model
        and record["policy"] == policy
        and all(record[name] == value for name, value in knobs.items())
    ]
    if len(found) != 1:
        raise LookupError(f"{len(found)} records of {study} for {model} under {policy} with {knobs}")
    return found[0]


def mean(records: Sequence[Record], study: str, policy: str, figure: str, **knobs: Any) -> float:
    """The arithmetic mean of a figure over the five models, as in the paper."""
    return fmean(one(records, study, model, policy, **knobs)[figure] for model in MODELS)


@dataclass(frozen=True)
class Figure:
    """A published figure and ours."""

    what: str
    published: float
    ours: float
    unit: str = "x"  # "x" a speedup, "%" a change, "share" a part, "cycles"
    why: str = ""

    @property
    def error(self) -> str:
        """The difference of ours from the published figure: relative, or in points for percentages."""
        if self.unit in ("%", "share"):
            return f"{100 * (self.ours - self.published):+.1f} points"
        return f"{100 * (self.ours / self.published - 1):+.1f} %"

    def text(self, value: float) -> str:
        """A value in the figure's unit."""
        if self.unit == "%":
            return f"{100 * value:+.1f} %"
        if self.unit == "share":
            return f"{100 * value:.0f} %"
        return f"{value / 1e3:,.0f} k" if self.unit == "cycles" else f"{value:.3f}"
