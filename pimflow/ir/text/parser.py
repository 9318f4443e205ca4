"""Text to IR: a scanner, and a recursive-descent parser with one method per construct of the grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, replace
from functools import cache
from types import UnionType
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from pimflow.errors import TextError, did_you_mean
from pimflow.ir.graph import Array, Graph, Node, Value
from pimflow.ir.ops.base import OPS
from pimflow.ir.ops.opaque import OpaqueAttribute
from pimflow.ir.placement import UNPLACED, MovementVerdict, NarrowOperands, Placement
from pimflow.ir.text.literals import BARE_NAME, Bits, digest, parse_array, type_text
from pimflow.records import NamedTuple

T = TypeVar("T")

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_TOKEN = re.compile(
    rf"""(?P<skip>(?:\s+|//[^\n]*)+)
    |(?P<value>%(?:{_STRING}|{BARE_NAME}))
    |(?P<symbol>@(?:{_STRING}|{BARE_NAME}))
    |(?P<bytes>b{_STRING})
    |(?P<string>{_STRING})
    |(?P<hash>\#[0-9a-f]+)
    |(?P<bits>0x[0-9a-f]+)
    |(?P<float>-?(?:\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|inf\b|nan\b))
    |(?P<int>-?\d+)
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<mark>[\[\]{{}}()=:,*?])""",
    re.VERBOSE,
)
_FIELD_TYPES: dict[str, type] = {kind.__name__: kind for kind in (OpaqueAttribute, MovementVerdict, NarrowOperands)}
_SCALARS: dict[str, Callable[[str], object]] = {
    "int": int,
    "float": float,
    "bytes": lambda text: _bytes(text[2:-1]),
}
_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
    bytes: "bytes",
    bool: "true or false",
    type(None): "none",
}
"""How messages name the types of fields that hold a single item."""
_CONSTANT_WORDS: dict[str, object] = {"true": True, "false": False, "none": None}


class Token(NamedTuple):
    """A token of the text: its kind (a group of `_TOKEN`, or "end"), its characters and where it starts.

    `content` is the text of a string, value or symbol without sigil, quotes and escapes; "" for other kinds.
    """

    kind: str
    text: str
    start: int
    content: str = ""


def parse_graph(text: str, constants: Mapping[str, Array] | None = None) -> Graph:
    """The graph that a text describes; `parse_graph(print_graph(g), g.constants)` equals g.

    Args:
        text: the text form; `//` starts a comment.
        constants: arrays of the constants that the text elides, by name; others are ignored.

    Raises:
        TextError: the text is malformed, names an unknown op, field or value, or elides a constant whose array is not
            given or differs from the one printed. The message names line and column.
    """
    return _Parser(text, constants or {}).graph()


class _Parser:
    def __init__(self, text: str, constants: Mapping[str, Array]) -> None:
        self._text = text
        self._given = constants
        self._tokens = _scan(text)
        self._at = 0
        self._values: dict[str, Value] = {}
        self._constants: dict[str, Array] = {}
        self._made: set[str] = set()
        self._read: list[Token] = []
        self._node_names: set[str] = set()

    # ---- tokens

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        token = self._tokens[self._at]
        if token.kind != "end":
            self._at += 1
        return token

    def _accept(self, text: str) -> bool:
        """Takes the next token if it is this mark or word."""
        token = self._tokens[self._at]
        if token.text != text or token.kind not in ("mark", "word"):
            return False
        self._at += 1
        return True

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            self._fail(f"expected '{text}'")

    def _expect_kind(self, kind: str, meaning: str) -> Token:
        if self._next.kind != kind:
            self._fail(f"expected {meaning}")
        return self._take()

    def _fail(self, what: str) -> NoReturn:
        token = self._next
        found = "the end of the text" if token.kind == "end" else f"'{token.text}'"
        raise self._error(token, f"{what} but found {found}")

    def _error(self, token: Token, what: str, hint: str = "") -> TextError:
        return _error(self._text, token.start, what, hint)

    # ---- the graph

    def graph(self) -> Graph:
        self._expect("graph")
        name = self._expect_kind("symbol", "the graph's name (@name)").content
        self._expect("opset")
        opset = dict(self._braced(self._opset_entry))
        inputs: list[str] = []
        outputs: list[str] = []
        nodes: list[Node] = []
        self._expect("{")
        while not self._accept("}"):
            if self._accept("input"):
                inputs.append(self._typed_name())
            elif self._accept("value"):
                self._typed_name()
            elif self._accept("const"):
                self._constant()
            elif self._accept("output"):
                outputs.append(self._use())
            else:
                nodes.append(self._node())
        if self._next.kind != "end":
            self._fail("expected the end of the text")
        for token in self._read:
            if token.content not in self._made:
                raise self._error(token, f"{token.text} is not defined")
        return Graph(name, tuple(inputs), tuple(outputs), tuple(nodes), self._values, self._constants, opset)

    def _opset_entry(self) -> tuple[str, int]:
        domain = self._key()
        self._expect("=")
        return domain, self._int("an opset version")

    def _int(self, meaning: str) -> int:
        value = self._scalar(self._expect_kind("int", meaning))
        assert isinstance(value, int)
        return value

    def _typed_name(self) -> str:
        token = self._expect_kind("value", "a value (%name)")
        self._expect(":")
        return self._define(token, self._type())

    def _use(self) -> str:
        token = self._expect_kind("value", "a value (%name)")
        self._read.append(token)
        return token.content

    def _define(self, token: Token, found: tuple[str, tuple[int, ...] | None] | None) -> str:
        name = token.content
        if name in self._made:
            raise self._error(token, f"{token.text} is defined twice")
        self._made.add(name)
        if found is not None:
            self._values[name] = Value(name, found[1], found[0])
        return name

    def _type(self) -> tuple[str, tuple[int, ...] | None] | None:
        """Element type and shape; None for `missing`."""
        if self._accept("missing"):
            return None
        dtype = "" if self._accept("?") else self._key("a type")
        self._expect("[")
        if self._accept("*"):
            self._expect("]")
            return dtype, None
        return dtype, tuple(self._list(lambda: self._int("a dimension"), "]"))

    def _constant(self) -> None:
        token = self._expect_kind("value", "a constant's name (%name)")
        self._expect("=")
        at = self._next
        own = self._type()
        dtype, shape = own or ("", None)
        if not dtype or shape is None:
            raise self._error(at, "a constant needs an element type and a shape")
        array = self._elided(token, dtype, shape) if self._next.kind == "hash" else self._inline(dtype, shape)
        self._constants[token.content] = array
        self._define(token, self._type() if self._accept(":") else own)

    def _elided(self, token: Token, dtype: str, shape: tuple[int, ...]) -> Array:
        hashed = self._take()
        array = self._given.get(token.content)
        shown = f"{token.text} ({type_text(dtype, shape)}, {hashed.text})"
        if array is None:
            what = f"the constant {shown} is elided and its array is not given"
            raise self._error(hashed, what, "give the arrays of elided constants by name, or print all inline")
        if digest(array) != hashed.text[1:]:
            given = f"{type_text(array.dtype.name, array.shape)}, #{digest(array)}"
            raise self._error(hashed, f"the array given for the constant {shown} is a different one ({given})")
        return array

    def _inline(self, dtype: str, shape: tuple[int, ...]) -> Array:
        at = self._next
        self._expect("[")
        items = tuple(self._list(self._element, "]"))
        try:
            return parse_array(dtype, shape, items)
        except ValueError as error:
            raise self._error(at, str(error)) from None

    def _element(self) -> object:
        return Bits(self._take().text, 16) if self._next.kind == "bits" else self._field()

    # ---- nodes

    def _node(self) -> Node:
        outputs = self._node_outputs()
        op_token = self._expect_kind("word", "an op")
        kind = OPS.get(op_token.text)
        if kind is None:
            raise self._error(op_token, f"unknown op {op_token.text}", did_you_mean(op_token.text, OPS))
        self._expect("(")
        inputs = tuple(self._list(lambda: "" if self._accept("_") else self._use(), ")"))
        op = self._dataclass(kind, op_token)
        for index, token in enumerate(item for item in outputs if item.kind == "value"):
            self._expect(":" if index == 0 else ",")
            self._define(token, self._type())
        names = tuple(token.content for token in outputs)
        return Node(op, inputs, names, self._node_name(), self._placement(), self._tags())

    def _node_outputs(self) -> list[Token]:
        outputs: list[Token] = []
        while not self._accept("="):
            if outputs:
                self._expect(",")
            if self._next.kind != "value" and self._next.text != "_":
                self._fail("expected a node, input, const, value, output or '}'")
            outputs.append(self._take())
        return outputs

    def _node_name(self) -> str:
        token = self._expect_kind("symbol", "the node's name (@name)")
        name = token.content
        if name in self._node_names:
            raise self._error(token, f"a second node has the name {token.text}")
        self._node_names.add(name)
        return name

    def _placement(self) -> Placement:
        at = self._next
        device = self._key("a device") if self._accept("on") else None
        if self._next.text != "{":
            return UNPLACED if device is None else Placement(device)
        placement: Placement = self._dataclass(Placement, at)
        if placement.device is not None:
            raise self._error(at, "the device of a node is written after 'on'")
        return replace(placement, device=device)

    def _tags(self) -> tuple[tuple[str, str], ...]:
        return tuple(self._braced(self._tag)) if self._accept("tags") else ()

    def _tag(self) -> tuple[str, str]:
        key = self._key()
        self._expect("=")
        return key, self._expect_kind("string", "a tag's text").content

    # ---- fields

    def _dataclass(self, kind: Any, at: Token) -> Any:
        """A dataclass from {name = value, ...}; braces may be omitted if no field is required."""
        given: dict[str, object] = {}
        known = {item.name: item for item in fields(kind)}
        for key_token, key, value in self._braced(self._pair) if self._next.text == "{" else ():
            if key not in known:
                raise self._error(key_token, f"{kind.__name__} has no field {key!r}", did_you_mean(key, known))
            if key in given:
                raise self._error(key_token, f"the field {key!r} is given twice")
            form = _forms(kind).get(key, Any)
            if not _fits(value, form):
                raise self._error(key_token, f"the field {key!r} of {kind.__name__} must be {_meaning(form)}")
            given[key] = value
        for name, item in known.items():
            if name not in given and item.default is MISSING and item.default_factory is MISSING:
                raise self._error(at, f"{kind.__name__} needs a field {name!r}")
        return kind(**given)

    def _pair(self) -> tuple[Token, str, object]:
        token = self._next
        key = self._key()
        self._expect("=")
        return token, key, self._field()

    def _field(self) -> object:
        if self._accept("["):
            return tuple(self._list(self._field, "]"))
        if self._next.text == "{":
            return tuple((key, value) for _, key, value in self._braced(self._pair))
        token = self._next
        if token.kind == "string":
            return self._take().content
        if token.kind in _SCALARS:
            return self._scalar(self._take())
        if token.kind == "word" and token.text in _CONSTANT_WORDS:
            return _CONSTANT_WORDS[self._take().text]
        if token.kind == "word" and token.text in _FIELD_TYPES:
            return self._dataclass(_FIELD_TYPES[self._take().text], token)
        self._fail("expected a number, text, true, false, none, [...] or {...}")

    def _scalar(self, token: Token) -> object:
        try:
            return _SCALARS[token.kind](token.text)
        except ValueError as error:
            raise self._error(token, str(error)) from None

    def _key(self, meaning: str = "a name") -> str:
        if self._next.kind == "string":
            return self._take().content
        return self._expect_kind("word", meaning).text

    def _braced(self, item: Callable[[], T]) -> list[T]:
        self._expect("{")
        return self._list(item, "}")

    def _list(self, item: Callable[[], T], end: str) -> list[T]:
        """Items separated by commas, up to and including the closing mark."""
        items: list[T] = []
        while not self._accept(end):
            if items:
                self._expect(",")
            items.append(item())
        return items


@cache
def _forms(kind: type) -> dict[str, Any]:
    """The types of the fields of a dataclass by name; none if they cannot be resolved, as in another package's op."""
    try:
        return get_type_hints(kind, localns=_FIELD_TYPES)
    except NameError:
        return {}


def _fits(value: object, form: Any) -> bool:
    """Whether a field as it was read has the field's type. A whole number is also a number."""
    if form in _WORDS:
        return type(value) is form or (form is float and type(value) is int)
    origin, parts = get_origin(form), get_args(form)
    if origin is Literal:
        return value in parts
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is not tuple:
        return form is Any or not isinstance(form, type) or isinstance(value, form)
    if not isinstance(value, tuple):
        return False
    if parts[1:] == (Ellipsis,):
        return all(_fits(item, parts[0]) for item in value)
    return len(value) == len(parts) and all(map(_fits, value, parts))


def _meaning(form: Any) -> str:
    """A type as a message names it."""
    origin, parts = get_origin(form), get_args(form)
    if form in _WORDS:
        return _WORDS[form]
    if origin is Literal:
        return " or ".join(map(json.dumps, parts))
    if origin in (Union, UnionType):
        return " or ".join(map(_meaning, parts))
    if origin is not tuple:
        return str(form.__name__)
    if get_origin(parts[0]) is tuple:  # attributes
        return "{NAME = VALUE, ...}"
    if parts[1:] == (Ellipsis,):
        return f"a list, each {_meaning(parts[0])}"
    return f"[{', '.join(map(_meaning, parts))}]"


def _scan(text: str) -> list[Token]:
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _error(text, at, f"unexpected character {text[at]!r}")
        kind = match.lastgroup or ""
        if kind != "skip":
            tokens.append(Token(kind, match.group(), at, _content(text, kind, match.group(), at)))
        at = match.end()
    return [*tokens, Token("end", "", len(text))]


def _content(text: str, kind: str, letters: str, start: int) -> str:
    if kind not in ("value", "symbol", "string"):
        return ""
    spelled = letters if kind == "string" else letters[1:]
    if not spelled.startswith('"'):
        return spelled
    try:
        return str(json.loads(spelled))
    except ValueError as error:
        raise _error(text, start, f"{spelled} is not a valid string: {error}") from None


def _error(text: str, start: int, what: str, hint: str = "") -> TextError:
    line = text.count("\n", 0, start) + 1
    column = start - text.rfind("\n", 0, start)
    return TextError(f"line {line}, column {column}: {what}", hint)


def _bytes(text: str) -> bytes:
    return re.sub(rb"\\x([0-9a-f]{2})", lambda match: bytes([int(match[1], 16)]), text.encode("ascii"))
