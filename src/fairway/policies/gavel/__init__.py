"""Gavel: cluster policies as optimisation over fractions of time on mixed GPUs (Narayanan et al., OSDI 2020)."""

from fairway.policies.gavel.isolated import Isolated

__all__ = ["Isolated"]
