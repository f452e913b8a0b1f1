"""Jobs, clusters and snapshots in one line each, by hand or by seed.

Snapshots are built by sending events to a real `State`, so a test sees what a policy would see. Random ones are full of
what breaks schedulers: odd gangs, thirds of seconds, several GPU types, elastic ranges, weights, deadlines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fairway.core.action import Launch, Suspend
from fairway.core.cluster import Cluster
from fairway.core.event import JobStarted, JobSubmitted, Woken
from fairway.core.job import JobSpec, Regime, Workload
from fairway.core.occupancy import Occupancy
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.models.convergence import drawn_curve
from fairway.models.profile import load_profile
from fairway.placement.packed import Packed
from fairway.simulator.rates import Rates
from fairway.traces import read_cluster

RESTART_S = 30.0
"""The cost of a restart in snapshots that are built by hand, unless a job gives its own."""

CLUSTERS = (
    "v100:4",
    "v100:1x1",
    "v100:2x4",
    "v100:3x3",
    "v100:2x4,k80:1x3",
    "a100:1x5,v100:2x2,k80:2x3",
    "v100:1x8,t4:3x1",
)
"""Small clusters with one to three GPU types and awkward sizes."""


def job(name: str = "a", gpus: int = 1, duration_s: float = 60.0, submitted_s: float = 0.0, **more: Any) -> JobSpec:
    """A job; every other field of `JobSpec` can be given by name. `steps=` replaces the duration."""
    work: dict[str, Any] = {} if "steps" in more else {"duration_s": duration_s}
    return JobSpec(name, submitted_s, gpus, **work, **more)


def cluster(spec: str = "v100:2x4") -> Cluster:
    """The cluster that a specification such as `v100:2x4` describes."""
    return read_cluster(spec)


def submitted(
    spec: JobSpec,
    number: int,
    machines: Cluster,
    time_s: float | None = None,
    speeds: Sequence[float] | None = None,
) -> JobSubmitted:
    """The event with which an engine announces a job (one without regimes), with its speeds on this cluster.

    `speeds` gives its rate on each GPU type; by default it is that of the built-in profile.
    """
    rates = Rates(machines, load_profile(None), spread_matters=False)
    work = spec.steps if spec.steps is not None else spec.duration_s or 0.0
    restart_s = RESTART_S if spec.checkpoint_s is None else spec.checkpoint_s
    at_s = spec.submitted_s if time_s is None else time_s
    loss = spec.loss or drawn_curve(0, number)
    if speeds is not None:
        return JobSubmitted(at_s, number, spec, work, tuple(speeds), restart_s, work, 0.0, (), loss)
    known = rates.speeds(spec, spec.batch_size)
    return JobSubmitted(at_s, number, spec, work, known, restart_s, work, 0.0, rates.scaling(spec), loss)


def state_of(
    jobs: Sequence[JobSpec],
    machines: Cluster | str,
    *,
    now_s: float = 0.0,
    running: Mapping[str, int | Sequence[int]] | None = None,
    attained: Mapping[str, float] | None = None,
    seed: int = 0,
    min_run_s: float = 0.0,
    speeds: Mapping[str, Sequence[float]] | None = None,
    **about: Any,
) -> State:
    """A state at `now_s` in which these jobs have come and some of them run.

    `running` says how many GPUs (packed) or which ones a job holds. `attained` says for how many seconds it has held
    them, or, for a waiting job, had held its gang before it was stopped. Jobs submitted after `now_s` are an error.
    `speeds` gives rates by GPU type for waiting jobs; `about` goes to the `State`.
    """
    where = read_cluster(machines) if isinstance(machines, str) else machines
    order = sorted(jobs, key=lambda spec: spec.submitted_s)
    number = {spec.id: index for index, spec in enumerate(order)}
    state = State(where, min_run_s=min_run_s, seed=seed, **about)
    told = dict(speeds or {})
    held = _placed(order, where, running or {})
    past = dict(attained or {})
    steps: list[tuple[float, int, str]] = []
    for spec in order:
        steps.append((spec.submitted_s, 0, spec.id))
        had_s = past.get(spec.id, 0.0)
        if spec.submitted_s > now_s or spec.submitted_s + had_s > now_s + 1e-9:
            raise ValueError(
                f"job {spec.id!r}, submitted at {spec.submitted_s} s, cannot have run {had_s} s by {now_s} s"
            )
        if spec.id in held:
            steps.append((max(now_s - had_s, spec.submitted_s), 2, spec.id))
        elif had_s > 0:
            steps += [(spec.submitted_s, 2, spec.id), (min(spec.submitted_s + had_s, now_s), 1, spec.id)]
    for time_s, what, name in sorted(steps, key=lambda step: step[:2]):
        spec, at = order[number[name]], number[name]
        if what == 0:
            state.apply(submitted(spec, at, where, time_s, told.get(name)))
            continue
        state.apply(Woken(time_s))
        if what == 1:
            state.commit([Suspend(at)])
        else:
            _launch(state, at, spec, held.get(name))
    state.apply(Woken(now_s))
    return state


def snapshot_of(
    jobs: Sequence[JobSpec],
    machines: Cluster | str,
    *,
    knows: Iterable[str] = ("duration",),
    memory: Mapping[str, Any] | None = None,
    **about: Any,
) -> Snapshot:
    """The snapshot of `state_of(jobs, machines, **about)`, as an independent copy."""
    state = state_of(jobs, machines, **about)
    state.memory = dict(memory or {})
    return state.snapshot(frozenset(knows)).copy()


def _placed(
    order: Sequence[JobSpec], where: Cluster, running: Mapping[str, int | Sequence[int]]
) -> dict[str, tuple[int, ...]]:
    occupancy = Occupancy(where)
    held: dict[str, tuple[int, ...]] = {}
    unknown = running.keys() - {spec.id for spec in order}
    if unknown:
        raise ValueError(f"{sorted(unknown)} shall run but are not among the jobs")
    rates = Rates(where, load_profile(None), spread_matters=False)
    for spec in order:
        wanted = running.get(spec.id)
        if wanted is None:
            continue
        if isinstance(wanted, int):
            speeds = rates.speeds(spec, spec.batch_size)
            kinds = sorted((k for k, speed in enumerate(speeds) if speed > 0), key=lambda k: -speeds[k])
            placed = (Packed().place(occupancy, wanted, kind) for kind in kinds)
            gpus = next((found for found in placed if found), None)
            if gpus is None:
                raise ValueError(f"there is no room for the {wanted} GPUs of job {spec.id!r}")
        else:
            gpus = tuple(wanted)
        occupancy.take(gpus)
        held[spec.id] = gpus
    return held


def _launch(state: State, number: int, spec: JobSpec, gpus: tuple[int, ...] | None) -> None:
    """Start a job at the present instant; if it is only history, on the first GPUs of a type that it can use."""
    where, rates = state.cluster, Rates(state.cluster, load_profile(None), spread_matters=False)
    if gpus is None:
        speeds = rates.speeds(spec, spec.batch_size)
        kind = max(range(len(speeds)), key=lambda k: (speeds[k] > 0, int(where.gpus_by_type[k])))
        gpus = tuple(gpu for gpu, node in enumerate(where.node_of_gpu) if where.node_type[node] == kind)[: spec.gpus]
    kind = where.node_type[where.node_of_gpu[gpus[0]]]
    state.commit([Launch(number, gpus, kind)])
    rate = rates.rate(spec, spec.batch_size, kind, gpus, False)
    state.apply(JobStarted(state.now_s, number, rate, state.now_s))


def random_cluster(seed: int, *, mixed: bool | None = None) -> Cluster:
    """One of `CLUSTERS`; `mixed` asks for several GPU types, or for one."""
    specs = [spec for spec in CLUSTERS if mixed is None or ("," in spec) == mixed]
    return read_cluster(specs[int(np.random.default_rng([seed, 1]).integers(len(specs)))])


def random_workload(
    seed: int, machines: Cluster | str = "v100:2x4", *, jobs: int = 20, span_s: float = 2000.0, elastic: bool = True
) -> Workload:
    """Jobs that can all run on this cluster: odd gangs, thirds of seconds, ties, users, weights and deadlines."""
    where = read_cluster(machines) if isinstance(machines, str) else machines
    random = np.random.default_rng([seed, 2])
    specs = []
    for index in range(jobs):
        names, largest = _types_for(random, where)
        gpus = int(min(random.choice([1, 1, 1, 2, 3, 4, 5, 7, 8]), largest))
        low, high = gpus, gpus
        if elastic and random.random() < 0.25:
            low, high = int(random.integers(1, gpus + 1)), int(random.integers(gpus, largest + 1))
        at_s = (
            int(random.integers(0, 3 * int(span_s))) / 3
            if random.random() < 0.7
            else 100.0 * int(random.integers(0, 5))
        )
        specs.append(
            JobSpec(
                id=f"job-{index}",
                submitted_s=min(at_s, span_s),
                gpus=gpus,
                gpus_min=low,
                gpus_max=high,
                duration_s=float(random.choice([0.0, 1 / 3, 10.0, 100 / 3, 300.0, 1000 / 3, 2000.0])),
                user=f"user-{random.integers(3)}",
                queue=f"queue-{random.integers(2)}",
                weight=float(random.choice([0.5, 1.0, 1.0, 3.0])),
                priority=int(random.integers(-1, 3)),
                deadline_s=at_s + float(random.integers(10, 5000)) if random.random() < 0.3 else None,
                gpu_types=names,
                checkpoint_s=float(random.choice([0.0, 7.0])) if random.random() < 0.2 else None,
            )
        )
    return Workload.of(specs, source=f"random seed {seed}")


def in_shares(workload: Workload, seed: int) -> Workload:
    """The workload with three of four of its jobs on one GPU asking for a share of it."""
    random = np.random.default_rng([seed, 4])
    shares = [0.5, 0.25, 0.3, 0.6, 0.125, 1 / 3, 0.05]
    chosen = [float(random.choice(shares)) if random.random() < 0.75 else 1.0 for _ in workload.jobs]
    return replace(
        workload,
        jobs=tuple(
            replace(spec, gpu_share=share) if spec.gpus_max == 1 else spec
            for spec, share in zip(workload.jobs, chosen, strict=True)
        ),
    )


def adaptive_workload(seed: int, *, jobs: int = 10, span_s: float = 300.0, elastic: bool = True) -> Workload:
    """Jobs that change their batch size while they train (Accordion, GNS, schedules), and some that do not.

    They count steps or seconds, fit on every GPU type of 8 GiB and more, and run for a few minutes on a V100.
    """
    random = np.random.default_rng([seed, 3])
    kinds = (
        ("VGG19", 8, "accordion"),
        ("YOLOv3", 4, "gns"),
        ("DeepSpeech2", 10, "gns"),
        ("Recommendation", 512, "accordion"),
        ("VGG19", 16, "schedule"),
        ("", None, "schedule"),
        ("ResNet-18", 32, "none"),
        ("", None, "none"),
    )
    specs = []
    for index in range(jobs):
        model, batch_size, method = kinds[index % len(kinds)]
        gpus = 1 if model == "Recommendation" else int(random.choice([1, 1, 2, 3]))
        low, high = (1, gpus + 1) if elastic and random.random() < 0.3 else (gpus, gpus)
        amount = float(random.integers(200, 2000))
        work = {"steps": amount * (5 if model == "Recommendation" else 1)} if model else {"duration_s": amount / 3}
        about: dict[str, Any] = {"model": model, "batch_size": batch_size, "adaptation": method, **work}
        if method == "schedule":
            grown = None if batch_size is None else (batch_size, 4 * batch_size, 2 * batch_size)
            about["regimes"] = _schedule(random, grown)
        at_s = float(random.integers(0, int(3 * span_s))) / 3
        specs.append(JobSpec(f"job-{index}", at_s, gpus, low, high, user=f"user-{index % 3}", **about))
    return Workload.of(specs, source=f"adaptive seed {seed}")


def _schedule(random: np.random.Generator, batches: tuple[int, ...] | None) -> tuple[Regime, ...]:
    """Three regimes: with these batch sizes, or with other speeds."""
    first, second = sorted(random.choice(np.arange(1, 30), 2, replace=False) / 30)
    speeds = (1.0, 1.0, 1.0) if batches else (1.0, 2.5, 0.6)
    sizes = batches or (None, None, None)
    ends = (float(first), float(second), 1.0)
    return tuple(Regime(*regime) for regime in zip(ends, sizes, speeds, strict=True))


def _types_for(random: np.random.Generator, where: Cluster) -> tuple[tuple[str, ...], int]:
    """The GPU types that a random job requires (often none), and the largest gang that it can then have."""
    counts = {gpu.name: int(where.gpus_by_type[kind]) for kind, gpu in enumerate(where.types)}
    if len(counts) > 1 and random.random() < 0.3:
        name = str(random.choice(sorted(counts)))
        return (name,), counts[name]
    return (), max(counts.values())


def random_snapshot(
    seed: int, *, knows: Iterable[str] = ("duration",), mixed: bool | None = None, jobs: int | None = None
) -> Snapshot:
    """An instant in the life of a random cluster: some jobs run, some wait, some started a moment ago."""
    random = np.random.default_rng([seed, 3])
    where = random_cluster(seed, mixed=mixed)
    count = int(random.integers(0, 25)) if jobs is None else jobs
    specs = list(random_workload(seed, where, jobs=count, span_s=500.0).jobs)
    now_s = 500.0 + int(random.integers(0, 600)) / 3
    occupancy, running, attained = Occupancy(where), {}, {}
    for spec in (specs[int(at)] for at in random.permutation(count)):
        age_s = now_s - spec.submitted_s
        if random.random() < 0.3:
            had_s = float(random.choice([1.0, 50.0, 400 / 3]))
            attained[spec.id] = min(had_s, age_s, 0.9 * (spec.duration_s or 0.0))
        kinds = [k for k, gpu in enumerate(where.types) if not spec.gpu_types or gpu.name in spec.gpu_types]
        gpus = Packed().place(occupancy, spec.gpus, int(random.choice(kinds)))
        if gpus is not None and random.random() < 0.7:
            occupancy.take(gpus)
            running[spec.id] = gpus
    min_run_s = float(random.choice([0.0, 60.0]))
    return snapshot_of(
        specs, where, now_s=now_s, running=running, attained=attained, seed=seed, min_run_s=min_run_s, knows=knows
    )
