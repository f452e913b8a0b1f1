"""How fast a live job is expected to be on each GPU type, alone and on the gang that it asks for.

Where it ran itself, its own speed counts. Where it did not, the speed of other jobs of its kind counts (the same model
or name and the same batch size per GPU), as much higher or lower as its own speed is where both ran. Where neither ran,
it follows from the closest place that was measured, by the relative speeds of the catalogue.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairway.core.state import State
from fairway.models.measured_profile import MeasuredProfile
from fairway.models.names import ProfileKey
from fairway.runtime.jobs.estimates import place_name, speed_on, speeds_of
from fairway.runtime.jobs.records import JobRecord

NEWS = 0.05
"""A speed has to differ by this fraction from the one that was told before it is told again."""


class TypeSpeeds:
    """What is expected of jobs on the GPU types of a cluster, given the measurements of all jobs."""

    def __init__(self, state: State, profile: MeasuredProfile) -> None:
        self._state = state
        self._profile = profile
        self._told: dict[tuple[str, ProfileKey], float] = {}

    def seen(self, record: JobRecord, key: ProfileKey) -> dict[str, float]:
        """Steps per second by place: those of the job, and in other places those of its kind `key`."""
        own, kind = record.progress.speeds, self._of_kind(key)
        scale = next((speed / kind[place] for place, speed in own.items() if place in kind), 1.0)
        return {**own, **{place: scale * speed for place, speed in kind.items() if place not in own}}

    def relative(self, record: JobRecord, key: ProfileKey) -> tuple[float, ...]:
        """Relative speeds on all types. The fastest usable type has 1, a type that it may not use has 0."""
        assumed = speeds_of(record.request, self._state.cluster)
        seen = self.seen(record, key) if len(assumed) > 1 else {}
        speeds = tuple(self.on(seen, assumed, kind, record.request.gpus) for kind in range(len(assumed)))
        best = max(speeds)
        return tuple(speed / best for speed in speeds) if best > 0 else assumed

    def on(self, seen: Mapping[str, float], assumed: tuple[float, ...], kind: int, gpus: int) -> float:
        """Steps per second on so many GPUs of a type, given the speeds that were `seen`; 0 if there are none."""
        names = {gpu.name: speed for gpu, speed in zip(self._state.cluster.types, assumed, strict=True)}
        return speed_on(seen, names, self._state.cluster.types[kind].name, gpus)

    def is_news(self, gpu_type: str, key: ProfileKey) -> bool:
        """Whether a kind of job was measured on a type for the first time, or with another result. It is told now."""
        if len(self._state.cluster.types) == 1 or not key.model:
            return False
        speed = self._of_kind(key).get(place_name(gpu_type, key.gpus), 0.0)
        if not differs(speed, self._told.get((gpu_type, key), 0.0)):
            return False
        self._told[gpu_type, key] = speed
        return True

    def _of_kind(self, key: ProfileKey) -> dict[str, float]:
        """The speeds of a kind by place. If the batch size is not known yet, the one that was measured last counts."""
        found: dict[str, float] = {}
        for gpu_type, other, rate in self._profile.of_model(key.model) if key.model else ():
            if key.batch_size in (None, other.batch_size):
                found[place_name(gpu_type, other.gpus)] = rate / other.gpus
        return found


def differs(speed: float, told: float) -> bool:
    """Whether a speed is news to somebody who was told another one."""
    return abs(speed - told) > NEWS * told
