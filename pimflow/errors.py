"""One class per kind of user error; each message says what is wrong, where, and what to do. Also makes text safe to
show.

`PimflowError` is what the command line turns into one line on stderr and exit code 2.
Every other exception that escapes is a bug and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Name = TypeVar("Name", bound=str)


def printable(text: str, keep: str = "") -> str:
    """Escape unprintable characters (control characters, marks that change the writing direction, lone surrogates), so
    that a terminal shows the text and does not obey it. Names in models, files and targets may hold anything.

    Args:
        text: any text.
        keep: characters to leave as they are, such as the newlines of a table.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode("ascii") for char in text
    )


class PimflowError(Exception):
    """A user's mistake, or a limit of the tool, that one line can explain.

    Args:
        what: what is wrong, and where; unprintable characters are escaped.
        hint: what to do about it; may be empty.
    """

    def __init__(self, what: str, hint: str = "") -> None:
        self.what = printable(" ".join(what.split()))
        self.hint = printable(" ".join(hint.split()))
        super().__init__(f"{self.what}; {self.hint}" if self.hint else self.what)


class ModelError(PimflowError):
    """The model file cannot be read, is not valid ONNX, or cannot be run by ONNX Runtime."""


class ShapeError(PimflowError):
    """A dimension is unbound, or a bound shape does not fit the model."""


class TargetError(PimflowError):
    """A target is unknown, or its TOML file has a missing, unknown or impossible value."""


class PluginError(PimflowError):
    """A plugin of another package cannot be loaded, is not of the expected type, or is offered by two packages."""


class OptionError(PimflowError):
    """An option of the command line or of a function has an unknown or invalid value."""


class ArgumentError(PimflowError, TypeError):
    """An argument of a function has the wrong type."""


class PlanError(PimflowError):
    """A plan does not fit the graph: a node is unknown, missing or duplicated, or a decision cannot be carried out."""


class TraceError(PimflowError):
    """A command trace is malformed; for text, the message names file, line and column."""


class TextError(PimflowError):
    """The text form of a graph is malformed or lacks a constant; the message names line and column."""


class CommandOrderError(PimflowError):
    """A program or a trace does something that hardware would refuse; the message names the command's index."""


class OutputError(PimflowError):
    """An output folder or file cannot be written, or would overwrite something that pimflow did not write."""


class InputDataError(PimflowError):
    """Data given to run or verify a model does not match the model's inputs."""


class GraphDataError(PimflowError):
    """A graph given as data cannot be read or is not a graph: an edge, a weight or an array is invalid."""


class DataError(PimflowError):
    """Plain data, such as those of a JSON or TOML file, do not have the expected form; the message names the key."""


class GraphError(ValueError):
    """An IR graph breaks one of its own rules: a bug in a frontend or a pass, not a user's mistake."""


class MemoryPlanError(ValueError):
    """A memory plan lets live values overlap or misplaces one: a bug in the planner, not a user's mistake."""


class PassError(RuntimeError):
    """A pass failed or broke the graph; the message names the pass. A bug, so it keeps its cause."""


def kind_of(value: object) -> str:
    """The type of a value with its article: "an int", "a ndarray"."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """A number with its noun: "1 record", "2,000 records"; `plural` is for nouns that do not just take an s."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def one_line(kind: str, text: str) -> str:
    """A `repr` for something large: one line, whatever the names in it contain."""
    return f"<{kind} {printable(' '.join(text.split()))}>"


def did_you_mean(value: str, names: Iterable[str], most: int = 1) -> str:
    """A hint with the names, at most `most`, that `value` may be a misspelling of; "" if none is close."""
    import difflib  # imported here because only mistakes need it

    near = difflib.get_close_matches(value, list(names), n=most)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else ""


def choose_one(value: str, names: Iterable[str]) -> str:
    """A hint that lists every name, preceded by the one that `value` may be a misspelling of."""
    names = list(names)
    return f"{did_you_mean(value, names)} choose one of {', '.join(names)}".lstrip()


def choice(what: str, value: str, names: Iterable[Name], error: type[PimflowError] = OptionError) -> Name:
    """The name that a user's value matches; case and surrounding whitespace do not matter.

    Args:
        what: the kind of name, for the message ("policy", "timing profile").
        value: what the user wrote.
        names: the names that exist, in lower case.
        error: the class of error to raise.

    Raises:
        PimflowError: no name matches; the message lists them.
    """
    names = list(names)
    wanted = value.strip().lower()
    for name in names:
        if name == wanted:
            return name
    raise error(f"unknown {what} {value!r}", choose_one(wanted, names))
