"""The jobs and clusters on which Hare is measured, and one run on them as a row of figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Floats
from fairway.core.job import JobSpec, Workload
from fairway.models.profile import Profile, load_profile
from fairway.simulator.result import Result
from fairway.simulator.run import simulate

TYPES = ("v100", "t4", "m60", "k80")
MODELS = {
    "ResNet-18": None,
    "ResNet-50": 16,
    "LSTM": None,
    "Transformer": 32,
    "Recommendation": None,
    "VGG19": 16,
    "BERT-base": 6,
    "DeepSpeech2": 8,
}
"""Models of the built-in profile with batch sizes that fit the 8 GB of an M60; None is the profile's own."""
GANGS = {1: 0.3, 2: 0.3, 4: 0.25, 8: 0.15}
MINUTES = (1.0, 30.0)
LOAD = 1.5
"""How fast jobs come in a stream: 1 is as fast as the GPUs can do them if each type does the same mix of work."""
NODE_GPUS = 2
SEEDS = (1, 2)
"""Two seeds keep all of Hare within two CPU minutes."""


class TaskRun(NamedTuple):
    """A workload, a cluster, and what runs there. `minutes` are the least and the most of a job's run time on V100."""

    policy: str
    jobs: int
    gpus: int
    seed: int
    stream: bool = False
    switching: str = "resident"
    minutes: tuple[float, float] = MINUTES
    order: tuple[str, ...] = TYPES
    """The types of neighbouring nodes."""
    patterned: bool = True
    """Whether nodes of all types alternate. Otherwise all nodes of one type come before those of the next."""


class TaskRow(NamedTuple):
    """What came of a run: weighted JCT, what no schedule is below (if it was worked out), all JCTs, switches."""

    weighted_s: float
    least_s: float
    jct_s: Floats
    switches: int


@cache
def _rates() -> Profile:
    return load_profile(None)


def drawn(run: TaskRun) -> Workload:
    """The jobs of a run. A larger number of jobs begins with those of a smaller one."""
    random = np.random.default_rng(run.seed)
    least, most = (portable.log(60.0 * minutes) for minutes in run.minutes)
    jobs = []
    for number in range(run.jobs):
        model = list(MODELS)[int(random.integers(len(MODELS)))]
        gang = int(random.choice(list(GANGS), p=list(GANGS.values())))
        run_s = portable.exp(least + (most - least) * random.random())
        weight = float(random.integers(1, 6))
        steps = max(1, round(run_s * _rates().rate(model, MODELS[model], "v100", gang)))
        jobs.append(JobSpec(str(number), 0.0, gang, steps=steps, model=model, batch_size=MODELS[model], weight=weight))
    if not run.stream:
        return Workload.of(jobs)
    gaps_s = np.random.default_rng([run.seed, 1]).exponential(1.0, run.jobs)
    at_s = (np.cumsum(gaps_s) - gaps_s[0]) * _busy_s(jobs, run.gpus) / LOAD / run.jobs
    return Workload.of([replace(job, submitted_s=round(float(s), 3)) for job, s in zip(jobs, at_s, strict=True)])


def _busy_s(jobs: Sequence[JobSpec], gpus: int) -> float:
    """How long the GPUs need for all jobs if nothing idles and each type does the same mix of work."""
    each, per_s = gpus // len(TYPES), 0.0
    for kind in TYPES:
        rates = (_rates().rate(job.model, job.batch_size, kind, job.gpus) for job in jobs)
        per_s += each / sum(job.gpus * (job.steps or 0.0) / rate for job, rate in zip(jobs, rates, strict=True))
    return 1.0 / per_s


def cluster_of(run: TaskRun) -> str:
    """Equal numbers of GPUs of each type, on nodes of two."""
    each = run.gpus // len(run.order) // NODE_GPUS
    if run.patterned:
        return ",".join(f"{kind}:1x{NODE_GPUS}" for _ in range(each) for kind in run.order)
    return ",".join(f"{kind}:{each}x{NODE_GPUS}" for kind in run.order)


@cache
def measured(run: TaskRun) -> TaskRow:
    """One run. Gangs do not pay for nodes that are far apart, because tasks do not either."""
    where, how = cluster_of(run), run.switching
    result: Result = simulate(
        drawn(run), cluster=where, policy=run.policy, switching=how, placement="count", min_run_s=0.0
    )
    switches = int(result.figures().get("switches", 0))
    return TaskRow(result.jct_weighted_s or 0.0, result.least_weighted_jct_s or 0.0, result.jct_s, switches)
