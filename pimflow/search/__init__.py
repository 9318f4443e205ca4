"""The search: which candidates a policy may use, what each costs, and the cheapest plan made of them."""

from pimflow.search.policy import find_policy, policies

__all__ = ["find_policy", "policies"]
