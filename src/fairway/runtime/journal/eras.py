"""Eras: since when a scheduler has had which policy and which GPUs. The journal keeps them as a fact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from fairway.core.cluster import Cluster

FACT = "eras"
MOST = 200
"""How many eras are kept."""


class Era(NamedTuple):
    """A policy and GPUs (by type) in force since a date by the scheduler's clock."""

    since_s: float
    policy: str
    gpus: dict[str, int]


def with_era(known: Any, since_s: float, policy: str, cluster: Cluster) -> list[list[Any]]:
    """The eras that are known, as the journal has them, and the present one, if it is another."""
    eras = read_eras(known)
    gpus = Counter[str]()
    for node in cluster.nodes:
        gpus[node.gpu_type] += node.gpus
    if not eras or (eras[-1].policy, eras[-1].gpus) != (policy, dict(gpus)):
        eras.append(Era(since_s, policy, dict(gpus)))
    return [list(era) for era in eras[-MOST:]]


def read_eras(known: Any) -> list[Era]:
    """What `with_era` gave; without what is damaged."""
    found: list[Era] = []
    for one in known if isinstance(known, Sequence) else ():
        try:
            since_s, policy, gpus = one
            found.append(Era(float(since_s), str(policy), {str(kind): int(count) for kind, count in gpus.items()}))
        except (TypeError, ValueError, AttributeError):
            continue
    return found
