"""Fresh names."""

from __future__ import annotations

from pimflow.ir.names import FreshNames


def test_a_free_name_is_kept_and_a_taken_one_numbered() -> None:
    names = FreshNames(["x", "y_1"])
    assert [names.fresh(base) for base in ("x", "x", "y", "y", "x_1")] == ["x_1", "x_2", "y", "y_2", "x_1_1"]


def test_no_name_is_empty() -> None:
    names = FreshNames()
    assert [names.fresh("") for _ in range(2)] == ["_1", "_2"]


def test_many_names_of_one_base_take_linear_time() -> None:
    names = FreshNames()
    made = [names.fresh("x") for _ in range(50_000)]
    assert len(set(made)) == len(made)


def test_a_given_name_is_taken() -> None:
    names = FreshNames(["x"])
    assert "x" in names
    assert "y" not in names
    names.fresh("y")
    assert "y" in names
