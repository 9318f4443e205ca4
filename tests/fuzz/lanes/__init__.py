"""One kind of trial a file: `case(seed, folder)` is a whole trial, made by its seed alone."""

from __future__ import annotations

from fuzz.lanes import graphs, mutants, prices
from fuzz.verdict import Case

LANES: dict[str, Case] = {
    "mutants": mutants.case,
    "graphs": graphs.case,
    "prices": prices.case,
}
