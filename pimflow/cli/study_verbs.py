"""Verbs that study a model over several configurations: compare."""

from __future__ import annotations

import argparse
from typing import Any

from pimflow.cli.compile_verbs import add_search, stages_of
from pimflow.cli.output import Progress, print_json
from pimflow.cli.parsing import Parser, add_json, add_model, add_target, target_of
from pimflow.report.tables import number, render_table


def add_verbs(verbs: Any) -> None:
    """Adds this file's verbs."""
    parser: Parser = verbs.add_parser(
        "compare",
        help="search policies side by side",
        description="Time, energy, speedups, and where the nodes run, for several policies.",
    )
    add_model(parser)
    parser.add_argument("--policies", metavar="P,P,...", help="default: all")
    add_target(parser)
    add_search(parser)
    add_json(parser)
    parser.set_defaults(run=_compare)


def _compare(arguments: argparse.Namespace) -> int:
    from pimflow.compiler import compare_policies
    from pimflow.frontend import parse_shapes
    from pimflow.options import Options

    options = Options(
        target=target_of(arguments),
        shapes=parse_shapes(arguments.shape),
        grid=arguments.grid,
        stages=stages_of(arguments.stages),
        time_budget_s=arguments.time_budget,
        use_cache=not arguments.no_cache,
        profile=arguments.profile,
    )
    names = tuple(name.strip() for name in arguments.policies.split(",")) if arguments.policies else None
    progress = Progress()
    try:
        results = compare_policies(arguments.model, options, names, progress)
    finally:
        progress.close()
    if arguments.json:
        print_json([result.as_json() for result in results])
        return 0
    header = ("policy", "time (us)", "energy (mJ)", "speedup", "CONV speedup", "gpu", "pim", "md-dp", "pipeline")
    rows = [
        (
            result.policy,
            number(result.time_us),
            number(result.energy_mj, 2),
            number(result.speedup, 3),
            number(result.conv_speedup, 3),
            *(f"{100 * result.mode_share.get(mode, 0.0):.0f} %" for mode in header[5:]),
        )
        for result in results
    ]
    print(render_table(header, rows, right=range(1, 9)))
    for result in results:
        if result.ratio_histogram:
            parts = ", ".join(f"{ratio} %: {count}" for ratio, count in result.ratio_histogram.items())
            print(f"{result.policy}: share of rows on PIM in MD-DP nodes: {parts}")
    return 0
