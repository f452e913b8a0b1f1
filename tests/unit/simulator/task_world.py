"""The toy of Hare's specification and other small worlds in which jobs run as tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairway import JobSpec, Workload, simulate
from fairway.core.cluster import Cluster, GpuType, Node
from fairway.models.names import ProfileKey
from fairway.simulator.result import Result
from fairway.testing import Invariants

TOY = {"J1": (1.0, 2.0, 2.0), "J2": (2.0, 2.0, 3.0), "J3": (1.0, 3.0, 3.0)}
"""Seconds of a task on each of three GPUs."""


class TaskTimes:
    """A profile by the seconds that a task takes on each GPU type; `synced` is what a gang takes beyond that."""

    name = "task times"

    def __init__(self, times: Mapping[str, Sequence[float]], synced: Mapping[str, float] | None = None) -> None:
        self._times, self._synced = times, synced or {}
        self.models = tuple(times)

    def rate(self, model: str, batch_size: int | None, gpu_type: str, gpus: int, *, spread: bool = False) -> float:
        """Steps per second over all GPUs."""
        return gpus / (self._times[model][int(gpu_type[1:])] + (self._synced.get(model, 0.0) if gpus > 1 else 0.0))

    def pair_rates(self, a: ProfileKey, b: ProfileKey, gpu_type: str) -> tuple[float, float] | None:
        """No pairs."""
        return None


def gpus(*counts: int) -> Cluster:
    """A cluster of types g0, g1, …, each on one node."""
    nodes = [Node(f"node-{kind}", f"g{kind}", count) for kind, count in enumerate(counts)]
    return Cluster.of(nodes, [GpuType(f"g{kind}", 0, 0.0, 1.0) for kind in range(len(counts))], "toy")


def task_job(name: str, rounds: int, tasks: int, submitted_s: float = 0.0, **about: object) -> JobSpec:
    """A job of rounds of tasks, whose model has its name."""
    terms: dict[str, object] = {"model": name, **about}
    return JobSpec(name, submitted_s, gpus=tasks, steps=rounds * tasks, **terms)  # type: ignore[arg-type]


def toy_jobs() -> Workload:
    return Workload.of([task_job("J1", 2, 2), task_job("J2", 1, 2), task_job("J3", 1, 1)])


def run_toy(policy: str, **about: object) -> Result:
    """The toy under a policy, without switching costs unless they are given."""
    terms: dict[str, object] = {"switching": "0", "observer": Invariants(), **about}
    return simulate(
        toy_jobs(),
        cluster=gpus(1, 1, 1),
        policy=policy,
        profile=TaskTimes(TOY),
        **terms,  # type: ignore[arg-type]
    )
