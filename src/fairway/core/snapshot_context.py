"""What all snapshots of a state have in common: the cluster, names, and what is looked up on request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from fairway.core.cluster import Cluster
from fairway.core.facts import Facts, History
from fairway.core.pairing import ALL_SEEN, NO_PAIRING, Measurements, Pairing
from fairway.core.queues import Queues


class Names(NamedTuple):
    """What the codes in the columns `user`, `queue` and `model` stand for."""

    users: Sequence[str]
    queues: Sequence[str]
    models: Sequence[str]


class Frame(NamedTuple):
    """What stays the same from one snapshot of a state to the next, or is looked up in the state on request."""

    cluster: Cluster
    names: Names
    ids: Mapping[int, str]
    held_gpus: Mapping[int, tuple[int, ...]]
    seed: int = 0
    replan_interval_s: float = 0.0
    facts: Mapping[int, Facts] = MappingProxyType({})
    history: History = History()
    down: Collection[int] = frozenset()
    pairing: Pairing = NO_PAIRING
    round_s: float = 0.0
    withheld: Collection[int] = frozenset()
    queues: Queues | None = None
    measured: Measurements = ALL_SEEN
    resume_s: Callable[[int], float] | None = None
