"""The guard around a policy: what it sees of a live cluster, and what its decisions may not do."""
