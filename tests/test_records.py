"""Dataclasses and named tuples that compile their methods lazily, compared with Python's own of the same body."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import pydoc
import tracemalloc
import typing
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from functools import cached_property
from typing import Any, Generic, TypeVar

import pytest

from pimflow import records

Decorator = Callable[..., Any]
Item = TypeVar("Item")
BOTH = pytest.mark.parametrize("decorator", [records.dataclass, dataclasses.dataclass], ids=["ours", "python"])


def plain(decorator: Decorator) -> Any:
    @decorator(frozen=True)
    class Record:
        """A record."""

        a: int
        b: tuple[int, ...] = ()

    return Record


def every_field(decorator: Decorator) -> Any:
    @decorator(frozen=True)
    class Record:
        a: int
        hidden: int = field(default=1, repr=False)
        aside: int = field(default=2, compare=False)
        hashed: int = field(default=3, hash=False)
        made: list[int] = field(default_factory=list, hash=False)
        own: dict[str, int] = field(init=False, default_factory=dict, hash=False)
        fixed: int = field(init=False, default=4)
        named: int = field(default=5, kw_only=True)
        needed: int = field(kw_only=True)

    return Record


def derived(decorator: Decorator) -> Any:
    @decorator(frozen=True)
    class Base:
        a: int
        b: int = 1

    @decorator(frozen=True)
    class Record(Base):
        c: int = 2
        b: int = 3

        def __post_init__(self) -> None:
            object.__setattr__(self, "c", self.c * 10)

        def __repr__(self) -> str:
            return f"<{self.a}, {self.b}, {self.c}>"

        @cached_property
        def total(self) -> int:
            return self.a + self.b + self.c

    return Record


def slotted(decorator: Decorator) -> Any:
    @decorator(frozen=True, slots=True)
    class Base:
        a: int
        b: tuple[int, ...] = ()
        made: list[int] = field(default_factory=list, compare=False)

    @decorator(frozen=True, slots=True)
    class Record(Base):
        c: int = 2

    return Record


def in_many_slots(decorator: Decorator) -> Any:
    @decorator(frozen=True, slots=True)
    class Record:
        a: int
        b: tuple[int, ...] = ()
        named: int = field(default=5, kw_only=True)
        fixed: int = field(init=False, default=4)

        def __post_init__(self) -> None:
            object.__setattr__(self, "fixed", self.a + self.named)

    return Record


def normalised(decorator: Decorator) -> Any:
    @decorator(frozen=True)
    class Record(Generic[Item]):
        a: Item
        _: dataclasses.KW_ONLY
        b: tuple[Item, ...] = ()

        def __post_init__(self) -> None:
            object.__setattr__(self, "b", tuple(sorted(self.b)))

    return Record


def same_alone(decorator: Decorator) -> Any:
    @decorator(frozen=True, eq=False, repr=False)
    class Record:
        a: int

    return Record


SHAPES: list[tuple[Callable[[Decorator], Any], list[tuple[tuple[Any, ...], dict[str, Any]]]]] = [
    (plain, [((1,), {}), ((1, (2,)), {}), ((), {"b": (2,), "a": 1}), ((1, ()), {})]),
    (
        every_field,
        [
            ((1,), {"needed": 6}),
            ((1, 9), {"needed": 6}),
            ((1, 1, 9), {"needed": 6}),
            ((1, 1, 2, 9), {"needed": 6}),
            ((1, 1, 2, 3, [7]), {"needed": 6, "named": 8}),
        ],
    ),
    (derived, [((1,), {}), ((1, 3, 2), {}), ((1,), {"c": 4})]),
    (slotted, [((1,), {}), ((1, (2,), [3], 4), {}), ((1,), {"c": 4, "b": (2,)})]),
    (in_many_slots, [((1,), {}), ((1, (2,)), {"named": 3}), ((), {"b": (2,), "a": 1})]),
    (normalised, [((1,), {}), ((1,), {"b": (2, 3)}), ((1,), {"b": (3, 2)})]),
    (same_alone, [((1,), {}), ((1,), {})]),
]


@pytest.mark.parametrize(("define", "calls"), SHAPES, ids=[define.__name__ for define, _ in SHAPES])
def test_records_behave_like_pythons(define: Callable[[Decorator], Any], calls: list[Any]) -> None:
    ours, pythons = define(records.dataclass), define(dataclasses.dataclass)
    assert str(inspect.signature(ours)) == str(inspect.signature(pythons))
    assert ours.__match_args__ == pythons.__match_args__
    made = [(ours(*places, **names), pythons(*places, **names)) for places, names in calls]
    for one, other in made:
        assert dataclasses.asdict(one) == dataclasses.asdict(other)
        assert dataclasses.asdict(dataclasses.replace(one, a=7)) == dataclasses.asdict(dataclasses.replace(other, a=7))
        assert hasattr(one, "__dict__") == hasattr(other, "__dict__")
        if define is not same_alone:
            assert repr(one) == repr(other)
            assert hash(one) == hash(other)
    alike = [[(a == b, a != b) for a, _ in made for b, _ in made], [(a == b, a != b) for _, a in made for _, b in made]]
    assert alike[0] == alike[1]


@BOTH
def test_classes_of_like_fields_are_not_equal(decorator: Decorator) -> None:
    assert plain(decorator)(1) != plain(decorator)(1)


@pytest.mark.parametrize(
    ("decorator", "define"),
    [
        (records.dataclass, plain),
        (records.dataclass, derived),
        (records.dataclass, slotted),
        (records.dataclass, in_many_slots),
        (dataclasses.dataclass, plain),
        (dataclasses.dataclass, derived),
    ],
)
def test_fields_are_neither_set_nor_deleted(decorator: Decorator, define: Callable[[Decorator], Any]) -> None:
    record = define(decorator)(1)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'a'"):
        record.a = 2
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'other'"):
        record.other = 2
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'a'"):
        del record.a
    assert record.a == 1


@BOTH
def test_wrong_arguments_are_named(decorator: Decorator) -> None:
    with pytest.raises(TypeError, match=r"Record\.__init__\(\) missing 1 required positional argument: 'a'"):
        plain(decorator)()
    with pytest.raises(TypeError, match=r"Record\.__init__\(\) got an unexpected keyword argument 'c'"):
        plain(decorator)(1, c=2)


@pytest.mark.parametrize(
    ("base", "then"),
    [(records.dataclass, dataclasses.dataclass), (dataclasses.dataclass, records.dataclass)],
    ids=["pythons of ours", "ours of pythons"],
)
def test_either_derives_from_the_other(base: Decorator, then: Decorator) -> None:
    made = then(frozen=True)(type("Made", (plain(base),), {"__annotations__": {"c": "int"}, "c": 5}))
    assert dataclasses.astuple(made(1)) == (1, (), 5)
    assert made(1) == made(1, (), 5) != made(2)
    with pytest.raises(FrozenInstanceError):
        made(1).c = 6
    with pytest.raises(TypeError, match="cannot inherit non-frozen dataclass from a frozen one"):
        then(type("Open", (plain(base),), {}))


@records.dataclass(frozen=True)
class Kept:
    a: int
    b: str = "b"


@records.dataclass(frozen=True, slots=True)
class KeptInSlots:
    a: int
    b: str = "b"


@dataclasses.dataclass(frozen=True)
class KeptByAPlugin(Kept):
    c: int = 3


@pytest.mark.parametrize("cls", [Kept, KeptInSlots, KeptByAPlugin])
def test_it_is_copied_and_pickled(cls: Any) -> None:
    assert copy.deepcopy(cls(1)) == copy.copy(cls(1)) == pickle.loads(pickle.dumps(cls(1))) == cls(1)


def test_help_shows_its_arguments() -> None:
    text = pydoc.plain(pydoc.render_doc(plain(records.dataclass)))
    assert "Record(a: 'int', b: 'tuple[int, ...]' = ()) -> None" in text
    assert "A record." in text


def test_keys_are_shared() -> None:
    """A record without slots takes no more memory than one of Python's, as its instances share their keys."""
    sizes = [
        min(_bytes_of_an_instance(decorator) for _ in range(5))
        for decorator in (records.dataclass, dataclasses.dataclass)
    ]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)


def _bytes_of_an_instance(decorator: Decorator) -> float:
    """The mean over a thousand instances; too high where something else allocates meanwhile."""
    cls = plain(decorator)
    cls(1)
    tracemalloc.start()
    made = [cls(1) for _ in range(1000)]
    size = tracemalloc.get_traced_memory()[0] / len(made)
    tracemalloc.stop()
    return size


@BOTH
def test_annotations_mean_what_they_do_in_its_module(decorator: Decorator) -> None:
    made = decorator(frozen=True)(type("Made", (), {"__annotations__": {"a": "Decorator"}, "__module__": __name__}))
    assert typing.get_type_hints(made.__init__) == {"a": Decorator, "return": type(None)}


def test_a_method_is_compiled_when_it_is_first_looked_up() -> None:
    cls = derived(records.dataclass)
    compiled = ["__init__", "__eq__", "__hash__"]
    assert not [name for name in compiled if inspect.isfunction(vars(cls)[name])]
    one, two = cls(1), cls(1)
    assert [name for name in compiled if inspect.isfunction(vars(cls)[name])] == ["__init__"]
    assert one == two
    assert [name for name in compiled if inspect.isfunction(vars(cls)[name])] == ["__init__", "__eq__"]


def test_fields_are_found_when_they_are_first_looked_up() -> None:
    base = plain(records.dataclass)
    derived_of_it: Any = records.dataclass(frozen=True)(
        type("Made", (base,), {"__annotations__": {"c": "int"}, "c": 5})
    )
    found = [isinstance(vars(cls)["__dataclass_fields__"], dict) for cls in (base, derived_of_it)]
    assert found == [False, False]
    assert [field.name for field in dataclasses.fields(derived_of_it)] == ["a", "b", "c"]
    assert isinstance(vars(base)["__dataclass_fields__"], dict)
    assert dataclasses.fields(base) == dataclasses.fields(base(1))


@BOTH
def test_patterns_match_without_a_made_init(decorator: Decorator) -> None:
    @decorator(frozen=True)
    class Record:
        a: int

        def __init__(self) -> None:
            object.__setattr__(self, "a", 7)

    match Record():
        case Record(number):  # type: ignore[misc]
            assert number == 7
        case _:
            raise AssertionError


@BOTH
def test_defaults_are_read_of_the_class(decorator: Decorator) -> None:
    assert every_field(decorator).hidden == 1
    assert plain(decorator).b == ()


@BOTH
def test_a_class_may_derive_from_one_of_many_slots(decorator: Decorator) -> None:
    base = in_many_slots(decorator)
    assert type(base(1)) is base

    class Derived(base):  # type: ignore[misc,valid-type]
        @property
        def double(self) -> int:
            return int(2 * self.a)

    made = Derived(3, named=4)
    assert (type(made), made.double, made.fixed) == (Derived, 6, 7)
    with pytest.raises(FrozenInstanceError):
        made.a = 2


def test_classes_that_differ_only_in_names_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sources: list[str] = []

    def compiled(source: str, known: dict[str, Any]) -> None:
        sources.append(source)
        exec(source, known)

    def define(*names: str) -> Any:
        return records.dataclass(frozen=True)(type("Made", (), {"__annotations__": dict.fromkeys(names, "int")}))

    monkeypatch.setattr(records, "exec", compiled, raising=False)
    many = [f"a{place}" for place in range(31)]  # more than any other class here has
    one, other = define(*many)(*range(31)), define(*many[:30], "last")(*range(30), last=30)
    assert len(sources) == 1
    assert (one.a30, other.last) == (30, 30)
    assert repr(other) == repr(one).replace("a30", "last")
    assert (one == type(one)(*range(31)), other == type(other)(*range(30), last=30)) == (True, True)
    assert len(sources) == 3


def test_an_uncompiled_method_of_a_base_is_bound_to_the_caller() -> None:
    base = plain(records.dataclass)
    doubled: Any = type("Doubled", (base,), {"__init__": lambda self, a: super(doubled, self).__init__(2 * a)})
    assert doubled(2).a == 4


def test_unfrozen_classes_are_left_to_python() -> None:
    @records.dataclass
    class Open:
        a: int = 1

    it = Open()
    it.a = 2
    assert it == Open(2)
    assert inspect.isfunction(vars(Open)["__init__"])


def point(kind: Any) -> Any:
    class Point(kind):  # type: ignore[misc]
        """A point."""

        x: int
        y: tuple[int, ...] = ()
        name: str = "origin"

        @property
        def far(self) -> bool:
            return bool(self.x > 10)

        @classmethod
        def at(cls, x: int) -> Any:
            return cls(x, name="at")

    return Point


NAMED = pytest.mark.parametrize("kind", [records.NamedTuple, typing.NamedTuple], ids=["ours", "python"])


def test_named_tuples_behave_like_pythons() -> None:
    ours, pythons = point(records.NamedTuple), point(typing.NamedTuple)
    assert str(inspect.signature(ours)) == "(x: 'int', y: 'tuple[int, ...]' = (), name: 'str' = 'origin')"
    for name in ("_fields", "_field_defaults", "__match_args__", "__slots__", "__doc__"):
        assert getattr(ours, name) == getattr(pythons, name), name
    assert typing.get_type_hints(ours) == typing.get_type_hints(pythons)
    for places, names in [((1,), {}), ((11, (2,)), {}), ((), {"name": "n", "x": 1}), ((1, (), "m"), {})]:
        one, other = ours(*places, **names), pythons(*places, **names)
        assert one == other == tuple(other)  # tuples of any kind are equal
        assert (hash(one), repr(one), one.far) == (hash(other), repr(other), other.far)
        assert (one.x, one.y, one.name) == (other.x, other.y, other.name)
        assert one._asdict() == other._asdict()
        assert repr(one._replace(x=7)) == repr(other._replace(x=7))
        assert repr(ours._make(reversed(one))) == repr(pythons._make(reversed(other)))
        assert not hasattr(one, "__dict__")
    assert repr(ours.at(3)) == repr(pythons.at(3)) == "Point(x=3, y=(), name='at')"


@NAMED
def test_wrong_items_of_a_named_tuple_are_named(kind: Any) -> None:
    cls = point(kind)
    with pytest.raises(TypeError, match=r"__new__\(\) missing 1 required positional argument: 'x'"):
        cls()
    with pytest.raises(TypeError, match=r"__new__\(\) got an unexpected keyword argument 'z'"):
        cls(1, z=2)
    with pytest.raises(TypeError, match="Expected 3 arguments, got 1"):
        cls._make([1])
    with pytest.raises((ValueError, TypeError), match="Got unexpected field names: \\['z'\\]"):
        cls(1)._replace(z=2)
    with pytest.raises(AttributeError):
        cls(1).x = 2
    with pytest.raises(TypeError, match="default"):

        class Made(kind):  # type: ignore[misc]
            a: int = 1
            b: int


class KeptItems(records.NamedTuple):
    a: int
    b: str = "b"


def test_a_named_tuple_is_copied_pickled_and_matched() -> None:
    made = KeptItems(1)
    for again in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert (again, type(again)) == (made, KeptItems)
    match made:
        case KeptItems(number, text):
            assert (number, text) == (1, "b")


def test_a_named_tuple_may_have_any_number_of_fields() -> None:
    define: Any = type(records.NamedTuple)
    for count in (0, 1, 31, 32, 33, 100):
        names = [f"a{place}" for place in range(count)]
        made = define("Made", (records.NamedTuple,), {"__annotations__": dict.fromkeys(names, "int")})(*range(count))
        assert [getattr(made, name) for name in names] == list(range(count))
