"""`pimflow gnn-epoch`: what an epoch of training a graph network takes, by where the features lie."""

from __future__ import annotations

import argparse
from typing import Any

from pimflow.cli.output import Progress, show
from pimflow.cli.parsing import Parser, add_json, add_quiet, add_target, positive_int, target_of

_LOADERS = ("none", "sampling", "all")


def add(verbs: Any) -> None:
    """Describes the verb."""
    parser: Parser = verbs.add_parser(
        "gnn-epoch",
        help="what an epoch of training a graph network takes, by where the features lie",
        description="Draws mini-batches of a graph and says what sampling, transfers and training take with the "
        "features in the GPU's memory, gathered by the CPU and copied, or read by the GPU from the host's memory.",
    )
    parser.add_argument("graph", metavar="GRAPH", help="a graph's file, or a published one's name: twitter7")
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", default="sage", help="sage, gcn, gat, or a model (default: sage)"
    )
    parser.add_argument(
        "--fan-outs", type=_fan_outs, default=(25, 10), metavar="K,..", help="neighbours drawn, by hop (default: 25,10)"
    )
    parser.add_argument(
        "--batch", type=positive_int, default=1000, metavar="N", help="vertices of a step (default: 1000)"
    )
    parser.add_argument("--features", type=positive_int, metavar="F", help="columns of a vertex's features")
    parser.add_argument(
        "--hidden", type=positive_int, default=256, metavar="N", help="columns between layers (default: 256)"
    )
    parser.add_argument("--classes", type=positive_int, metavar="N", help="columns of the result")
    parser.add_argument("--train", type=positive_int, metavar="N", help="vertices that an epoch trains")
    parser.add_argument(
        "--loader", choices=_LOADERS, default="sampling", help="what overlaps with the step before (default: sampling)"
    )
    parser.add_argument(
        "--batches", type=int, default=8, metavar="N", help="how many are drawn; 0: all of the epoch (default: 8)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of everything that is drawn (default: 0)")
    add_target(parser, "rtx3090")
    add_json(parser)
    add_quiet(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Draws, prices, prints."""
    from pimflow import gnn

    with Progress(quiet=arguments.quiet) as progress:
        found = gnn.epoch(
            arguments.graph,
            arguments.model,
            fan_outs=arguments.fan_outs,
            batch=arguments.batch,
            features=arguments.features,
            hidden=arguments.hidden,
            classes=arguments.classes,
            train=arguments.train,
            target=target_of(arguments),
            loader=arguments.loader,
            batches=arguments.batches,
            seed=arguments.seed,
            progress=progress,
        )
    show("gnn-epoch", found, arguments)
    return 0


def _fan_outs(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not numbers like 25,10") from None
