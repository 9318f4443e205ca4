"""Table of PyTorch-Direct's placements on graphs of its evaluation's sizes, as docs/gnn-epoch.md has it.

    python benchmarks/epoch_results.py [--batches 8] [--target rtx3090]

About a minute and 1 GB. Published (Min et al., 2021): transfers -47.1 % in the mean, training up to 1.6x, power -12.4
to -17.5 %, all against features that are gathered by the CPU and copied.
"""

from __future__ import annotations

import argparse
from statistics import mean

from pimflow import gnn
from pimflow.gnn.workloads import WORKLOADS

HEAD = (
    "| graph | features | transfer ms: gather, read | transfers | epoch, sage | epoch, gat | power, sage | "
    "power, gat | transfers against page-locked |"
)


def main() -> None:
    """Prints the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--target", default="rtx3090")
    arguments = parser.parse_args()
    print(HEAD, "|---" * HEAD.count("|", 1) + "|", sep="\n")
    changes: list[tuple[float, float, float]] = []
    locked: list[float] = []
    for name, published in WORKLOADS.items():
        found = [
            gnn.epoch(name, model, hidden=hidden, target=arguments.target, batches=arguments.batches)
            for model, hidden in (("sage", 256), ("gat", 64))
        ]
        gathered, read = (found[0][placement].transfer_us / 1e3 for placement in ("gather-pageable", "zero-copy"))
        against = [one.against("zero-copy") for one in found]
        locked.append(found[0].against("zero-copy", "gather")[0])
        changes += against
        size = 4 * published.vertices * published.features / 1e9
        print(
            f"| {name} | {published.features} ({size:.1f} GB) | {gathered:.1f}, {read:.1f} | {against[0][0]:+.1f} % | "
            f"{against[0][1]:.2f}x | {against[1][1]:.2f}x | {against[0][2]:+.1f} % | {against[1][2]:+.1f} % | "
            f"{locked[-1]:+.1f} % |",
            flush=True,
        )
    transfers, speedups, powers = zip(*changes, strict=True)
    print(
        f"\nmean of transfers {mean(transfers):+.1f} % (page-locked: {mean(locked):+.1f} %), "
        f"epochs {min(speedups):.2f}x to {max(speedups):.2f}x, power {max(powers):+.1f} to {min(powers):+.1f} %"
    )


if __name__ == "__main__":
    main()
