"""`pimflow layer`: a single layer without a model."""

from __future__ import annotations

import pytest

from support.cli import Capture, assert_one_line, document, run


def test_layer_has_the_promised_keys(capsys: Capture) -> None:
    item = document(capsys, "layer", "--conv", "ic=16,oc=96,h=28,w=28,k=1,s=1,p=0")
    assert {
        "mapping",
        "pim_cycles",
        "commands",
        "utilisation",
        "energy_mj",
        "energy_parts_mj",
        "channels",
    } <= item.keys()
    assert len(item["channels"]) == 16
    assert item["pim_cycles"] == max(channel["cycles"] for channel in item["channels"])
    for name, count in item["commands"].items():
        assert count == sum(channel["commands"][name] for channel in item["channels"])
    assert item["commands"]["COMP"] >= 28 * 28 * 6
    assert 0 < item["utilisation"] <= 1
    assert item["energy_mj"] > 0


def test_layer_knobs_matter(capsys: Capture) -> None:
    layer = ("layer", "--conv", "ic=64,oc=64,h=28,w=28,k=3,p=1/1/1/1")
    cycles = {
        options: document(capsys, *layer, *options)["pim_cycles"]
        for options in (
            (),
            ("--mapping", "newton++"),
            ("--mapping", "newton+"),
            ("--mapping", "newton++", "--buffers", "1"),
            ("--timing", "artifact"),
            ("--buffers-per-channel", "2"),
        )
    }
    assert len(set(cycles.values())) == len(cycles)
    assert cycles[()] < cycles["--mapping", "newton++"] < cycles["--mapping", "newton+"]
    assert cycles["--buffers-per-channel", "2"] < cycles[()]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--conv", "ic=16"),
        ("--conv", ""),
        ("--matmul", ""),
        ("--conv", "ic=16,oc=4,h=5,w=5,k=1,q=3"),
        ("--conv", "ic=16,oc=4,h=5,w=5,k=zero"),
        ("--conv", "ic=16,oc=4,h=5,w=5,k=9"),
        ("--conv", "ic=15,oc=4,h=5,w=5,k=1,g=2"),
        ("--matmul", "m=1,k=0,n=4"),
        ("--matmul", "m=1,k=4,n=4", "--mapping", "newton+++"),
        (),
    ],
)
def test_nonsensical_layers_give_a_one_line_error(capsys: Capture, arguments: tuple[str, ...]) -> None:
    assert run("layer", *arguments) == 2
    assert_one_line(capsys)
