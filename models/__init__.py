"""The zoo: well-known networks built as ONNX with seeded weights; no network access, no framework.

Topologies and shapes are torchvision's, Hugging Face's and Keras', in inference form. Weights are random, but scaled so
that outputs vary with a standard deviation near 1 and depend on the input, which makes a wrong rewrite visible in the
values. They are drawn when a model is built; none of them are stored.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy.typing as npt
import onnx

from .bert import bert_base, bert_large
from .builder import Net
from .convnext import convnext_tiny
from .densenet import densenet_121
from .digests import SHA256
from .efficientnet import efficientnet_b0, efficientnet_b6
from .gnn import RELATIONS, Edges, citations, gat, gcn, gin, hgt, relational_layer, rgat, rgcn, sage
from .gpt import gpt_2
from .inception import googlenet, inception_v3
from .lstm import lstm_classifier
from .mnasnet import mnasnet
from .mobilenet import mobilenet_v2, mobilenet_v3_large, mobilenet_v3_small
from .regnet import regnet_x_400mf, regnet_y_400mf
from .resnet import resnet_18, resnet_34, resnet_50, resnext_50
from .shufflenet import shufflenet_v2
from .squeezenet import squeezenet_1_0, squeezenet_1_1
from .ssdlite import ssdlite_320
from .toy import toy
from .vgg import vgg_16
from .vit import vit_b_16

__all__ = [
    "RELATIONS",
    "SHA256",
    "Apart",
    "Edges",
    "Entry",
    "UnknownModel",
    "build",
    "build_apart",
    "describe",
    "entry",
    "export",
    "graph",
    "names",
    "networks",
    "relational_layer",
    "rounded",
    "skeleton",
]

Make = Callable[[Net], onnx.ModelProto]


class Apart(NamedTuple):
    """A model and its large constants by name; the model itself holds only their names, types and shapes."""

    proto: onnx.ModelProto
    constants: dict[str, npt.NDArray[Any]]


class UnknownModel(LookupError):
    """There is no model of that name in the zoo; the message names the closest ones."""


@dataclass(frozen=True)
class Entry:
    """One model and its figures, known without building it.

    Args:
        make: writes the model into an empty `Net`.
        seed: of its weights.
        input: an image's channels, height and width, or a number of tokens.
        parameters: trained parameters (weights, biases, norms' scale and shift).
        macs: multiply-accumulates in convolutions, matrix products and LSTMs, for one image or text.
    """

    name: str
    make: Make
    seed: int
    input: str
    parameters: int
    macs: int


def _image(name: str, make: Make, seed: int, size: int, parameters: int, macs: int) -> Entry:
    return Entry(name, make, seed, f"3x{size}x{size}", parameters, macs)


def _berts(
    name: str, make: Callable[..., onnx.ModelProto], seed: int, parameters: int, macs: dict[int, int]
) -> list[Entry]:
    """One model at several numbers of tokens."""
    return [
        Entry(f"{name}-{tokens}", partial(make, tokens=tokens), seed, f"{tokens} tokens", parameters, count)
        for tokens, count in macs.items()
    ]


_ENTRIES = {
    item.name: item
    for item in (
        _image("toy", toy, 1, 16, 5_706, 1_245_824),
        _image("mobilenet-v2", mobilenet_v2, 2, 224, 3_504_872, 300_774_272),
        _image("mobilenet-v3-large", mobilenet_v3_large, 8, 224, 5_483_032, 216_589_760),
        _image("mobilenet-v3-small", mobilenet_v3_small, 9, 224, 2_542_856, 56_510_400),
        _image("efficientnet-b0", efficientnet_b0, 3, 224, 5_288_548, 385_814_752),
        _image("efficientnet-b6", efficientnet_b6, 4, 528, 43_040_704, 19_067_593_536),
        _image("mnasnet-0.5", partial(mnasnet, width=0.5, gain=1.0), 10, 224, 2_218_512, 104_455_968),
        _image("mnasnet-1.0", partial(mnasnet, width=1.0, gain=1.0), 5, 224, 4_383_312, 314_415_872),
        _image("mnasnet-1.3", partial(mnasnet, width=1.3, gain=1.0), 11, 224, 6_282_256, 526_362_432),
        _image("resnet-18", resnet_18, 12, 224, 11_689_512, 1_814_073_344),
        _image("resnet-34", resnet_34, 13, 224, 21_797_672, 3_663_761_408),
        _image("resnet-50", resnet_50, 6, 224, 25_557_032, 4_089_184_256),
        _image("resnext-50", resnext_50, 14, 224, 25_028_904, 4_230_479_872),
        _image("regnet-x-400mf", regnet_x_400mf, 15, 224, 5_495_976, 413_812_608),
        _image("regnet-y-400mf", regnet_y_400mf, 16, 224, 4_344_144, 401_842_848),
        _image("vgg-16", vgg_16, 7, 224, 138_357_544, 15_470_264_320),
        _image("squeezenet-1.0", squeezenet_1_0, 17, 224, 1_248_424, 818_924_576),
        _image("squeezenet-1.1", squeezenet_1_1, 18, 224, 1_235_496, 349_151_936),
        _image("shufflenet-v2", shufflenet_v2, 19, 224, 2_278_604, 144_907_992),
        _image("densenet-121", densenet_121, 20, 224, 7_978_856, 2_834_161_664),
        _image("googlenet", googlenet, 21, 224, 6_624_904, 1_498_376_192),
        _image("inception-v3", inception_v3, 22, 299, 23_834_568, 5_713_216_096),
        _image("convnext-tiny", convnext_tiny, 23, 224, 28_589_128, 4_455_531_264),
        _image("vit-b-16", vit_b_16, 24, 224, 86_567_656, 17_563_828_224),
        _image("ssdlite-320", ssdlite_320, 25, 320, 3_440_060, 583_171_904),
        *_berts(
            "bert-base",
            bert_base,
            26,
            109_482_240,
            {3: 255_559_680, 32: 2_737_373_184, 64: 5_511_905_280, 128: 11_174_215_680},
        ),
        *_berts(
            "bert-large",
            bert_large,
            27,
            335_141_888,
            {3: 907_460_608, 32: 9_715_056_640, 64: 19_529_728_000, 128: 39_461_060_608},
        ),
        Entry("gpt-2", gpt_2, 28, "64 tokens", 124_439_808, 7_981_547_520),
        Entry("lstm-classifier", lstm_classifier, 29, "200 tokens", 2_757_761, 39_321_728),
    )
}


_PAPERS = "2,708 papers, 1,433 words"
_NETWORKS = {
    item.name: item
    for item in (
        Entry("gcn", gcn, 30, _PAPERS, 23_063, 62_392_320),
        Entry("sage", sage, 31, _PAPERS, 46_103, 124_784_640),
        Entry("gin", gin, 32, _PAPERS, 23_607, 63_778_816),
        Entry("gat", gat, 33, _PAPERS, 92_373, 249_569_280),
        Entry("rgcn", rgcn, 34, _PAPERS, 92_183, 249_569_280),
        Entry("rgat", rgat, 35, _PAPERS, 49_941, 153_375_944),
        Entry("hgt", hgt, 36, _PAPERS, 57_665, 157_777_920),
    )
}


def names() -> tuple[str, ...]:
    """The models' names, without graph networks."""
    return tuple(_ENTRIES)


def networks() -> tuple[str, ...]:
    """Names of the graph networks, which run on a graph: by default on the one that `graph` returns."""
    return tuple(_NETWORKS)


def graph(name: str) -> Edges | None:
    """The graph that a graph network comes with; None for any other model.

    Raises:
        UnknownModel: there is no such model.
    """
    return citations() if entry(name).name in _NETWORKS else None


def entry(name: str) -> Entry:
    """A model's figures. Case and separators do not matter: "MobileNet_V2" is "mobilenet-v2".

    Raises:
        UnknownModel: there is no such model.
    """
    every = _ENTRIES | _NETWORKS
    plain = {_plain(known): known for known in every}
    known = plain.get(_plain(name))
    if known is not None:
        return every[known]
    import difflib

    close = [plain[match] for match in difflib.get_close_matches(_plain(name), plain, n=2)]
    hint = f"did you mean {' or '.join(close)}?" if close else f"it has {', '.join(every)}"
    raise UnknownModel(f"no model {name!r} in the zoo; {hint}")


def build(name: str) -> onnx.ModelProto:
    """Build a model; its bytes are the same every time, whatever the versions of Python and numpy.

    An image network has one float32 input `input` [1, 3, S, S] and one output `logits`; a network for text has
    `input_ids`, int64 [1, tokens]. A graph network has `x` and `edge_index` (and `edge_type`) of any size.

    Raises:
        UnknownModel: there is no such model.
    """
    item = entry(name)
    return item.make(Net(item.name, item.seed))


def build_apart(name: str) -> Apart:
    """The model that `build` makes, without a copy of its large constants.

    Raises:
        UnknownModel: there is no such model.
    """
    item = entry(name)
    net = Net(item.name, item.seed, apart=True)
    return Apart(item.make(net), net.apart)


def skeleton(name: str) -> onnx.ModelProto:
    """A model without the data of its weights, which is fast to build: it can be inspected, but not run.

    Raises:
        UnknownModel: there is no such model.
    """
    item = entry(name)
    return item.make(Net(item.name, item.seed, weights=False))


def describe(name: str) -> str:
    """One line: the input, parameters, multiply-accumulates.

    Raises:
        UnknownModel: there is no such model.
    """
    item = entry(name)
    return f"{item.input}, {rounded(item.parameters)} parameters, {rounded(item.macs)} MACs"


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


def rounded(count: int) -> str:
    """12345678 as "12.3 M"."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return str(count)
