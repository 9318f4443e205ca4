"""`pimflow gnn-epoch`: the cost of a training epoch of a graph network, for each placement of the features."""

from __future__ import annotations

import argparse
import inspect
from typing import Any

from pimflow import gnn
from pimflow.cli.output import Progress, show
from pimflow.cli.parsing import Parser, add_json, add_target, positive_int, target_of, whole_number
from pimflow.gnn.loop import OTHERS
from pimflow.records import NamedTuple

_DEFAULTS = {name: argument.default for name, argument in inspect.signature(gnn.epoch).parameters.items()}
_NUMBERS = {
    "batch": "vertices per step",
    "hidden": "width of the hidden layers",
    "classes": "number of classes",
    "train": "number of vertices that an epoch trains",
}


def add(verbs: Any) -> None:
    """Add the verb and its arguments."""
    parser: Parser = verbs.add_parser(
        "gnn-epoch",
        help="cost an epoch of graph-network training for each place to keep the features",
        description="Draws mini-batches from a graph and reports the time of sampling, transfers and training with the "
        "features in GPU memory, gathered by the CPU and copied, or read from host memory by the GPU.",
    )
    parser.add_argument(
        "graph", metavar="GRAPH", help="a graph file, or the name of a published graph such as twitter7"
    )
    _argument(parser, "model", "sage, gcn, gat, rgcn, or a model of your own", metavar="MODEL", nargs="?")
    hops = "neighbours to sample at each hop, of all relations or of one (repeatable)"
    _argument(parser, "fan_outs", hops, metavar="[NAME=]K,..", type=_fan_outs, action="append")
    columns = "width of the feature vectors, of all vertices or of one kind (repeatable)"
    _argument(parser, "features", columns, metavar="[KIND=]N", type=_count, action="append")
    _argument(parser, "kind", "kind of vertex to train, if there are several", metavar="KIND")
    counts = "number of vertices of a kind (repeatable)"
    _argument(parser, "vertices", counts, metavar="KIND=N", type=_count_of_kind, action="append")
    for name, meaning in _NUMBERS.items():
        _argument(parser, name, meaning, metavar="N", type=positive_int)
    _argument(parser, "loader", "which stages overlap with the previous step", choices=gnn.LOADERS)
    _argument(parser, "batches", "number of batches to draw; 0 draws the whole epoch", metavar="N", type=whole_number)
    _argument(parser, "seed", "random seed", metavar="N", type=whole_number)
    add_target(parser, _DEFAULTS["target"])
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Draw batches, price them, print."""
    given = {name: _by_name(value) for name, value in vars(arguments).items() if name in _DEFAULTS}
    given_amounts = {name: value for name, value in given.items() if value is not None}
    with Progress(quiet=arguments.quiet) as progress:
        found = gnn.epoch(**given_amounts | {"target": target_of(arguments), "progress": progress})
    show("gnn-epoch", found, arguments)
    return 0


def _by_name(value: Any) -> Any:
    """The value of a repeatable option: a mapping by name, or one value for all."""
    if not isinstance(value, list):
        return value
    found = dict(value)
    return found[OTHERS] if found.keys() == {OTHERS} else found


def _argument(parser: Parser, name: str, meaning: str, **how: Any) -> None:
    """Add one of `gnn.epoch`'s arguments, with its default: an option, or a positional argument if `nargs` says so."""
    default = _DEFAULTS[name]
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
    called = name if "nargs" in how else f"--{name.replace('_', '-')}"
    help = meaning if default is None else f"{meaning} (default: {shown})"
    parser.add_argument(called, default=None if "action" in how else default, help=help, **how)


class _Named(NamedTuple):
    """A value of an option that may be given by name; the name is `OTHERS` if none is given."""

    name: str
    value: Any


def _fan_outs(text: str) -> _Named:
    name, _, hops = text.rpartition("=")
    try:
        return _Named(name or OTHERS, tuple(int(part) for part in hops.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not numbers like 25,10 or writes=25,10") from None


def _count(text: str) -> _Named:
    name, _, number = text.rpartition("=")
    try:
        return _Named(name or OTHERS, positive_int(number))
    except (ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number like 128 or paper=128") from None


def _count_of_kind(text: str) -> _Named:
    count = _count(text)
    if count.name == OTHERS:
        raise argparse.ArgumentTypeError(f"{text!r} is not the number of a kind, like paper=128")
    return count
