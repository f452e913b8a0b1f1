"""From GPU counts to concrete GPUs. Pure."""
