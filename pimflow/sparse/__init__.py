"""Graphs as data: edges in compressed rows, for models that aggregate over them."""

from __future__ import annotations

from pimflow.sparse.generate import DATA_SETS as DATA_SETS
from pimflow.sparse.generate import like as like
from pimflow.sparse.graph import Graph as Graph
from pimflow.sparse.order import ORDERS as ORDERS
from pimflow.sparse.order import reordered as reordered
from pimflow.sparse.sorting import by_id as by_id
from pimflow.sparse.sorting import is_sorted as is_sorted
from pimflow.sparse.stack_distance import ReuseProfile as ReuseProfile
from pimflow.sparse.stack_distance import profile_of as profile_of
from pimflow.sparse.statistics import Statistics as Statistics
from pimflow.sparse.statistics import in_degrees as in_degrees
from pimflow.sparse.statistics import out_degrees as out_degrees
from pimflow.sparse.statistics import source_histogram as source_histogram
from pimflow.sparse.statistics_cache import cached_profile as cached_profile
from pimflow.sparse.statistics_cache import reuse as reuse
from pimflow.sparse.statistics_cache import statistics_of as statistics_of
