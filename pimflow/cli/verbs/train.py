"""`pimflow train`: a training step of a model, and what becomes of the activations that it saves."""

from __future__ import annotations

import argparse
from typing import Any

from pimflow.cli.options import add_options, keywords_of
from pimflow.cli.output import show
from pimflow.cli.parsing import Parser, add_json, add_model, number, positive_float
from pimflow.cli.stdin import given_model
from pimflow.data import Limits


def add(verbs: Any) -> None:
    """Describes the verb."""
    parser: Parser = verbs.add_parser(
        "train",
        help="a training step: time, memory, and which activations to keep, offload or recompute",
        description="A training step of a model on a machine's host: forward, loss, gradients, the optimiser's update; "
        "and a plan for the activations that it saves: kept, offloaded to SSDs or recomputed.",
    )
    add_model(parser)
    add_options(parser, only=("target", "shapes", "fixed", "graph", "relations"))
    parser.add_argument(
        "--loss", default="sum", metavar="NAME", help="sum, mean-squared or cross-entropy (default: sum)"
    )
    parser.add_argument("--optimiser", default="sgd", metavar="NAME", help="none, sgd, momentum or adam (default: sgd)")
    parser.add_argument(
        "--activations",
        default="auto",
        metavar="USE",
        help="auto, keep, offload, recompute, or rule, which is SSDTrain's (default: auto)",
    )
    parser.add_argument(
        "--limit-gib",
        type=positive_float,
        metavar="GIB",
        help="what activations may take (default: what the target's GPU memory leaves)",
    )
    parser.add_argument(
        "--slower",
        dest="slower_percent",
        type=number(float, Limits(least=0)),
        default=0.0,
        metavar="PERCENT",
        help="how much longer a step may take for a lower peak (default: 0)",
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Plans and prints."""
    import pimflow

    found = pimflow.train(
        given_model(arguments.model),
        loss=arguments.loss,
        optimiser=arguments.optimiser,
        activations=arguments.activations,
        limit_gib=arguments.limit_gib,
        slower_percent=arguments.slower_percent,
        **keywords_of(arguments),
    )
    show("train", found, arguments)
    return 0
