"""An argument parser that reports every error in one line, and the arguments that several verbs share."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from pimflow.data import Limits
from pimflow.errors import OptionError, choose_one, did_you_mean
from pimflow.options import option_texts
from pimflow.targets import DEFAULT_TARGET, GWRITE_LATENCIES, Target, load_target, override, parse_values


class Parser(argparse.ArgumentParser):
    """argparse, with usage errors raised as `OptionError` (one line, exit code 2) instead of a usage dump.

    Attributes:
        default_action: for a verb with actions, the one that its options belong to if none is named.
    """

    default_action = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Raise the error as an `OptionError`."""
        raise OptionError(message, f"see `{self.prog} --help`")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, with the default action where there are only options."""
        words = None if args is None else list(args)
        if self.default_action and words and words[0].startswith("-") and self._named_by_none_of(words):
            words.insert(0, self.default_action)
        return super().parse_known_args(words, namespace)

    def _named_by_none_of(self, words: Iterable[str]) -> bool:
        """Whether none of the words is an action of this verb, or asks for its help."""
        names = {name for action in self._actions for name in action.choices or ()}
        return not {"-h", "--help", *names} & set(words)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does; an unknown argument is reported with the option that it may be a misspelling of."""
        known, rest = self.parse_known_args(args, namespace)
        if rest:
            parser, word = self._chosen(known), rest[0].partition("=")[0]
            hint = did_you_mean(word, parser._option_string_actions) if word.startswith("-") else ""
            raise OptionError(f"unrecognized arguments: {' '.join(rest)}", hint or f"see `{parser.prog} --help`")
        return known

    def _chosen(self, known: argparse.Namespace) -> Parser:
        """The parser of the chosen verb or, if the verb has actions, of the chosen action."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                chosen: Parser | None = action.choices.get(getattr(known, action.dest))
                return self if chosen is None else chosen._chosen(known)
        return self

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        name = "/".join(action.option_strings) or action.dest
        raise OptionError(f"unknown {name} {value!r}", choose_one(str(value), map(str, action.choices)))


def number(kind: type[int | float], limits: Limits) -> Callable[[str], Any]:
    """A parser for arguments that must be finite numbers within limits."""
    noun = "a whole number" if kind is int else "a number"
    bounds = f"of {limits}" if str(limits)[:1].isdigit() else str(limits)  # "of 0 or more", "between 1 and 50"

    def read(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not text.isascii() or not math.isfinite(value) or not limits.hold(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not {noun} {bounds}")
        return value

    return read


positive_int = number(int, Limits(above=0))
positive_float = number(float, Limits(above=0))
whole_number = number(int, Limits(least=0))


def add_json(parser: argparse.ArgumentParser) -> None:
    """--json."""
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """Add --quiet to a parser and all parsers below it; it is in the namespace only if it is given."""
    text = "print only errors, warnings and machine-readable output: JSON documents, graphs, traces, tables as CSV"
    parser.add_argument("-q", "--quiet", action="store_true", default=argparse.SUPPRESS, help=text)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                add_quiet(inner)


def add_target(parser: argparse.ArgumentParser, default: str = DEFAULT_TARGET) -> None:
    """Add --target and the options that override its values."""
    text = option_texts()["target"]
    parser.add_argument(
        text.flag,
        default=default,
        metavar=text.metavar,
        help=f"{text.help} (default: {default}; see `pimflow targets list`)",
    )
    parser.add_argument(
        "--timing", metavar="PROFILE", help="timing profile, such as artifact or strict (default: the target's)"
    )
    parser.add_argument(
        "--gwrite-latency",
        choices=GWRITE_LATENCIES,
        help="whether the latency of GWRITE is hidden (default: the target's)",
    )
    parser.add_argument(
        "--buffers", type=positive_int, metavar="N", help="number of global buffers that mappings may use"
    )
    parser.add_argument(
        "--buffers-per-channel",
        type=positive_int,
        metavar="N",
        help="number of filled buffers that one channel can hold",
    )
    parser.add_argument("--pim-channels", type=positive_int, metavar="N", help="number of PIM-enabled memory channels")
    parser.add_argument(
        "--gpu-operand", metavar="TYPE", help="element type on the GPU, fp16 or fp32 (default: the target's)"
    )
    parser.add_argument(
        "--set",
        dest="values",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override any value of the target, such as pim.banks=32; may be repeated",
    )


def add_model(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Add the positional model; `more` names other values that are allowed."""
    help = f"an ONNX file, zoo:NAME (see `pimflow zoo list`),{more} or - for an ONNX file on stdin"
    parser.add_argument("model", metavar="MODEL", help=help)


def target_of(arguments: argparse.Namespace) -> Target:
    """The target that the shared arguments name, with their overrides applied."""
    target = load_target(arguments.target)
    return override(
        target,
        parse_values(target, arguments.values),
        timing=arguments.timing,
        gwrite_latency=arguments.gwrite_latency,
        buffers=arguments.buffers,
        buffers_per_channel=arguments.buffers_per_channel,
        pim_channels=arguments.pim_channels,
        gpu_operand=arguments.gpu_operand,
    )
