"""What the generators of workloads share: seeds, checks of their parameters, arrivals, times in whole milliseconds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fairway.core.errors import InputError
from fairway.traces.fields import shown

MAX_JOBS = 10_000_000


def generator_of(jobs: int, seed: int) -> np.random.Generator:
    need_whole(jobs, 1, MAX_JOBS, "jobs")
    need_whole(seed, 0, 2**63 - 1, "seed")
    return np.random.Generator(np.random.PCG64(seed))


def need_whole(value: Any, low: int, high: int, name: str) -> None:
    if type(value) is not int or not low <= value <= high:
        raise InputError(f"{name} {shown(value)} is not a whole number from {low} to {high}")


def need_at_least(value: Any, low: float, name: str) -> None:
    if type(value) not in (int, float) or not math.isfinite(value) or value < low:
        raise InputError(f"{name} {shown(value)} is not a number of at least {low:g}")


def shares_of(named: dict[str, float], width: int | None = None) -> list[float]:
    """Probabilities from shares of any sum."""
    for name, share in named.items():
        need_at_least(share, 0, name)
    total = math.fsum(named.values())
    if total <= 0 or (width is not None and len(named) != width):
        raise InputError(f"{', '.join(named)}: expected {width or len(named)} shares with a positive sum")
    return [share / total for share in named.values()]


def poisson_arrivals(rng: np.random.Generator, jobs: int, mean_s: float) -> np.ndarray:
    """The first job comes at 0, the gaps are exponential."""
    gaps = rng.exponential(mean_s, jobs) if mean_s > 0 else np.zeros(jobs)
    gaps[0] = 0.0
    return np.cumsum(gaps)


def whole_ms(seconds: float) -> float:
    return round(float(seconds), 3)
