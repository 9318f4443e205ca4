"""Placements as ONNX metadata: every field survives a round trip, and damage is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimflow.ir.placement import MovementVerdict, NarrowOperands, Placement
from pimflow.onnxio.placement import metadata_of, placement_of

NAMES = st.text(min_size=1, max_size=8)
VERDICTS = st.builds(MovementVerdict, st.just(True), NAMES, composed=st.booleans()) | st.builds(
    MovementVerdict, st.just(False), NAMES, st.lists(st.integers(0, 9), max_size=3).map(tuple)
)
PLACEMENTS = st.builds(
    Placement,
    device=st.none() | NAMES,
    region=st.none() | st.integers(0, 99),
    stage=st.none() | st.integers(0, 9),
    choice=st.none() | NAMES,
    origin=st.none() | NAMES,
    fused_into=st.none() | NAMES,
    movement=st.none() | VERDICTS,
    padding=st.none() | VERDICTS,
    narrow=st.none() | st.builds(NarrowOperands, st.just("int8"), st.floats(1e-300, 1e300)),
)


@given(PLACEMENTS)
def test_every_field_survives_a_round_trip(placement: Placement) -> None:
    metadata = metadata_of(placement, (("note", "kept"),))
    assert all(key.startswith("pimflow.") and isinstance(text, str) for key, text in metadata.items())
    assert placement_of(metadata) == (placement, (("note", "kept"),))


def test_foreign_entries_are_ignored() -> None:
    assert placement_of({"device": "pim", "other.device": "pim"}) == (Placement(), ())


def test_the_words_in_a_file() -> None:
    kept = Placement("gpu", 3, origin="conv", movement=MovementVerdict(False, "too big", (0, 2)))
    assert metadata_of(kept) == {
        "pimflow.device": "gpu",
        "pimflow.movement": "kept 0,2: too big",
        "pimflow.origin": "conv",
        "pimflow.region": "3",
    }
    composed = MovementVerdict(True, "copies read it", composed=True)
    assert metadata_of(Placement(movement=composed)) == {"pimflow.movement": "composed: copies read it"}


@pytest.mark.parametrize(
    "metadata",
    [
        {"pimflow.region": "first"},
        {"pimflow.movement": "perhaps: so"},
        {"pimflow.movement": "kept x: so"},
        {"pimflow.narrow": "int8 x"},
    ],
)
def test_damaged_entries_are_errors(metadata: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"first|perhaps|x"):
        placement_of(metadata)
