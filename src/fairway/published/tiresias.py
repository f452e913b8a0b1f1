"""Tiresias with queues as lists, as in public simulators. The order inside a queue is the order of entering it.

`entry` is the Tiresias of the Pollux artifact (OSDI'21): new and demoted jobs join the tail of a queue and keep their
place. `published` is the simulator of Tiresias' own authors. After each pass, waiting jobs step behind running ones. A
job sinks at most one queue at a time. The next demotion is looked for (threshold - run time) / GPUs seconds later,
which is too late for gangs: the run time is not multiplied by the GPUs. Both exist to repeat published figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from fairway.core.admission import admit
from fairway.core.arrays import Floats, Ints
from fairway.core.decision import Decision
from fairway.core.snapshot import Snapshot
from fairway.policies.service_levels import REACHED
from fairway.policies.tiresias import Tiresias


@dataclass(frozen=True)
class ListedTiresias(Tiresias):
    """Tiresias with its queues as lists."""

    published_if: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.promote or self.gittins != "off":
            raise ValueError(f"the lists of within={self.within} know neither promote nor gittins; add within=running")

    def decide(self, snapshot: Snapshot) -> Decision:
        """Serve the queues in the order of their lists."""
        return decide(snapshot, self._limits, self.metric, published=self.within == "published")


def decide(snapshot: Snapshot, limits: Floats, metric: Literal["gpu_time", "time"], *, published: bool) -> Decision:
    """Serve the queues in the order of their lists."""
    queue, place = _remembered(snapshot)
    service = snapshot.attained_gpu_s if metric == "gpu_time" else snapshot.attained_s
    sinks = (queue < len(limits)) & (service >= np.append(limits, np.inf)[queue] * REACHED)
    if published:
        sinks &= snapshot.held > 0
    queue = queue + sinks
    place[sinks] = place.max(initial=0) + 1 + np.arange(np.count_nonzero(sinks))
    order = np.lexsort((place, queue))
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    decision = admit(snapshot, rank, preempt=True)
    if published:
        place = np.empty_like(order)
        place[np.lexsort((rank, decision.gpus == 0, queue))] = np.arange(len(order))
        decision = decision._replace(wake_s=_next_look_s(snapshot, decision, queue, limits, metric))
    else:
        next_s = _next_demotion_s(snapshot, decision, queue, service, limits, metric)
        decision = decision._replace(order=order.tolist()).waking(next_s)
    return decision.remembering({"jobs": snapshot.jobs.copy(), "queue": queue, "place": place})


def _remembered(snapshot: Snapshot) -> tuple[Ints, Ints]:
    """Queue and place of each row. New jobs are at the tail of the first queue."""
    queue, place = snapshot.recall("queue", 0), snapshot.recall("place", -1)
    new = place < 0
    place[new] = place.max(initial=0) + 1 + np.arange(np.count_nonzero(new))
    return queue, place


def _next_look_s(snapshot: Snapshot, decision: Decision, queue: Ints, limits: Floats, metric: str) -> float:
    """When the published code looks for the next demotion."""
    rows = ((decision.gpus > 0) & (queue < len(limits))).nonzero()[0]
    ahead = limits[queue[rows]] - snapshot.attained_s[rows]
    if metric == "gpu_time":
        ahead = ahead // decision.gpus[rows]
    return snapshot.now_s + max(float(np.min(ahead, initial=np.inf)), 1.0)


def _next_demotion_s(
    snapshot: Snapshot, decision: Decision, queue: Ints, service: Floats, limits: Floats, metric: str
) -> float:
    rows = ((decision.gpus > 0) & (queue < len(limits))).nonzero()[0]
    speed = decision.gpus[rows] if metric == "gpu_time" else np.ones(len(rows))
    ahead = (limits[queue[rows]] - service[rows]) / speed
    return snapshot.now_s + max(float(np.min(ahead, initial=np.inf)), 1e-6)
