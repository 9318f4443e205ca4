"""A sweep of 1,000 machines, and a search of 200 trials compared with its front.

The grid varies five keys of PIM and of the GPU, for MobileNetV2 under `pimflow`; the search visits part of it. A front
is measured by its hypervolume: the share of the box between the best and the worst values that a point of it dominates.

Run: python benchmarks/bench_sweep.py [--jobs N] [--trials N ...] [--sampler NAME ...]
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from machine import here

import pimflow

STUDY: dict[str, Any] = {
    "models": ["zoo:mobilenet-v2"],
    "policies": ["pimflow"],
    "objectives": ["time_us", "energy_mj", "pim.channels"],
    "grid": {
        "pim.channels": [4, 8, 12, 16, 20],
        "pim.buffers": [1, 2, 3, 4],
        "pim.banks": [8, 16],
        "gpu.clock_mhz": [1000, 1250, 1500, 1750, 2000],
        "gpu.launch_cycles": [0, 1000, 2000, 3000, 4000],
    },
}
SAMPLES = 200_000


def points_of(result: pimflow.SweepResult) -> np.ndarray[Any, Any]:
    """The objectives of the successful points."""
    names = STUDY["objectives"]
    return np.array([[row[name] for name in names] for row in result if row["status"] == "ok"], dtype=float)


def volume(points: np.ndarray[Any, Any], low: np.ndarray[Any, Any], high: np.ndarray[Any, Any]) -> float:
    """The share of the box that some point dominates, estimated from random places in it."""
    places = np.random.default_rng(0).uniform(low, high, (SAMPLES, len(low)))
    beaten = np.zeros(SAMPLES, dtype=bool)
    for point in points:
        beaten |= (point <= places).all(axis=1)
    return float(beaten.mean())


def swept(study: dict[str, Any], jobs: int | None) -> tuple[pimflow.SweepResult, float]:
    """A sweep into an empty folder, and its seconds."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        result = pimflow.sweep(study, folder, jobs=jobs)
        return result, time.perf_counter() - start


def user_s() -> float:
    """User CPU seconds of this process and its finished children."""
    return sum(resource.getrusage(who).ru_utime for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, help="processes (default: one per core)")
    parser.add_argument("--trials", type=int, nargs="*", default=[50, 100, 200])
    parser.add_argument("--sampler", nargs="*", default=["nsga2", "tpe", "random"])
    arguments = parser.parse_args(argv)
    print(here())
    every, seconds = swept(STUDY, arguments.jobs)
    points = points_of(every)
    best = sum(bool(row["on_front"]) for row in every)
    counts = f"{len(every):,} points ({len(points):,} ok, {best} on the front)"
    print(f"{counts}: {seconds:.0f} s, {user_s():.0f} s of user CPU here")
    low, high = points.min(axis=0), points.max(axis=0)
    front_volume = volume(points, low, high)
    for sampler in arguments.sampler:
        for trials in arguments.trials:
            study = {**STUDY, "search": {"trials": trials, "sampler": sampler}}
            found, seconds = swept(study, arguments.jobs)
            share = volume(points_of(found), low, high) / front_volume
            print(f"{sampler:<7} {trials:5,} trials: {100 * share:5.1f} % of the front's volume, {seconds:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
