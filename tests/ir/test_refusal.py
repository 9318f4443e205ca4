"""A refusal states why, and by how much if that is a number."""

from pimflow.ir import Refusal


def test_the_gap_is_what_is_missing() -> None:
    refusal = Refusal("too many rows", 12, 9, "rows of every bank", "a target with a larger pim.rows")
    assert refusal.gap == 3


def test_without_a_quantity_there_is_no_gap() -> None:
    assert Refusal("not a matrix product").gap is None


def test_a_node_name_prefix_leaves_the_rest_unchanged() -> None:
    refusal = Refusal("too many rows", 12, 9, "rows", "fewer channels").at("conv1")
    assert refusal == Refusal("conv1: too many rows", 12, 9, "rows", "fewer channels")
