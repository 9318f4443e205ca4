"""One kind of trial per file: `case(seed, folder)` is a whole trial, determined by its seed alone."""

from __future__ import annotations

from fuzz.lanes import attributes, files, folders, graphs, kills, mutants, prices, races, targets
from fuzz.verdict import Case

LANES: dict[str, Case] = {
    "mutants": mutants.case,
    "graphs": graphs.case,
    "prices": prices.case,
    "kills": kills.case,
    "races": races.case,
    "folders": folders.case,
    "targets": targets.case,
    "files": files.case,
    "attributes": attributes.case,
}
