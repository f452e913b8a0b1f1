"""The policy guard: what a policy sees of a live cluster, and what its decisions may not do."""
