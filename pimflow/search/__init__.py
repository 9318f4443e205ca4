"""The search: which candidates a policy may use, what each costs, and the cheapest plan made of them."""
