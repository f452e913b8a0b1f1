"""Gandiva (Xiao et al., OSDI'18): jobs take turns on GPUs, and what measurably helps is kept.

Training repeats near-identical mini-batches, so a job can be suspended between two of them at little cost and its speed
can be measured at any time. So every job runs soon, in turns of about a minute if there are more jobs than GPUs.
Packing, moves and growth are tried, measured, and undone if they do not pay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from fairway.core.decision import Decision, nothing_granted
from fairway.core.snapshot import Snapshot
from fairway.policies.gandiva import improving, introspection, slicing
from fairway.policies.gandiva.scene import GandivaScene, answer
from fairway.policies.registry import register


@register
@dataclass(frozen=True)
class Gandiva:
    """Turns of a minute on over-subscribed GPUs; packing, migration and growth are tried, measured, kept or undone.

    Knows: gang sizes, waiting times, memory, the work rates that jobs are seen to have. Preempts.

    `pack` is how many jobs may share a GPU (1: none). A change is judged after `trial_s`, must gain more than
    `hysteresis`, and is not tried again within `cooldown_s`. If fresh starts have taken a job's turn `patience` times,
    its home is kept clear. With `overhead` above 0, a turn lasts so long that the switch at its end takes at most this
    part of it.
    """

    quantum_s: float = 60.0
    pack: int = 2
    trial_s: float = 60.0
    cooldown_s: float = 600.0
    hysteresis: float = 0.05
    migrate: bool = True
    grow: bool = True
    patience: int = 5
    overhead: float = 0.0

    name: ClassVar[str] = "gandiva"
    knows: ClassVar[frozenset[str]] = frozenset()
    heeds: ClassVar[frozenset[str]] = frozenset({"range"})
    round_s: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.quantum_s) and self.quantum_s >= 1):
            raise ValueError(f"quantum_s must be at least 1, not {self.quantum_s:g}")
        if not 1 <= self.pack <= 8:
            raise ValueError(f"pack must be from 1 to 8, not {self.pack}")
        if self.patience < 1:
            raise ValueError(f"patience must be at least 1, not {self.patience}")
        for knob in ("trial_s", "cooldown_s", "hysteresis", "overhead"):
            if not (math.isfinite(getattr(self, knob)) and getattr(self, knob) >= 0):
                raise ValueError(f"{knob} must not be negative")

    def decide(self, snapshot: Snapshot) -> Decision:
        if not len(snapshot):
            return nothing_granted(0)
        scene = GandivaScene(snapshot, self)
        introspection.observe(scene)
        parted = introspection.judge_packs(scene) if scene.turn else []
        introspection.judge_moves(scene)
        introspection.judge_growth(scene)
        slicing.keep_running(scene, parted)
        slicing.fill(scene)
        introspection.join(scene)
        if scene.turn:
            self._end_of_quantum(scene)
        improving.look_ahead(scene)
        return answer(scene)

    def _end_of_quantum(self, scene: GandivaScene) -> None:
        """Waiting units take their turn; if none waits, the idle GPUs are put to use."""
        if scene.waiting:
            slicing.rotate(scene)
            slicing.fill(scene)
            introspection.join(scene)
        if scene.waiting:
            slicing.balance(scene)
            return
        improving.take_apart(scene)
        if self.migrate:
            improving.revert_moves(scene)
            improving.bring_together(scene)
            improving.use_faster_gpus(scene)
        if self.grow:
            improving.grow(scene)
