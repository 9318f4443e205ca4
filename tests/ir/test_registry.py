"""Registries: one entry per key, and a scope that removes the entries added in it."""

from __future__ import annotations

import math

import pytest

from pimflow.ir.registry import Registry, scratch_registrations


def test_entries_are_kept_in_order_and_found_by_key() -> None:
    numbers: Registry[str, int] = Registry("numbers")
    numbers.add("two", 2)
    numbers.add("one", 1)
    assert list(numbers) == ["two", "one"]
    assert numbers.values() == (2, 1)
    assert numbers.get("one") == 1
    assert numbers.get("three") is None
    assert "two" in numbers
    assert "three" not in numbers


def test_a_decorator_adds_one_entry_under_several_keys() -> None:
    rules: Registry[str, object] = Registry("rules")

    @rules.register("a", "b")
    def rule() -> None: ...

    assert rules.get("a") is rules.get("b") is rule


def test_a_second_entry_under_a_key_is_an_error() -> None:
    kinds: Registry[type, int] = Registry("kinds")
    kinds.add(int, 1)
    with pytest.raises(ValueError, match="kinds: int is registered already"):
        kinds.add(int, 2)
    assert kinds.get(int) == 1


def test_an_entry_by_its_place_is_imported_when_it_is_looked_up() -> None:
    with scratch_registrations():
        functions: Registry[str, object] = Registry("functions")
        functions.add("one", 1)
        functions.add_by_place("sqrt", "math:sqrt")
        assert functions.imported() == (1,)
        assert list(functions) == ["one", "sqrt"]
        assert functions.get("other") is None
        assert functions.get("sqrt") is functions["sqrt"] is math.sqrt
        assert functions.imported() == functions.values() == (1, math.sqrt)
        with pytest.raises(ValueError, match="functions: 'sqrt' is registered already"):
            functions.add_by_place("sqrt", "math:sqrt")
        functions.add_by_place("cos", "math:cos")
        assert functions.values() == (1, math.sqrt, math.cos)


def test_a_scope_removes_its_entries_even_after_an_error() -> None:
    numbers: Registry[str, int] = Registry("numbers")
    numbers.add("one", 1)
    with scratch_registrations():
        numbers.add("two", 2)
    assert list(numbers) == ["one"]

    def add_three_and_fail() -> None:
        numbers.add("three", 3)
        raise RuntimeError("within")

    with pytest.raises(RuntimeError, match="within"), scratch_registrations():
        add_three_and_fail()
    assert list(numbers) == ["one"]
