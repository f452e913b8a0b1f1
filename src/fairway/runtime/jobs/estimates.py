"""What is assumed of a live job before it is seen: its work, its speeds, its prospects, the cost of a restart."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import median

from fairway.core import portable
from fairway.core.cluster import Cluster
from fairway.core.errors import InputError
from fairway.core.event import Event, JobSubmitted, RegimeEntered
from fairway.core.hardware import known_gpu
from fairway.core.job import JobSpec
from fairway.core.prospect import Prospect, Stage
from fairway.runtime.jobs.records import Attempt, JobRecord, Progress
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.jobs.run_times import Kind, kinds_of
from fairway.runtime.processes.host_size import HostSize

_EPOCHS = 100.0
ELASTIC_EXPONENT = 0.9
"""How the speed of a job is assumed to grow with its GPUs where it was not measured: to this power."""


def speeds_of(request: JobRequest, cluster: Cluster) -> tuple[float, ...]:
    """Relative speeds on the GPU types of the cluster. The fastest usable type has 1, a type it may not use has 0."""
    usable = []
    for kind, gpu in enumerate(cluster.types):
        fits = not (request.memory_bytes > gpu.memory_bytes > 0) and request.gpus <= cluster.gpus_by_type[kind]
        wanted = not request.gpu_types or any(same_type(gpu.name, name) for name in request.gpu_types)
        usable.append(gpu.speed if fits and wanted else 0.0)
    best = max(usable)
    return tuple(speed / best if best else 0.0 for speed in usable)


def grown_speeds(known: Sequence[float], assumed: tuple[float, ...], *, in_steps: bool) -> tuple[float, ...]:
    """The speeds of a job on a cluster that has got more nodes, from those that were known on the smaller one.

    `assumed` are what `speeds_of` says of the larger cluster. Where a job could run already, its speed stays; elsewhere
    it follows from that. Speeds that are not `in_steps` per second are relative: the highest is 1.
    """
    if not any(assumed):
        return (1.0,) * len(assumed)
    both = [kind for kind, speed in enumerate(known) if speed and assumed[kind]]
    if not both:
        return assumed
    scale = known[both[0]] / assumed[both[0]]
    speeds = [known[kind] if kind in both else scale * speed for kind, speed in enumerate(assumed)]
    best = 1.0 if in_steps else max(speeds)
    return tuple(speed / best for speed in speeds)


def on_cluster(event: JobSubmitted | RegimeEntered, request: JobRequest, cluster: Cluster) -> Event:
    """An event of a log whose cluster may have got more nodes since, as it would be on the present one."""
    known = event.speeds
    if len(known) == len(cluster.types) and all(known):
        return event
    assumed = speeds_of(request, cluster)
    if len(known) == len(assumed) and not any(now and not before for now, before in zip(assumed, known, strict=True)):
        # It may use no more types than before.
        return event
    # A job that reports its steps has a scaling.
    in_steps = isinstance(event, RegimeEntered) and bool(event.scaling)
    speeds = grown_speeds(known, assumed, in_steps=in_steps)
    return event._replace(speeds=speeds, prospect=event.prospect and event.prospect.at(speeds, known))


@lru_cache(maxsize=4096)
def gang_factor(gpus: int, known_gpus: int) -> float:
    """How many times as fast a job is assumed to be on `gpus` GPUs as on the `known_gpus` where its speed is known."""
    return portable.power(gpus / known_gpus, ELASTIC_EXPONENT)


def place_name(gpu_type: str, gpus: int) -> str:
    """The name of a place in the notes on measured speeds."""
    return f"{gpus} {gpu_type}"


def speed_on(seen: Mapping[str, float], relative: Mapping[str, float], gpu_type: str, gpus: int) -> float:
    """The speed of a job in a place, from the closest place where it was measured: of the same type if possible, then
    of the closest number of GPUs. 0 if nothing was measured, or the job cannot run there. `relative` has the speeds of
    the types."""
    closest, found = (True, math.inf), 0.0
    for name, speed in seen.items():
        count, _, kind = name.partition(" ")
        distance = (kind != gpu_type, max(gpus / int(count), int(count) / gpus))
        if distance < closest and relative.get(kind):
            closest = distance
            found = speed * relative[gpu_type] / relative[kind] * gang_factor(gpus, int(count))
    return found


def epochs_done(progress: Progress, request: JobRequest) -> float:
    """Epochs that a job has done, with fractions where its steps give them; NaN if that is not known."""
    total = progress.steps or request.steps
    if total:
        return (progress.epochs or request.epochs or _EPOCHS) * progress.step / total
    return math.nan if progress.epoch is None else progress.epoch


def why_impossible(request: JobRequest, cluster: Cluster) -> str:
    """The message about a job that no GPUs of the cluster can ever run."""
    asked = f"{request.gpus_text} GPU{'' if request.gpus == 1 else 's'}"
    if request.gpu_types:
        asked += f" of type {' or '.join(request.gpu_types)}"
    if request.memory_bytes:
        asked += f" with {request.memory_bytes / 2**30:g} GiB" + ("" if request.gpus == 1 else " each")
    there = ", ".join(
        f"{gpu.name} × {cluster.gpus_by_type[kind]}"
        + (f" of {gpu.memory_bytes / 2**30:.0f} GiB" * bool(gpu.memory_bytes))
        for kind, gpu in enumerate(cluster.types)
    )
    anything = any(speeds_of(replace(request, gpu_types=()), cluster)) if request.gpu_types else False
    hint = ". `--type any` takes GPUs of any type" if anything else ""
    return f"no GPUs here can ever run this job: it asks for {asked}; there are {there}{hint}"


def refuse_too_large(request: JobRequest, largest: HostSize | None) -> None:
    """Raise `InputError` if a job asks for more CPUs or memory than there are. `largest` is the largest machine.

    The CPUs of a gang are divided among its machines; each of them may use all of the memory that it asks for.
    """
    if largest is None:
        return
    machines = min(largest.machines, request.gpus)
    there = f"{largest.cpus} CPUs and {round(largest.memory_bytes / 2**30, 1):g} GiB of memory"
    over = [
        *([f"{request.cpus:g} CPUs"] if request.cpus > largest.cpus * machines else []),
        *(
            [f"{round(request.host_memory_bytes / 2**30, 1):g} GiB"]
            if request.host_memory_bytes > largest.memory_bytes
            else []
        ),
    ]
    if over:
        which = "this machine has" if largest.machines == 1 else "the largest machine has"
        raise InputError(f"no machine here can ever run this job: it asks for {' and '.join(over)}; {which} {there}")


def same_type(name: str, wanted: str) -> bool:
    """Whether a GPU type is the one wanted. What follows an `@` only distinguishes variants of one type."""
    base = name.partition("@")[0]
    known = known_gpu(base)
    return wanted.lower() in (name.lower(), base.lower()) or (known is not None and known_gpu(wanted) == known)


def spec_of(record: JobRecord, submitted_s: float, duration_s: float) -> JobSpec:
    """What the owner of a job asked for, as policies and traces have it."""
    request = record.request
    return JobSpec(
        id=record.id,
        submitted_s=submitted_s,
        gpus=request.gpus,
        gpus_min=request.gpus_min,
        gpus_max=request.gpus_max,
        duration_s=duration_s,
        model=request.model,
        batch_size=request.batch_size,
        user=request.user,
        queue=request.queue,
        name=request.name,
        weight=request.weight,
        priority=request.priority,
        deadline_s=None if request.deadline_s is None else submitted_s + request.deadline_s,
        gpu_types=request.gpu_types,
        memory_bytes=request.memory_bytes,
        gpu_share=request.gpu_share,
        preemptible=request.preempt != "never",
    )


def submitted(
    record: JobRecord, speeds: tuple[float, ...], expected_s: float, time_s: float, restart_s: float
) -> JobSubmitted:
    """The event that adds a job to the state. Its work is counted in seconds until it reports steps.

    `speeds` are relative, by GPU type.
    """
    request, spec = record.request, spec_of(record, time_s, expected_s)
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
    """The prospect of a job that has reported nothing: it goes on as it began, for its expected time."""
    epochs = request.epochs or _EPOCHS
    stage = Stage(request.batch_size or 0, tuple(speed * epochs / expected_s for speed in speeds))
    return Prospect(epochs, (stage,))


def announced(progress: Progress, epochs: float | None, part_per_s: float, relative: tuple[float, ...]) -> Prospect:
    """The prospect of a job that reports: its announced batch sizes in order, each at its measured speed.

    `part_per_s` is the part of its whole work that it does per second now. `relative` is its speed by GPU type against
    that. A batch size that was not measured yet is assumed to be as fast as the present one.
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


REMEMBERED = 20
"""How many of the latest stops and starts of similar jobs are remembered."""
RESTART_S = 10.0
"""What a restart is taken to cost of which nothing is known."""
SUSPENDED_S = 0.1
"""The cost for a job that is suspended in place."""
_TERMINATED = 143

_Seen = dict[Kind, deque[float]]


class RestartCosts:
    """Medians over the stops and starts of a job itself, else of similar jobs, else of all jobs.

    A start of which nothing is known costs `unknown_s`.
    """

    def __init__(self, unknown_s: float = RESTART_S) -> None:
        self.unknown_s = unknown_s
        self._stops: _Seen = {}
        self._starts: _Seen = {}
        self._unseen: set[tuple[int, int]] = set()

    def expected_s(self, request: JobRequest, attempts: Sequence[Attempt] = ()) -> float:
        """The expected cost of a stop and restart of a job, given its attempts so far."""
        if request.preempt == "suspend":
            return SUSPENDED_S
        stop_s = _closest(_known(one.stop_s for one in attempts), self._stops, request)
        start_s = _closest(_known(one.start_s for one in attempts), self._starts, request)
        return (stop_s or 0.0) + (self.unknown_s if start_s is None else start_s)

    def ended(self, record: JobRecord, stop_s: float | None) -> None:
        """An attempt is over, `stop_s` seconds after it was asked to stop; None if it was not asked."""
        attempt = record.attempt
        if attempt is None or attempt.cause != "request" or stop_s is None:
            return
        # A job that should save but was ended by the signal itself was not yet able to save: its stop was too short.
        if record.request.preempt != "checkpoint" or _TERMINATED not in attempt.codes:
            attempt.stop_s = stop_s
            _learn(self._stops, record.request, stop_s)

    def reported(self, record: JobRecord) -> None:
        """A job has reported. The first report of an attempt tells how long its start took."""
        attempt, said_s = record.attempt, record.progress.reported_s
        if attempt is None or said_s is None or attempt.start_s is not None or _mark(record) in self._unseen:
            return
        if said_s >= attempt.launched_s:
            self._started(record, attempt, said_s - attempt.launched_s)

    def read_off(self, record: JobRecord, ran_s: float, trained_s: float) -> None:
        """The log of an attempt that has run for `ran_s` says for the first time how long it has trained.

        The rest was its start. One that says more than can be has counted on from an earlier attempt.
        """
        attempt = record.attempt
        if attempt is not None and attempt.start_s is None and 0 <= trained_s <= ran_s:
            self._started(record, attempt, ran_s - trained_s)

    def _started(self, record: JobRecord, attempt: Attempt, start_s: float) -> None:
        attempt.start_s = start_s
        _learn(self._starts, record.request, start_s)

    def remember(self, record: JobRecord) -> None:
        """Learn from a job of an earlier scheduler."""
        for attempt in record.attempts:
            if attempt.stop_s is not None:
                _learn(self._stops, record.request, attempt.stop_s)
            if attempt.start_s is not None:
                _learn(self._starts, record.request, attempt.start_s)
        last, said_s = record.attempt, record.progress.reported_s
        if last is not None and last.start_s is None and said_s is not None and said_s >= last.launched_s:
            # The earlier scheduler read its first report without measuring the start. The next report is not the first.
            self._unseen.add(_mark(record))


def _mark(record: JobRecord) -> tuple[int, int]:
    return record.number, len(record.attempts)


def _known(seen_s: Iterable[float | None]) -> list[float]:
    return [one_s for one_s in seen_s if one_s is not None][-REMEMBERED:]


def _learn(known: _Seen, request: JobRequest, seconds: float) -> None:
    for key in _cost_keys(request):
        known.setdefault(key, deque(maxlen=REMEMBERED)).append(seconds)


def _closest(own_s: Sequence[float], known: _Seen, request: JobRequest) -> float | None:
    """The median of a job's own figures, else of the most similar jobs that have some."""
    seen = [own_s, *(known.get(key, ()) for key in _cost_keys(request))]
    return next((median(one_s) for one_s in seen if one_s), None)


def _cost_keys(request: JobRequest) -> list[Kind]:
    """What makes jobs similar, the closest first."""
    by_name = [(request.user, f"name {request.name}")] if request.name else []
    by_model = [("", f"model {request.model}")] if request.model else []
    return [*by_name, kinds_of(request)[0], *by_model, ("", "")]
