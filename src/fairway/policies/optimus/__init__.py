"""Optimus (Peng et al., EuroSys 2018): elastic jobs, and each GPU where it shortens a job's remaining time most.

Every job first gets its smallest gang, in the order of submission. What is left goes, GPU by GPU, to the greatest gain.
The time left is learned online from how the loss falls and how the speed grows with the gang, or given by an oracle, as
in the comparison of Pollux (OSDI 2021). Once per interval running jobs are resized; in between, waiting jobs start on
what is free.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from fairway.core.arrays import Bools, Floats, Ints
from fairway.core.decision import Decision
from fairway.core.snapshot import Snapshot
from fairway.policies.optimus.greedy import LeftS, grow, start_smallest
from fairway.policies.optimus.notes import learned, refitted, take_notes
from fairway.policies.registry import register

_SOON_S = 1e-6


@register
@dataclass(frozen=True)
class Optimus:
    """Elastic gangs; each GPU goes where it shortens the remaining time of a job most.

    Knows: losses and speeds seen so far (online), or true remaining steps and speeds (oracle). Preempts and resizes.
    """

    estimates: Literal["online", "oracle"] = "online"
    interval_s: float = 600.0

    name: ClassVar[str] = "optimus"
    heeds: ClassVar[frozenset[str]] = frozenset({"range"})
    round_s: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.interval_s) and self.interval_s >= 1):
            raise ValueError(f"interval_s must be at least 1, not {self.interval_s:g}")

    @property
    def knows(self) -> frozenset[str]:
        """What the estimates need: the loss, or the true steps and speeds of each job."""
        return frozenset({"loss"}) if self.estimates == "online" else frozenset({"duration", "scaling"})

    def decide(self, snapshot: Snapshot) -> Decision:
        memory: Mapping[str, Any] = snapshot.memory
        notes = take_notes(snapshot, memory.get("notes", {})) if self.estimates == "online" else {}
        next_s = float(memory.get("next_s", -math.inf))
        due = snapshot.now_s >= next_s - _SOON_S
        keeps = _protected(snapshot) if due else snapshot.running
        decision, free = start_smallest(snapshot, keeps)
        if any(free):
            decision, notes = self._grown(snapshot, decision, free, keeps, notes)
        texts: dict[int, str] = {}
        if due:
            next_s = self._next_interval_s(snapshot, decision, keeps)
        elif (snapshot.held > snapshot.gpus_min).any():
            texts = dict.fromkeys((decision.gpus == 0).nonzero()[0].tolist(), self._why(decision.free(snapshot)))
        return decision._replace(
            wake_s=next_s if _may_change(snapshot, decision) else math.inf,
            memory={"next_s": next_s, "notes": notes},
            order=np.lexsort((snapshot.jobs, decision.gpus)).tolist(),
            texts=texts,
        )

    def _why(self, free: int) -> str:
        """Why jobs wait between two intervals although others have more than they need."""
        gpus = f"{free} GPU{' is' if free == 1 else 's are'} free"
        return f"{gpus}; jobs that run are resized every {self.interval_s:g} s"

    def _grown(
        self, snapshot: Snapshot, decision: Decision, free: list[int], keeps: Bools, notes: Mapping[str, Any]
    ) -> tuple[Decision, Mapping[str, Any]]:
        """Hand out what is left of each GPU type among the jobs that have GPUs now. Returns new fits, too."""
        grants, types, online = decision.gpus.copy(), decision.gpu_types, self.estimates == "online"
        elastic = (grants > 0) & ~keeps & (snapshot.gpus_max > grants)
        if online and elastic.any():
            notes = refitted(snapshot, notes, elastic.nonzero()[0])
        for kind, left in enumerate(free):
            rows = (elastic if types is None else elastic & (types == kind)).nonzero()[0]
            if left and len(rows):
                left_s, factors = learned(snapshot, notes, rows) if online else (_true_left_s(snapshot, rows), None)
                has, most = grants[rows].tolist(), snapshot.gpus_max[rows].tolist()
                grants[rows] = grow(has, most, left, left_s, factors=factors, doubling=online)
        return decision._replace(gpus=grants), notes

    def _next_interval_s(self, snapshot: Snapshot, decision: Decision, keeps: Bools) -> float:
        """One interval from now. Sooner if a protected job makes an older one wait, or could have more GPUs: then when
        its protection ends, so that no GPUs idle beside it until the interval is over."""
        waits, kept = (decision.gpus == 0).nonzero()[0], keeps.nonzero()[0]
        blocks = len(waits) > 0 and len(kept) > 0 and waits[0] < kept[-1]
        grows = decision.free(snapshot) > 0 and bool((snapshot.gpus_max > snapshot.held)[kept].any())
        soonest_s = float(snapshot.protected_until_s[kept].min()) + _SOON_S if blocks or grows else math.inf
        return min(soonest_s, snapshot.now_s + self.interval_s)


def _protected(snapshot: Snapshot) -> Bools:
    keeps = np.zeros(len(snapshot), dtype=np.bool_)
    keeps[snapshot.protected_rows] = True
    return keeps


def _may_change(snapshot: Snapshot, decision: Decision) -> bool:
    """Whether another interval can change anything: a job waits, or could be larger or smaller."""
    return bool((decision.gpus == 0).any() or (snapshot.gpus_max > snapshot.gpus_min).any())


def _true_left_s(snapshot: Snapshot, rows: Ints) -> LeftS:
    """The time left by the oracle: true remaining steps over true speeds, as far as they are known.

    Where none is known, scaling is assumed to be perfect.
    """
    steps: Floats = snapshot.oracle.steps_left[rows]
    gpu_s: Floats = snapshot.oracle.remaining_s[rows] * snapshot.gpus[rows]
    scaling = [snapshot.scaling(row) for row in rows.tolist()]
    perfect = np.array([not speeds for speeds in scaling])

    def left_s(jobs: Ints, gpus: Ints) -> Floats:
        width, nothing = gpus.shape[1], (0.0,) * gpus.shape[1]
        told = [
            scaling[job][first - 1 : first - 1 + width]
            for job, first in zip(jobs.tolist(), gpus[:, 0].tolist(), strict=True)
        ]
        speeds = np.array([some if len(some) == width else (some + nothing)[:width] for some in told])
        time_s = np.full(gpus.shape, math.inf)
        np.divide(np.broadcast_to(steps[jobs, None], gpus.shape), speeds, out=time_s, where=speeds > 0)
        return np.where(perfect[jobs, None], gpu_s[jobs, None] / gpus, time_s)

    return left_s
