"""Passes and their options as text: `fold-constants,md-dp-split{node=conv1 gpu_rows=28},movement-elimination`.

```
pipeline = [spec, ...]                  spec  = NAME [options]
options  = "{" NAME "=" value ... "}"   value = WORD | STRING | "[" value ... "]" | [CLASS] options
```

White space separates; between options, and between the values of a list, commas are allowed too. STRING is JSON's. A
WORD is anything without white space, quotes, commas, `=`, braces and brackets: a number, `true`, `false` or `none` if
it can be read as such, otherwise text. CLASS names the class of an option that is a dataclass.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from pimflow.data import TAG
from pimflow.errors import OptionError
from pimflow.records import NamedTuple

_WORD = r'[^\s"{}\[\],=]+'
_TOKEN = re.compile(rf'\s*(?:(?P<string>"(?:[^"\\\n]|\\.)*")|(?P<word>{_WORD})|(?P<mark>[{{}}\[\],=]))')
_INT = re.compile(r"-?\d+")
_FLOAT = re.compile(r"-?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?")
_CONSTANTS: Mapping[str, Any] = {"true": True, "false": False, "none": None}


class Spec(NamedTuple):
    """A pass as requested: its name, and its options as plain data."""

    name: str
    options: Mapping[str, Any]


def read_specs(text: str) -> list[Spec]:
    """The passes that a text asks for, in order.

    Raises:
        OptionError: the text is malformed; the message names the column.
    """
    return _Reader(text).specs()


def spec_text(spec: Spec) -> str:
    """The text that `read_specs` reads as exactly this pass."""
    return spec.name + _options_text(spec.options) if spec.options else spec.name


def _options_text(options: Mapping[str, Any]) -> str:
    return "{" + " ".join(f"{key}={_value_text(value)}" for key, value in options.items()) + "}"


def _value_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return str(value.get(TAG, "")) + _options_text({key: item for key, item in value.items() if key != TAG})
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(_value_text, value)) + "]"
    if isinstance(value, str):
        return value if re.fullmatch(_WORD, value) and _scalar(value) == value else json.dumps(value)
    return next((word for word, constant in _CONSTANTS.items() if constant is value), repr(value))


def _scalar(word: str) -> Any:
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    if _INT.fullmatch(word):
        return int(word)
    return float(word) if _FLOAT.fullmatch(word) else word


class _Token(NamedTuple):
    kind: str
    text: str
    column: int


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens = list(_scan(text))
        self._at = 0

    def specs(self) -> list[Spec]:
        if self._next.kind == "end":
            return []
        specs = [self._spec()]
        while self._accept(","):
            specs.append(self._spec())
        if self._next.kind != "end":
            self._fail("a comma or the end")
        return specs

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _accept(self, mark: str) -> bool:
        found = self._next.kind == "mark" and self._next.text == mark
        self._at += found
        return found

    def _word(self, meaning: str) -> str:
        if self._next.kind != "word":
            self._fail(meaning)
        self._at += 1
        return self._tokens[self._at - 1].text

    def _fail(self, expected: str) -> NoReturn:
        found = f"{self._next.text!r} at column {self._next.column}" if self._next.text else "the end"
        raise OptionError(f"the pipeline has {found} where {expected} should be", "as in a,b{option=1 other=[x, y]}")

    def _spec(self) -> Spec:
        name = self._word("the name of a pass")
        return Spec(name, self._options() if self._accept("{") else {})

    def _options(self) -> dict[str, Any]:
        """Read options from after the opening brace up to and including the closing one."""
        options: dict[str, Any] = {}
        while not self._accept("}"):
            token = self._next
            key = self._word("an option or '}'")
            if key in options:
                raise OptionError(f"the pipeline gives the option {key!r} twice (column {token.column})")
            if not self._accept("="):
                self._fail("'='")
            options[key] = self._value()
            self._accept(",")
        return options

    def _value(self) -> Any:
        if self._accept("{"):
            return self._options()
        if self._accept("["):
            return self._list()
        if self._next.kind == "string":
            self._at += 1
            return _unquoted(self._tokens[self._at - 1])
        word = self._word("a value")
        return {TAG: word, **self._options()} if self._accept("{") else _scalar(word)

    def _list(self) -> list[Any]:
        values: list[Any] = []
        while not self._accept("]"):
            values.append(self._value())
            self._accept(",")
        return values


def _unquoted(token: _Token) -> str:
    try:
        return str(json.loads(token.text))
    except ValueError as error:
        raise OptionError(f"{token.text} at column {token.column} is not a valid string: {error}") from None


def _scan(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise OptionError(f"the pipeline has an unterminated string at column {text.index(chr(34), at) + 1}")
        kind = match.lastgroup or ""
        tokens.append(_Token(kind, match[kind], match.start(kind) + 1))
        at = match.end()
    return [*tokens, _Token("end", "", end + 1)]
