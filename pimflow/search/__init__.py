"""The search: which candidates a policy may use, what each costs, and the cheapest plan made of them."""

from pimflow.search.policy import policies, policy_names, policy_of, require_offered, spill_way

__all__ = ["policies", "policy_names", "policy_of", "require_offered", "spill_way"]
