"""`pimflow tune-graph`: finds the fastest strategy for aggregating over a graph on UPMEM modules."""

from __future__ import annotations

import argparse
from typing import Any

from pimflow.cli.output import Progress, show
from pimflow.cli.parsing import Parser, add_json, add_target, positive_int, target_of

_ELEMENTS = ("int8", "int16", "int32", "fp32")


def add(verbs: Any) -> None:
    """Add the verb and its arguments."""
    parser: Parser = verbs.add_parser(
        "tune-graph",
        help="find the fastest strategy for aggregating over a graph on UPMEM modules",
        description="Ranks all parallelisation strategies for aggregating over a graph, with the time of each stage, "
        "and explains the best.",
    )
    parser.add_argument(
        "graph", metavar="GRAPH", help="a graph: .npz, MatrixMarket (.mtx) or an edge list, plain or .gz"
    )
    parser.add_argument(
        "--features", type=positive_int, required=True, metavar="F", help="width of the feature vectors"
    )
    add_target(parser, "upmem")
    parser.add_argument("--dtype", choices=_ELEMENTS, help="element type of the features (default: the target's)")
    parser.add_argument("--wide", action="store_true", help="accumulate integers in int64")
    parser.add_argument(
        "--heads",
        type=positive_int,
        default=0,
        metavar="H",
        help="number of edge weights that are computed at run time, such as attention heads (default: 0)",
    )
    parser.add_argument("--backward", action="store_true", help="rank the aggregation of gradients too")
    parser.add_argument(
        "--exhaustive", action="store_true", help="time every strategy core by core, not only the most promising"
    )
    parser.add_argument(
        "--baselines", action="store_true", help="also price the choices of SparseP, GraNDe and PyGim's tuner"
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read the graph, rank the strategies, print."""
    from pimflow import gnn

    machine, _ = gnn.modules_of(target_of(arguments))  # report a target without modules before a large graph is read
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
