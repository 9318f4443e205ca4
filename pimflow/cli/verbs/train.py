"""`pimflow train`: a training step of a model, and a plan for the activations that it saves."""

from __future__ import annotations

import argparse
from typing import Any

from pimflow.cli.options import add_options, keywords_of
from pimflow.cli.output import Progress, show
from pimflow.cli.parsing import Parser, add_json, add_model, number, positive_float
from pimflow.cli.stdin import given_model
from pimflow.data import Limits


def add(verbs: Any) -> None:
    """Add the verb and its arguments."""
    parser: Parser = verbs.add_parser(
        "train",
        help="plan a training step: time, memory, and which activations to keep, offload or recompute",
        description="Builds and prices a training step of a model on a machine's host (forward pass, loss, gradients "
        "and update), and plans which of the saved activations to keep, to offload to SSDs or to recompute.",
    )
    add_model(parser)
    add_options(parser, only=("target", "shapes", "fixed", "graph", "relations", "time_budget_s"))
    parser.add_argument(
        "--loss", default="sum", metavar="NAME", help="loss: sum, mean-squared or cross-entropy (default: sum)"
    )
    parser.add_argument(
        "--optimiser", default="sgd", metavar="NAME", help="optimiser: none, sgd, momentum or adam (default: sgd)"
    )
    parser.add_argument(
        "--activations",
        default="auto",
        metavar="USE",
        help="how to treat activations: auto, keep, offload, recompute, or rule (SSDTrain's); default: auto",
    )
    parser.add_argument(
        "--limit-gib",
        type=positive_float,
        metavar="GIB",
        help="memory for activations (default: what is left of the target's GPU memory)",
    )
    parser.add_argument(
        "--slower",
        dest="slower_percent",
        type=number(float, Limits(least=0)),
        default=0.0,
        metavar="PERCENT",
        help="how much longer a step may take for a lower peak, apart from kernels slowed by transfers; with "
        "--limit-gib, for fewer bytes written, everything included (default: 0)",
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Plan the step and print the plan."""
    import pimflow

    with Progress(quiet=arguments.quiet) as progress:
        found = pimflow.train(
            given_model(arguments.model),
            loss=arguments.loss,
            optimiser=arguments.optimiser,
            activations=arguments.activations,
            limit_gib=arguments.limit_gib,
            slower_percent=arguments.slower_percent,
            progress=progress,
            **keywords_of(arguments),
        )
    show("train", found, arguments)
    return 0
