"""Gavel: cluster policies as optimisation over fractions of time on mixed GPUs (Narayanan et al., OSDI 2020)."""

from fairway.policies.gavel.fair import MaxMinFairness
from fairway.policies.gavel.hierarchy import Hierarchical, WaterFilling
from fairway.policies.gavel.isolated import Isolated
from fairway.policies.gavel.orders import GavelFifo, GavelSjf
from fairway.policies.gavel.sums import MaxThroughput, MinCost, MinCostSlo
from fairway.policies.gavel.times import FinishTimeFairness, MinMakespan

__all__ = [
    "FinishTimeFairness",
    "GavelFifo",
    "GavelSjf",
    "Hierarchical",
    "Isolated",
    "MaxMinFairness",
    "MaxThroughput",
    "MinCost",
    "MinCostSlo",
    "MinMakespan",
    "WaterFilling",
]
