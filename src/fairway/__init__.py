"""Fairway: one GPU scheduler for deep-learning training, simulated and real.

The names below are the public Python API; everything else may move. They load on first use, so `import fairway` is
cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fairway.core.version import VERSION

if TYPE_CHECKING:
    from fairway.client import Client
    from fairway.core.cluster import Cluster
    from fairway.core.errors import FairwayError, InputError, PolicyError
    from fairway.core.job import JobSpec, Workload
    from fairway.policies import make_policy, register
    from fairway.simulator.faults import Faults
    from fairway.simulator.result import Result
    from fairway.simulator.rules import RULES, Rules
    from fairway.simulator.run import simulate
    from fairway.traces import read_cluster, read_trace, write_trace

__version__ = VERSION

_HOMES = {
    "Client": "client",
    "Cluster": "core.cluster",
    "FairwayError": "core.errors",
    "InputError": "core.errors",
    "PolicyError": "core.errors",
    "JobSpec": "core.job",
    "Workload": "core.job",
    "make_policy": "policies",
    "register": "policies",
    "Faults": "simulator.faults",
    "Result": "simulator.result",
    "RULES": "simulator.rules",
    "Rules": "simulator.rules",
    "simulate": "simulator.run",
    "read_cluster": "traces",
    "read_trace": "traces",
    "write_trace": "traces",
}

__all__ = [
    "RULES",
    "Client",
    "Cluster",
    "FairwayError",
    "Faults",
    "InputError",
    "JobSpec",
    "PolicyError",
    "Result",
    "Rules",
    "Workload",
    "__version__",
    "make_policy",
    "read_cluster",
    "read_trace",
    "register",
    "simulate",
    "write_trace",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fairway' has no attribute {name!r}")
    return getattr(import_module(f"fairway.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
