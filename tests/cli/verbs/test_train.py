"""`pimflow train`: a training step, and the plan for its activations."""

from __future__ import annotations

import pytest

from support.cli import Capture, document, run


def test_train_prints_its_plan(capsys: Capture) -> None:
    assert run("train", "zoo:toy", "--target", "a100-ssd", "--loss", "cross-entropy", "--optimiser", "adam") == 0
    text = capsys.readouterr().out
    assert "zoo:toy trained on a100-ssd: activations take" in text
    assert "years until the rated endurance of the drives is reached" in text
    assert "conv1" in text


def test_the_document_has_the_same_figures(capsys: Capture) -> None:
    found = document(capsys, "train", "zoo:toy", "--target", "a100-ssd", "--activations", "offload")
    assert found["plan"]["peak_bytes"] <= found["kept"]["peak_bytes"]
    assert found["plan"]["slowed_us"] > 0
    parts_us = sum(found["plan"][f"{part}_us"] for part in ("stall", "recompute", "slowed"))
    assert found["plan"]["time_us"] == pytest.approx(found["kept"]["time_us"] + parts_us)
    offloaded = sum(row["bytes"] for row in found["saved"] if row["becomes"] == "offloaded")
    assert found["plan"]["offloaded_bytes"] == offloaded == found["ssd"]["written_bytes"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--loss", "hinge"), "unknown loss 'hinge'; choose one of sum, mean-squared, cross-entropy"),
        (("--slower", "-1"), "'-1' is not a number"),
        (("--activations", "rule"), "'pimflow' has no SSDs"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], message: str, capsys: Capture) -> None:
    assert run("train", "zoo:toy", *arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
