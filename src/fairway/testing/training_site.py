"""A simulated site whose jobs train: how fast they are depends on the GPU type, and they report their steps.

A job whose behaviour has `speeds` makes one step per second of its work, and as many more where it is faster. It
reports every `every_s` seconds, and when it has saved its state.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fairway.core.cluster import Cluster
from fairway.runtime.processes.ranks import CHECKPOINTED
from fairway.runtime.processes.site import Report
from fairway.testing.simulated_site import SimulatedAttempt, SimulatedSite, SimulatedTime

_TICKS_PER_S = 1000
"""How far the reports of a job were read is the instant of the last one, in these."""


class TrainingSite(SimulatedSite):
    """A simulated site with the GPUs of a cluster."""

    def __init__(
        self, time: SimulatedTime, cluster: Cluster, every_s: float = 1.0, point: Callable[[str], None] | None = None
    ) -> None:
        super().__init__(time, point or (lambda name: None))
        self._kinds = [node.gpu_type for node in cluster.nodes for _ in range(node.gpus)]
        self.every_s = every_s
        self.latest: dict[str, SimulatedAttempt] = {}

    def speed_of(self, attempt: SimulatedAttempt) -> float:
        """How fast an attempt is on its GPUs. It is the latest one of its job from now on."""
        self.latest[attempt.job] = attempt
        return attempt.behaviour.speeds.get(self.type_of(attempt), 1.0)

    def type_of(self, attempt: SimulatedAttempt) -> str:
        """The GPU type that an attempt is on."""
        return self._kinds[attempt.gpus[0]]

    def reports(self, folder: Path, read_bytes: int, *, final: bool = False) -> Report:
        """What a job says about its progress now, if it is time for that."""
        attempt = self.latest.get(folder.name)
        if attempt is None or not attempt.behaviour.speeds:
            return super().reports(folder, read_bytes, final=final)
        outcome, now = self.outcomes.get(attempt.directory), int(_TICKS_PER_S * self.time.monotonic())
        saved = outcome is not None and CHECKPOINTED in outcome.codes
        due = outcome is None and not attempt.paused and now - read_bytes >= _TICKS_PER_S * self.every_s
        if not due and not (saved and now > read_bytes):
            return Report([], read_bytes)
        line = {"step": attempt.computed_s(), "steps": attempt.behaviour.work_s}
        said = {"time": self.time.time(), "uptime": self.time.uptime(), **({"checkpoint": "/saved"} if saved else {})}
        return Report([{**line, **said}], now)
