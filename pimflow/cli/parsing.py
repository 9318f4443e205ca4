"""An argument parser whose every complaint is one line, and the arguments that several verbs share."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from pimflow.errors import OptionError, choose_one
from pimflow.targets import DEFAULT_TARGET, GWRITE_LATENCIES, TIMING_PROFILES


class Parser(argparse.ArgumentParser):
    """argparse, with usage errors raised as `OptionError` (one line, exit code 2) instead of a usage dump."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Raises the complaint."""
        raise OptionError(message, f"see `{self.prog} --help`")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        name = "/".join(action.option_strings) or action.dest
        raise OptionError(f"unknown {name} {value!r}", choose_one(str(value), map(str, action.choices)))


def positive_int(text: str) -> int:
    """An argument that must be a whole number above zero."""
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return int(text)


def seed_int(text: str) -> int:
    """An argument that must be a whole number, zero or above."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, zero or above")
    return int(text)


def positive_float(text: str) -> float:
    """An argument that must be a finite number above zero."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above zero")
    return value


def add_json(parser: argparse.ArgumentParser) -> None:
    """--json."""
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")


def add_target(parser: argparse.ArgumentParser) -> None:
    """--target and the knobs that override it."""
    parser.add_argument(
        "--target",
        default=DEFAULT_TARGET,
        metavar="NAME|FILE.toml",
        help=f"machine to compile for (default: {DEFAULT_TARGET}; see `pimflow targets list`)",
    )
    parser.add_argument("--timing", choices=TIMING_PROFILES, help="timing profile (default: the target's)")
    parser.add_argument("--gwrite-latency", choices=GWRITE_LATENCIES, help="GWRITE latency (default: the target's)")
    parser.add_argument("--buffers", type=positive_int, metavar="N", help="global buffers that mappings may use")
    parser.add_argument(
        "--buffers-per-channel", type=positive_int, metavar="N", help="filled buffers that one channel can hold"
    )
    parser.add_argument("--pim-channels", type=positive_int, metavar="N", help="PIM-enabled memory channels")


def add_model(parser: argparse.ArgumentParser) -> None:
    """The positional model and --shape."""
    parser.add_argument("model", metavar="MODEL", help="an ONNX file, or zoo:NAME (see `pimflow zoo list`)")
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="input:1x3x224x224|N=1",
        help="bind an input's shape or a symbolic dimension; may be repeated",
    )


def target_of(arguments: argparse.Namespace) -> Any:
    """The target that the shared arguments name, knobs applied."""
    from pimflow.targets import load_target, override

    return override(
        load_target(arguments.target),
        timing=arguments.timing,
        gwrite_latency=arguments.gwrite_latency,
        buffers=arguments.buffers,
        buffers_per_channel=arguments.buffers_per_channel,
        pim_channels=arguments.pim_channels,
    )
