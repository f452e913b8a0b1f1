"""Tiresias (Gu et al., NSDI'19): short jobs first without known run times; service is counted as GPUs × time.

A job starts in the first queue and moves to the next when its attained service passes a threshold; the first queues are
served first. Inside a queue running jobs stay and the others follow in the order of their first start, so equals never
take turns (2D-LAS). If the distribution of service is known or has been learned, jobs go by their chance to end soon
per unit of service instead (2D-Gittins). A job that has waited too long compared with what it has had is promoted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from fairway.core.admission import admit
from fairway.core.arrays import Bools, Floats, Ints
from fairway.core.decision import Decision
from fairway.core.order import Order
from fairway.core.snapshot import Snapshot
from fairway.policies import service_levels
from fairway.policies.registry import check_native, register
from fairway.policies.service_levels import QUEUE
from fairway.policies.tiresias.indices import Indices
from fairway.policies.tiresias.promotion import Promotions

TICK_S = 300.0
"""A fall of an index takes effect at the next multiple of this, together with all others by then."""


@register
@dataclass(frozen=True)
class Tiresias:
    """Least attained service first, in few queues; optionally by Gittins index. `promote` bounds every wait.

    Knows: GPU-seconds attained so far, gang sizes, first starts; with gittins, what ended jobs took. Preempts.

    `queues` are the thresholds, in GPU-seconds or (metric=time) seconds. `gittins` orders jobs inside the queues
    (within) or alone (exact), from the samples in `service` (4/8/12 or @FILE) or, without any, from the jobs that have
    ended. `promote` K > 0: a job that has waited K times as long as it ran, or as its first turn lasts, goes first.
    """

    metric: Literal["gpu_time", "time"] = "gpu_time"
    queues: tuple[float, ...] = (3250.0, 7200.0)
    gittins: Literal["off", "within", "exact"] = "off"
    promote: float = 0.0
    within: Literal["running", "first_start", "entry", "published"] = "running"
    service: tuple[float, ...] = ()

    name: ClassVar[str] = "tiresias"
    knows: ClassVar[frozenset[str]] = frozenset()
    heeds: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0
    published_if: ClassVar[Mapping[str, tuple[Any, ...]]] = {"within": ("entry", "published")}

    def __post_init__(self) -> None:
        check_native(self)
        if any(not limit > 0 for limit in self.queues) or list(self.queues) != sorted(set(self.queues)):
            raise ValueError("queues must be positive and rising")
        if not self.promote >= 0:
            raise ValueError(f"promote must be at least 0, not {self.promote:g}")
        if any(not sample > 0 for sample in self.service):
            raise ValueError("samples of service must be positive")

    @cached_property
    def _limits(self) -> Floats:
        return np.array(self.queues)

    @cached_property
    def _given(self) -> Floats:
        return np.array(self.service)

    @property
    def serves_in(self) -> Order | None:
        """By queue, unless promotions or an index say otherwise."""
        if self.promote or self.gittins != "off" or self.within in self.published_if["within"]:
            return None
        reached = self._limits * service_levels.REACHED
        return Order(
            "queue of the least service first",
            lambda snapshot: reached.searchsorted(self._service(snapshot), side="right"),
            preempts=True,
        )

    def decide(self, snapshot: Snapshot) -> Decision:
        promotions = self._promotions(snapshot) if self.promote else None
        indices = self._indices(snapshot) if self.gittins != "off" else None
        decision = admit(snapshot, lambda: self._key(snapshot, promotions, indices), preempt=True)
        if promotions is not None:
            decision = promotions.held_back(snapshot, decision, self._first(snapshot, promotions))
        if np.count_nonzero(decision.reasons):
            decision = decision.waking(self._next_s(snapshot, decision, promotions, indices))
        if promotions is not None or indices is not None:
            decision = decision.remembering(self._memory(snapshot, promotions, indices))
        return decision

    def _service(self, snapshot: Snapshot) -> Floats:
        return snapshot.attained_gpu_s if self.metric == "gpu_time" else snapshot.attained_s

    def _age(self, snapshot: Snapshot, promotions: Promotions | None) -> Floats:
        """Service since the last promotion."""
        service = self._service(snapshot)
        return service if promotions is None else service - promotions.base_service

    def _key(self, snapshot: Snapshot, promotions: Promotions | None, indices: Indices | None) -> Floats:
        """Queue (and index) first, then first start, then submission; promoted jobs before all."""
        age, started_s = self._age(snapshot, promotions), snapshot.first_start_s
        held = snapshot.held if self.within == "running" else np.ones(len(snapshot), dtype=np.int64)
        if indices is None:
            key = service_levels.queue_keys(age, self._limits, started_s, held)
        else:
            limits = self._limits if self.gittins == "within" else self._limits[:0]
            key = service_levels.index_keys(age, limits, indices.table, started_s, held)
        if promotions is not None:
            first = self._first(snapshot, promotions)
            key[first] = promotions.since_s[first] - QUEUE
        return key

    def _next_s(
        self, snapshot: Snapshot, decision: Decision, promotions: Promotions | None, indices: Indices | None
    ) -> float:
        """The next demotion, the next clear fall of an index, or the next promotion."""
        age, now_s, next_s = self._age(snapshot, promotions), snapshot.now_s, math.inf
        speed = decision.gpus if self.metric == "gpu_time" else np.minimum(decision.gpus, 1)
        if self.gittins != "exact" or promotions is not None:
            next_s = now_s + max(service_levels.next_limit(age, self._limits, speed), 1e-6)
        if indices is not None:
            fall_s = now_s + service_levels.next_fall(age, indices.table, speed)
            if fall_s < math.inf:
                next_s = min(next_s, _next_tick_s(now_s, fall_s))
        if promotions is not None:
            service, turn = self._service(snapshot), self._turn(snapshot)
            due_s = promotions.next_s(snapshot, service, self.promote, *turn)
            due_s = min(due_s, now_s + promotions.turn_ends_s(service, turn[1], speed))
            next_s = min(next_s, max(due_s, now_s + 1e-6))
        return next_s

    def _promotions(self, snapshot: Snapshot) -> Promotions:
        known = Promotions.of(snapshot)
        return known.updated(snapshot, self._service(snapshot), self.promote, *self._turn(snapshot))

    def _first(self, snapshot: Snapshot, promotions: Promotions) -> Bools:
        """Jobs that have been promoted and have not had their turn yet."""
        return promotions.first(self._service(snapshot), self._turn(snapshot)[1])

    def _turn(self, snapshot: Snapshot) -> tuple[Floats, Floats]:
        """How long each job's first turn lasts, and how much service that is; never less than two of its restarts."""
        gang: Ints | int = snapshot.gpus if self.metric == "gpu_time" else 1
        turn_s: Floats = np.maximum(self.queues[0] / gang, 2 * snapshot.restart_s)
        return turn_s, turn_s * gang

    def _indices(self, snapshot: Snapshot) -> Indices:
        quantum = self.queues[0] if self.gittins == "within" else None
        return Indices.of(snapshot, self._given, self.metric, quantum)

    def _memory(self, snapshot: Snapshot, promotions: Promotions | None, indices: Indices | None) -> Mapping[str, Any]:
        memory: dict[str, Any] = {}
        if promotions is not None:
            memory["promoted"] = promotions.memory(snapshot)
        if indices is not None:
            memory["index"] = indices.memory()
        return memory


def _next_tick_s(now_s: float, time_s: float) -> float:
    """The first whole tick at or after an instant, and after now."""
    return max(math.ceil(time_s / TICK_S - 1e-9), math.floor(now_s / TICK_S + 1e-9) + 1) * TICK_S
