"""Fronts against their definition, pair by pair."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimflow.errors import OptionError
from pimflow.sweeps.fronts import Objective, front, mean_values


def beats(a: list[float], b: list[float], objectives: list[Objective]) -> bool:
    """Dominance by definition: nowhere worse, somewhere better."""
    pairs = [(-x, -y) if objective.larger else (x, y) for x, y, objective in zip(a, b, objectives, strict=True)]
    return all(x <= y for x, y in pairs) and any(x < y for x, y in pairs)


@given(st.data(), st.integers(1, 4))
def test_a_front_is_the_set_of_undominated_points(data: st.DataObject, count: int) -> None:
    row = st.lists(st.integers(-3, 3).map(float), min_size=count, max_size=count)
    values = data.draw(st.lists(row, max_size=30))
    objectives = [Objective(f"o{i}", data.draw(st.booleans())) for i in range(count)]
    expected = [i for i, a in enumerate(values) if not any(beats(b, a, objectives) for b in values)]
    assert front(values, objectives) == expected


def test_the_sign_turns_an_objective() -> None:
    smaller, larger = Objective.of("speedup", ["pimflow"]), Objective.of("-speedup", ["pimflow"])
    assert front([[1.0], [2.0]], [smaller]) == [0]
    assert front([[1.0], [2.0]], [larger]) == [1]
    assert (smaller.text, larger.text) == ("speedup", "-speedup")


@pytest.mark.parametrize("name", ["tim_us", "pim.bankz", "name", "pim.any_slot_any_column"])
def test_an_objective_is_a_figure_or_a_number_of_the_machine(name: str) -> None:
    with pytest.raises(OptionError):
        Objective.of(name, ["pimflow"])
    assert not Objective.of("pim.banks", ["pimflow"]).is_figure


def test_means_are_geometric_where_all_is_positive() -> None:
    assert mean_values([{"t": 1.0, "e": -1.0}, {"t": 100.0, "e": 3.0}]) == {"t": pytest.approx(10.0), "e": 1.0}
