"""The search: which candidates a policy may use, what each costs, and the cheapest plan made of them."""

from pimflow.search.policy import DEFAULT_POLICY, find_policy, policies
from pimflow.search.price_cache import CacheInfo, CacheWarning, ProfileTable, cache_clear, cache_folder, cache_info
from pimflow.search.solver import prove, solve

__all__ = [
    "DEFAULT_POLICY",
    "CacheInfo",
    "CacheWarning",
    "ProfileTable",
    "cache_clear",
    "cache_folder",
    "cache_info",
    "find_policy",
    "policies",
    "prove",
    "solve",
]
