"""Fairway's published testing kit: builders, `check_policy`, invariants and an engine that misbehaves on demand.

One line tests a policy of your own: `check_policy("mine")`. Hypothesis strategies are in `fairway.testing.strategies`
and need Hypothesis; nothing else here needs more than Fairway itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairway.testing.builders import (
        adaptive_workload,
        cluster,
        in_shares,
        job,
        random_cluster,
        random_snapshot,
        random_workload,
        snapshot_of,
        state_of,
    )
    from fairway.testing.contract import check_policy
    from fairway.testing.fake_engine import FakeEngine, Troubles
    from fairway.testing.harness import Run, run_policy
    from fairway.testing.invariants import InvariantError, Invariants, state_digest

_HOMES = {
    "adaptive_workload": "builders",
    "cluster": "builders",
    "in_shares": "builders",
    "job": "builders",
    "random_cluster": "builders",
    "random_snapshot": "builders",
    "random_workload": "builders",
    "snapshot_of": "builders",
    "state_of": "builders",
    "check_policy": "contract",
    "FakeEngine": "fake_engine",
    "Troubles": "fake_engine",
    "Run": "harness",
    "run_policy": "harness",
    "InvariantError": "invariants",
    "Invariants": "invariants",
    "state_digest": "invariants",
}

__all__ = [
    "FakeEngine",
    "InvariantError",
    "Invariants",
    "Run",
    "Troubles",
    "adaptive_workload",
    "check_policy",
    "cluster",
    "in_shares",
    "job",
    "random_cluster",
    "random_snapshot",
    "random_workload",
    "run_policy",
    "snapshot_of",
    "state_digest",
    "state_of",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fairway.testing' has no attribute {name!r}")
    return getattr(import_module(f"fairway.testing.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
