"""Frozen dataclasses and named tuples that are cheap to define: a program has hundreds, and one run uses a third.

For type checkers, `dataclass` and `NamedTuple` are Python's own. Python compiles six methods of a frozen class when it
is defined, which takes a quarter of a millisecond; here `__init__`, `__repr__`, `__eq__` and `__hash__` are made when
they are first looked up, from the code of another class of the same form if there is one, and `__init__` bypasses the
frozen `__setattr__` at lower cost. The functions of `dataclasses` work on these classes, and either kind may derive
from the other. Classes with an `InitVar` are left to Python.

Of a named tuple, Python compiles `__new__` and every annotation; here `__new__` is made likewise, and annotations stay
as they are written.
"""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from functools import cache
from threading import RLock
from types import FunctionType, MemberDescriptorType
from typing import TYPE_CHECKING, Any, NoReturn

__all__ = ["NamedTuple", "dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
    from typing import NamedTuple
else:

    class _Definition(type):
        """Makes a named tuple of the body of a class."""

        def __new__(kind, name, bases, body):
            return _named_tuple(name, body) if bases else super().__new__(kind, name, bases, body)

    class NamedTuple(metaclass=_Definition):
        """Like `typing.NamedTuple`."""

    def dataclass(cls=None, /, *, frozen=False, eq=True, repr=True, slots=False, **others):
        """Like `dataclasses.dataclass`, which makes the class if it is not frozen or asks for any other option."""
        if not frozen or others:
            return dataclasses.dataclass(cls, frozen=frozen, eq=eq, repr=repr, slots=slots, **others)
        names = ("__init__", *["__repr__"] * repr, *["__eq__", "__hash__"] * eq)
        return _define(cls, names, slots) if cls else lambda cls: _define(cls, names, slots)


def _define(cls: Any, names: tuple[str, ...], slots: bool) -> Any:
    """The frozen dataclass of a class, with the named methods where it does not define its own."""
    missing = [name for name in names if vars(cls).get(name) is None]
    cls.__doc__ = cls.__doc__ or cls.__name__  # without it, Python would compile `__init__` to show its signature here
    if slots:
        cls = _with_fields(cls, slots=True)
        cls.__getstate__ = _state  # the default copy and pickle would set fields
        cls.__setstate__ = _set_state
    elif "__init__" not in missing or any(isinstance(value, Field) for value in vars(cls).values()):
        _with_fields(cls)  # Fields stand in place of defaults, which may be read; and instances may not look them up
    else:
        cls.__dataclass_fields__ = _LazyFields(cls)
    cls.__setattr__ = _refuse_to_set
    cls.__delattr__ = _refuse_to_delete
    for name in missing:
        setattr(cls, name, _LazyMethod(cls, name))
    return cls


def _with_fields(cls: Any, *, slots: bool = False) -> Any:
    """The class as a dataclass of Python's without any methods.

    A frozen class and a non-frozen one may not derive from each other: Python checks the flags recorded on the bases.
    It would compile two methods for a frozen class, so frozen bases pass for non-frozen ones meanwhile.
    """
    with _THAWING:
        bases = [base.__dataclass_params__ for base in cls.__mro__[1:] if hasattr(base, "__dataclass_fields__")]
        thawed = bases if all(params.frozen for params in bases) else []
        for params in thawed:
            params.frozen = False
        try:
            mixed = len(thawed) < len(bases)
            made = dataclasses.dataclass(init=False, repr=False, eq=False, frozen=mixed, slots=slots)(cls)
            made.__dataclass_params__.frozen = True
            return made
        finally:
            for params in thawed:
                params.frozen = True


_THAWING = RLock()
"""Held while bases pass for non-frozen ones."""


def _refuse_to_set(self: Any, name: str, value: Any) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


class _LazyFields:
    """A placeholder for the fields of a class until their first lookup; threads that race find the same ones twice."""

    def __init__(self, cls: type[Any]) -> None:
        self._cls = cls

    def __get__(self, instance: Any, owner: Any) -> Any:
        _with_fields(self._cls)
        return owner.__dataclass_fields__


class _LazyMethod:
    """A placeholder for a method until its first lookup; threads that race compile the same method twice."""

    def __init__(self, cls: type[Any], name: str) -> None:
        self._cls = cls
        self._name = name

    def __get__(self, instance: Any, owner: type[Any]) -> Any:
        method = _METHODS[self._name](self._cls)
        method.__qualname__ = f"{self._cls.__qualname__}.{self._name}"
        setattr(self._cls, self._name, method)
        return method.__get__(instance, owner)


def _method(
    cls: type[Any], name: str, arguments: Sequence[str], body: str, names: Mapping[str, str], **known: Any
) -> FunctionType:
    """A method with `known` values bound, whose annotations are resolved in the module of its class.

    Most classes have the form of another one, with other names of fields: each form is compiled once.

    Args:
        cls: the class.
        name: the method's name.
        arguments: its parameters, with a stand-in for each field.
        body: its statements, likewise.
        names: the fields' names by their stand-ins.
        known: values by the names that the body has for them.
    """
    form = _form(f"def make({', '.join(known)}):\n def {name}({', '.join(arguments)}):\n  {body}\n return {name}")
    made = form(**known)
    code = made.__code__
    of_cls = code.replace(
        co_varnames=tuple([names.get(word, word) for word in code.co_varnames]),
        co_names=tuple([names.get(word, word) for word in code.co_names]),
        co_consts=tuple([names.get(word, word) if isinstance(word, str) else word for word in code.co_consts]),
    )
    return FunctionType(of_cls, getattr(sys.modules.get(cls.__module__), "__dict__", {}), name, None, made.__closure__)


@cache
def _form(source: str) -> Callable[..., FunctionType]:
    """The function `make` of a source."""
    made: dict[str, Any] = {}
    exec(source, made)
    make: Callable[..., FunctionType] = made["make"]
    return make


def _stand_ins(names: Iterable[str]) -> dict[str, str]:
    """What stands for each field in the source of a form, by the field's name."""
    return {name: f"_{place}" for place, name in enumerate(names)}


def _inverse(stand_ins: Mapping[str, str]) -> dict[str, str]:
    return {stand_in: name for name, stand_in in stand_ins.items()}


class _Factory:
    """The default of an argument whose field has a default factory."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


def _init(cls: type[Any]) -> FunctionType:
    every = fields(cls)
    names = _stand_ins(field.name for field in every)
    placed = [field for field in every if field.init and not field.kw_only]
    named = [field for field in every if field.init and field.kw_only]
    arguments = ["self", *(names[field.name] for field in placed)]
    if named:
        arguments += ["*", *(names[field.name] for field in named)]
    body, known = _body_of_init(cls, every, names)
    method = _method(cls, "__init__", arguments, body, _inverse(names), **known)
    method.__defaults__ = tuple(_defaults(placed).values())
    method.__kwdefaults__ = _defaults(named)
    method.__annotations__ = {**{field.name: field.type for field in (*placed, *named)}, "return": None}
    return method


def _body_of_init(
    cls: type[Any], every: Sequence[Field[Any]], names: Mapping[str, str]
) -> tuple[str, dict[str, object]]:
    """The statements that set the fields, and what they need to know."""
    slots = {names[field.name]: getattr(cls, field.name, None) for field in every}
    setters = {f"_set{name}": slot.__set__ for name, slot in slots.items() if isinstance(slot, MemberDescriptorType)}
    known: dict[str, object] = {
        "_set": object.__setattr__,
        "_FACTORY": _FACTORY,
        "_factories": {field.name: field.default_factory for field in every},
        **setters,
    }
    is_set = [field for field in every if field.init or field.default_factory is not MISSING]
    body = "; ".join([_field_setter(field, names[field.name], setters) for field in is_set]) or "pass"
    is_made = any(field.default_factory is not MISSING for field in every)
    if cls.__bases__ == (object,) and len(setters) == len(every) > _FEW and not is_made:
        stores = "; ".join([f"self.{names[field.name]} = {names[field.name]}" for field in is_set])
        body = f"if _type(self) is _cls:\n   _become(self, _twin); {stores}; self.__class__ = _cls\n  else:\n   {body}"
        twin = type(cls.__name__, (), {"__slots__": vars(cls)["__slots__"]})
        known |= {"_type": type, "_cls": cls, "_become": vars(object)["__class__"].__set__, "_twin": twin}
    return body + "\n  self.__post_init__()" * hasattr(cls, "__post_init__"), known


_FEW = 2
"""With more slots than this, an instance is one of a twin of its class, which is not frozen, while they are set: Python
stores an attribute in a tenth of the time of a call that sets a slot, so that making one of six slots takes 0.6 of the
time. Instances of derived classes cannot."""


def _field_setter(field: Field[Any], name: str, setters: Mapping[str, Any]) -> str:
    """The statement that sets a field, for which `name` stands, to the given or made value; setting through a slot
    descriptor is faster."""
    made = f"_factories[{name!r}]()"
    given = f"{made} if {name} is _FACTORY else {name}" if field.init else made
    value = name if field.default_factory is MISSING else given
    return f"_set{name}(self, {value})" if f"_set{name}" in setters else f"_set(self, {name!r}, {value})"


def _defaults(some: list[Field[Any]]) -> dict[str, Any]:
    given = {field.name: field.default if field.default_factory is MISSING else _FACTORY for field in some}
    return {name: default for name, default in given.items() if default is not MISSING}


def _repr(cls: type[Any]) -> FunctionType:
    names = _stand_ins(field.name for field in fields(cls) if field.repr)
    shown = ", ".join(f"{{_begin{stand_in}}}{{self.{stand_in}!r}}" for stand_in in names.values())
    begins = {f"_begin{stand_in}": f"{name}=" for name, stand_in in names.items()}
    body = f"return self.__class__.__qualname__ + f'({shown})'"
    return _method(cls, "__repr__", ["self"], body, _inverse(names), **begins)


def _eq(cls: type[Any]) -> FunctionType:
    names = _stand_ins(field.name for field in fields(cls) if field.compare)
    same = f"{_tuple('self', names)} == {_tuple('other', names)}"
    body = f"return {same} if other.__class__ is self.__class__ else NotImplemented"
    return _method(cls, "__eq__", ["self", "other"], body, _inverse(names))


def _hash(cls: type[Any]) -> FunctionType:
    names = _stand_ins(field.name for field in fields(cls) if (field.compare if field.hash is None else field.hash))
    return _method(cls, "__hash__", ["self"], f"return hash({_tuple('self', names)})", _inverse(names))


def _tuple(whose: str, names: Mapping[str, str]) -> str:
    return f"({''.join(f'{whose}.{name}, ' for name in names.values())})"


def _new(cls: type[Any]) -> FunctionType:
    """The `__new__` of a named tuple."""
    named: Any = cls
    names = _stand_ins(named._fields)
    body = f"return _tuple(_cls, ({''.join(f'{stand_in}, ' for stand_in in names.values())}))"
    method = _method(cls, "__new__", ["_cls", *names.values()], body, _inverse(names), _tuple=tuple.__new__)
    method.__defaults__ = tuple(named._field_defaults.values())
    method.__annotations__ = dict(named.__annotations__)
    return method


_METHODS: Mapping[str, Callable[[type[Any]], FunctionType]] = {
    "__init__": _init,
    "__repr__": _repr,
    "__eq__": _eq,
    "__hash__": _hash,
    "__new__": _new,
}


class _NamedTuple(tuple[Any, ...]):
    """What named tuples share."""

    __slots__ = ()

    if TYPE_CHECKING:
        _fields: tuple[str, ...]

    @classmethod
    def _make(cls, items: Iterable[Any]) -> Any:
        made = tuple.__new__(cls, items)
        if len(made) != len(cls._fields):
            raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
        return made

    def _replace(self, /, **changes: Any) -> Any:
        made = self._make(map(changes.pop, self._fields, self))
        if changes:
            raise ValueError(f"Got unexpected field names: {list(changes)!r}")
        return made

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._asdict().items())})"

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)


def _named_tuple(name: str, body: dict[str, Any]) -> type[Any]:
    """The named tuple of a class body."""
    names = tuple(body.get("__annotations__", ()))
    defaults = {field: body.pop(field) for field in names if field in body}
    if tuple(defaults) != names[len(names) - len(defaults) :]:
        raise TypeError(f"a field of {name} without a default follows one that has a default")
    known = {"__slots__": (), "_fields": names, "_field_defaults": defaults, "__match_args__": names}
    made: Any = type(name, (_NamedTuple,), {**body, **known, **dict(zip(names, _getters(len(names)), strict=False))})
    made.__new__ = _LazyMethod(made, "__new__")
    return made  # type: ignore[no-any-return]


def _getters(count: int) -> tuple[Any, ...]:
    """Attributes that read the first, second, ... item of a tuple: at least this many."""
    return _taken_from_python(32 * (1 + count // 32))


@cache
def _taken_from_python(count: int) -> tuple[Any, ...]:
    names, define = [f"item{place}" for place in range(count)], typing.NamedTuple
    made: Any = define("made", [(name, Any) for name in names])
    return tuple([vars(made)[name] for name in names])
