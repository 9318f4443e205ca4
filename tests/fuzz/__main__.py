"""`python -m fuzz`, from tests/: runs the campaign for any length of time, or repeats one trial."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fuzz.campaign import Campaign
from fuzz.lanes import LANES


def main() -> int:
    """Run the campaign; the exit code is 1 if there are findings."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default: 10)")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other trials (default: 0)")
    parser.add_argument("--lane", action="append", choices=tuple(LANES), help="this lane only; may be repeated")
    parser.add_argument("--trials", type=int, metavar="N", help="the first N of every lane, however long they take")
    parser.add_argument("--trial", type=int, metavar="SEED", help="this trial of one --lane alone")
    arguments = parser.parse_args()
    names = arguments.lane or list(LANES)
    if arguments.trial is not None and len(names) != 1:
        parser.error("--trial needs one --lane")
    campaign = Campaign({name: LANES[name] for name in names}, lambda text: print(text, flush=True))
    with _home():
        if arguments.trial is not None:
            campaign.trial(names[0], arguments.trial)
        elif arguments.trials is not None:
            campaign.run_each(arguments.seed, arguments.trials)
        else:
            campaign.run(arguments.seed, 60 * arguments.minutes)
    print(campaign.text())
    return 1 if campaign.findings else 0


@contextmanager
def _home() -> Iterator[None]:
    """A folder, removed at the end, for the cache and for all temporary files of this process and its children."""
    with tempfile.TemporaryDirectory(prefix="fuzz-run-") as home:
        os.environ |= {"PIMFLOW_CACHE_DIR": str(Path(home, "cache")), "TMPDIR": home}
        tempfile.tempdir = home
        yield


if __name__ == "__main__":
    sys.exit(main())
