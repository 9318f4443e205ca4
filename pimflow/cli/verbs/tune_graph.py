"""`pimflow tune-graph`: which strategy aggregates over a graph fastest on UPMEM modules."""

from __future__ import annotations

import argparse
from typing import Any

from pimflow.cli.output import Progress, show
from pimflow.cli.parsing import Parser, add_json, add_target, positive_int, target_of

_ELEMENTS = ("int8", "int16", "int32", "fp32")


def add(verbs: Any) -> None:
    """Describes the verb."""
    parser: Parser = verbs.add_parser(
        "tune-graph",
        help="which strategy aggregates over a graph fastest on UPMEM modules",
        description="Ranks all strategies of parallelism for the aggregation over a graph, by stage, and says why the "
        "best one is.",
    )
    parser.add_argument("graph", metavar="GRAPH", help=".npz, MatrixMarket (.mtx), or an edge list, plain or .gz")
    parser.add_argument("--features", type=positive_int, required=True, metavar="F", help="columns of the features")
    add_target(parser, "upmem")
    parser.add_argument("--dtype", choices=_ELEMENTS, help="what is added up (default: the target's)")
    parser.add_argument("--wide", action="store_true", help="add integers up in int64")
    parser.add_argument(
        "--heads", type=positive_int, default=0, metavar="H", help="weights of an edge that are computed at run time"
    )
    parser.add_argument("--backward", action="store_true", help="rank the aggregation of gradients too")
    parser.add_argument("--exhaustive", action="store_true", help="time every strategy core by core")
    parser.add_argument("--baselines", action="store_true", help="what SparseP, GraNDe and PyGim's tuner would take")
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Reads the graph, ranks, prints."""
    from pimflow import gnn

    machine, _ = gnn.modules_of(target_of(arguments))  # a target without them is told before a large graph is read
    with Progress(quiet=arguments.quiet) as progress:
        progress(f"reading {arguments.graph}")
        graph = gnn.Graph.load(arguments.graph)
        tuning = gnn.tune(
            graph,
            arguments.features,
            machine,
            arguments.dtype,
            wide=arguments.wide,
            heads=arguments.heads,
            backward=arguments.backward,
            exhaustive=arguments.exhaustive,
            baselines=arguments.baselines,
            progress=progress,
        )
    show("tune-graph", tuning, arguments)
    return 0 if tuning.rows else 1
