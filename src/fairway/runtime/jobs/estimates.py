"""What a live job is taken to be before it has said anything: its work, its speeds, its prospects."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

from fairway.core import portable
from fairway.core.cluster import Cluster
from fairway.core.event import JobSubmitted
from fairway.core.hardware import known_gpu
from fairway.core.job import JobSpec
from fairway.core.prospect import Prospect, Stage
from fairway.runtime.jobs.records import JobRecord, Progress
from fairway.runtime.jobs.request import JobRequest

UNKNOWN_S = 3600.0
"""How long a job is taken to run of which nothing is known."""
REMEMBERED = 20
MOST_KINDS = 5000
"""How many kinds of jobs are remembered, with the latest run times of each."""
_EPOCHS = 100.0
ELASTIC_EXPONENT = 0.9
"""How the speed of a job grows with its GPUs where that was not seen."""


class RunTimes:
    """How long jobs have run that were alike: of the same user and command or name, or of the same model."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], deque[float]] = {}

    def learn(self, record: JobRecord) -> None:
        """A job has done its work."""
        for key in _keys(record.request):
            # Taken out and put in again, so that those which were not seen for long come first.
            seen = self._known.pop(key, None) or deque(maxlen=REMEMBERED)
            seen.append(record.ran_s)
            self._known[key] = seen
        while len(self._known) > MOST_KINDS:
            del self._known[next(iter(self._known))]

    def expected_s(self, request: JobRequest) -> float:
        """What is expected of a job: as its owner says, as others like it took, at most its time limit."""
        limit_s = request.limit_s or math.inf
        if request.expected_s is not None:
            return min(request.expected_s, limit_s)
        for key in _keys(request):
            known = sorted(self._known.get(key, ()))
            if known:
                return min(max(known[len(known) // 2], 1.0), limit_s)
        return min(UNKNOWN_S, limit_s)


def _keys(request: JobRequest) -> list[tuple[str, str]]:
    """What a job can be alike another one in, the closest first. The tasks of an array have one command."""
    keys = [(request.user, f"command {request.cwd} {' '.join(request.command)}")]
    keys += [(request.user, f"name {request.name}")] if request.name else []
    return [*keys, ("", f"model {request.model}")] if request.model else keys


def speeds_of(request: JobRequest, cluster: Cluster) -> tuple[float, ...]:
    """Relative speeds on the GPU types of the cluster, the fastest usable one being 1; 0 where a job may not run."""
    usable = []
    for kind, gpu in enumerate(cluster.types):
        fits = not (request.memory_bytes > gpu.memory_bytes > 0) and request.gpus <= cluster.gpus_by_type[kind]
        wanted = not request.gpu_types or any(same_type(gpu.name, name) for name in request.gpu_types)
        usable.append(gpu.speed if fits and wanted else 0.0)
    best = max(usable)
    return tuple(speed / best if best else 0.0 for speed in usable)


def gang_factor(gpus: int, known_gpus: int) -> float:
    """How many times as fast a job is taken to be on so many GPUs as on those on which its speed is known."""
    return portable.power(gpus / known_gpus, ELASTIC_EXPONENT)


def place_name(gpu_type: str, gpus: int) -> str:
    """What a place is called in the notes on measured speeds."""
    return f"{gpus} {gpu_type}"


def speed_on(seen: Mapping[str, float], relative: Mapping[str, float], gpu_type: str, gpus: int) -> float:
    """The speed of a job in a place by what was seen in the closest one: of the same type if possible, then of the
    closest number of GPUs. 0 if nothing was seen, or the job cannot run there. `relative` has the types' speeds."""
    closest, found = (True, math.inf), 0.0
    for name, speed in seen.items():
        count, _, kind = name.partition(" ")
        distance = (kind != gpu_type, max(gpus / int(count), int(count) / gpus))
        if distance < closest and relative.get(kind):
            closest = distance
            found = speed * relative[gpu_type] / relative[kind] * gang_factor(gpus, int(count))
    return found


def epochs_done(progress: Progress, request: JobRequest) -> float:
    """Epochs that a job has done, with parts of them where its steps tell; NaN if that is not known."""
    total = progress.steps or request.steps
    if total:
        return (progress.epochs or request.epochs or _EPOCHS) * progress.step / total
    return math.nan if progress.epoch is None else progress.epoch


def why_impossible(request: JobRequest, cluster: Cluster) -> str:
    """What to say of a job that no GPUs of the cluster can ever run."""
    asked = f"{request.gpus} GPU{'' if request.gpus == 1 else 's'}"
    if request.gpu_types:
        asked += f" of type {' or '.join(request.gpu_types)}"
    if request.memory_bytes:
        asked += f" with {request.memory_bytes / 2**30:g} GiB" + ("" if request.gpus == 1 else " each")
    there = ", ".join(
        f"{gpu.name} × {cluster.gpus_by_type[kind]}"
        + (f" of {gpu.memory_bytes / 2**30:.0f} GiB" * bool(gpu.memory_bytes))
        for kind, gpu in enumerate(cluster.types)
    )
    return f"no GPUs here can ever run this job: it asks for {asked}; there are {there}"


def same_type(name: str, wanted: str) -> bool:
    """Whether a GPU type is the one wanted; what follows an `@` only tells variants of one type apart."""
    base = name.partition("@")[0]
    known = known_gpu(base)
    return wanted.lower() in (name.lower(), base.lower()) or (known is not None and known_gpu(wanted) == known)


def submitted(record: JobRecord, cluster: Cluster, expected_s: float, time_s: float, restart_s: float) -> JobSubmitted:
    """The event with which the scheduler's state takes up a job. Its work is counted in seconds until it reports."""
    request = record.request
    speeds = speeds_of(request, cluster)
    spec = JobSpec(
        id=record.id,
        submitted_s=time_s,
        gpus=request.gpus,
        gpus_min=request.gpus_min,
        gpus_max=request.gpus_max,
        duration_s=expected_s,
        model=request.model,
        batch_size=request.batch_size,
        user=request.user,
        queue=request.queue,
        name=request.name,
        weight=request.weight,
        priority=request.priority,
        deadline_s=None if request.deadline_s is None else time_s + request.deadline_s,
        gpu_types=request.gpu_types,
        memory_bytes=request.memory_bytes,
        preemptible=request.preempt != "never",
    )
    scaling = tuple(gang_factor(count, request.gpus) for count in range(1, request.gpus_max + 1))
    return JobSubmitted(
        time_s,
        record.number,
        spec,
        expected_s,
        speeds,
        restart_s,
        expected_s,
        0.0,
        scaling,
        prospect=assumed(request, speeds, expected_s),
    )


def assumed(request: JobRequest, speeds: tuple[float, ...], expected_s: float) -> Prospect:
    """The prospect of a job that has told nothing: it goes on as it began, for as long as it is expected to."""
    epochs = request.epochs or _EPOCHS
    stage = Stage(request.batch_size or 0, tuple(speed * epochs / expected_s for speed in speeds))
    return Prospect(epochs, (stage,))


def announced(progress: Progress, epochs: float | None, part_per_s: float, relative: tuple[float, ...]) -> Prospect:
    """The prospect of a job that reports: its announced batch sizes in order, each as fast as it was seen to train.

    `part_per_s` is what part of its whole work it makes per second now, `relative` its speed by GPU type against that.
    A batch size that was not seen yet is taken to be as fast as the present one.
    """
    whole = progress.epochs or epochs or _EPOCHS
    present = progress.batch_size or 0
    seen = progress.epoch_speeds
    seen[str(present)] = part_per_s * whole
    stages = []
    for size in progress.batch_sizes or [present]:
        speed = seen.get(str(size), part_per_s * whole)
        stages.append(Stage(size, tuple(speed * one for one in relative)))
    return Prospect(whole, tuple(stages))
