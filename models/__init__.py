"""The zoo: well-known networks built as ONNX with seeded weights; no network access, no framework.

Topologies and shapes are torchvision's, in inference form. Weights are random but of a scale at which logits have a
standard deviation near 1 and depend on the input, so that a wrong rewrite shows in the values.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx

from .efficientnet import efficientnet_b0, efficientnet_b6
from .mnasnet import mnasnet_1_0
from .mobilenet import mobilenet_v2
from .resnet import resnet_50
from .toy import toy
from .vgg import vgg_16

__all__ = ["Entry", "UnknownModel", "build", "describe", "entry", "export", "names"]


class UnknownModel(LookupError):
    """There is no model of that name in the zoo; the message names the closest ones."""


@dataclass(frozen=True)
class Entry:
    """One model and its figures, known without building it.

    Args:
        build: makes the model.
        size: height and width of its square input, in pixels.
        convolutions: number of convolutions.
        conv_macs: multiply-accumulates in the convolutions, for one image.
        parameters: trained parameters (weights, biases, batch norms' scale and shift).
    """

    name: str
    build: Callable[[], onnx.ModelProto]
    size: int
    convolutions: int
    conv_macs: int
    parameters: int


_ENTRIES = {
    item.name: item
    for item in (
        Entry("toy", toy, 16, 3, 1_245_184, 5_706),
        Entry("mobilenet-v2", mobilenet_v2, 224, 52, 299_494_272, 3_504_872),
        Entry("efficientnet-b0", efficientnet_b0, 224, 81, 384_534_752, 5_288_548),
        Entry("efficientnet-b6", efficientnet_b6, 528, 224, 19_065_289_536, 43_040_704),
        Entry("mnasnet-1.0", mnasnet_1_0, 224, 52, 313_135_872, 4_383_312),
        Entry("resnet-50", resnet_50, 224, 53, 4_087_136_256, 25_557_032),
        Entry("vgg-16", vgg_16, 224, 13, 15_346_630_656, 138_357_544),
    )
}


def names() -> tuple[str, ...]:
    """The models' names."""
    return tuple(_ENTRIES)


def entry(name: str) -> Entry:
    """A model's figures. Case and separators do not matter: "MobileNet_V2" is "mobilenet-v2".

    Raises:
        UnknownModel: there is no such model.
    """
    plain = {_plain(known): known for known in _ENTRIES}
    known = plain.get(_plain(name))
    if known is not None:
        return _ENTRIES[known]
    close = [plain[match] for match in difflib.get_close_matches(_plain(name), plain, n=2)]
    hint = f"did you mean {' or '.join(close)}?" if close else f"it has {', '.join(_ENTRIES)}"
    raise UnknownModel(f"no model {name!r} in the zoo; {hint}")


def build(name: str) -> onnx.ModelProto:
    """Builds a model: one float32 input `input` [1, 3, S, S], one output `logits`. The same bytes every time.

    Raises:
        UnknownModel: there is no such model.
    """
    return entry(name).build()


def describe(name: str) -> str:
    """One line: input size, convolutions, multiply-accumulates in them, parameters.

    Raises:
        UnknownModel: there is no such model.
    """
    item = entry(name)
    return (
        f"{item.size}x{item.size}, {item.convolutions} convolutions, "
        f"{_rounded(item.conv_macs)} MACs in them, {_rounded(item.parameters)} parameters"
    )


def export(name: str, path: str | os.PathLike[str]) -> None:
    """Writes a model as an ONNX file.

    Raises:
        UnknownModel: there is no such model.
        OSError: the file cannot be written.
    """
    data = build(name).SerializeToString(deterministic=True)
    Path(path).write_bytes(data)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _rounded(count: int) -> str:
    """12345678 as "12.3 M"."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return str(count)
