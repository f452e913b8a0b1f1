"""The jobs and clusters on which Hare is measured, and one run of `simulate` on them as a row of figures."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

import fairway
from fairway import JobSpec, Workload
from fairway.models.profile import load_profile

Row = dict[str, Any]

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


class Case(NamedTuple):
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
    rounds_s: float = 0.0
    """Above 0: policy and bound divide jobs into rounds of about this length, however many that are."""


@cache
def _rates() -> Any:
    return load_profile(None)


def drawn(case: Case) -> Workload:
    """The jobs of a case. A larger number of jobs begins with those of a smaller one."""
    rng = np.random.default_rng(case.seed)
    least, most = np.log(60.0 * case.minutes[0]), np.log(60.0 * case.minutes[1])
    jobs = []
    for number in range(case.jobs):
        model = list(MODELS)[int(rng.integers(len(MODELS)))]
        gang = int(rng.choice(list(GANGS), p=list(GANGS.values())))
        run_s = float(np.exp(rng.uniform(least, most)))
        weight = float(rng.integers(1, 6))
        steps = max(1, round(run_s * _rates().rate(model, MODELS[model], "v100", gang)))
        about = {"gpus": gang, "steps": steps, "model": model, "batch_size": MODELS[model], "weight": weight}
        jobs.append(JobSpec(str(number), 0.0, **about))
    if not case.stream:
        return Workload.of(jobs)
    gaps_s = np.random.default_rng([case.seed, 1]).exponential(1.0, case.jobs)
    at_s = (np.cumsum(gaps_s) - gaps_s[0]) * busy_s(jobs, case.gpus) / LOAD / case.jobs
    return Workload.of([replace(job, submitted_s=round(float(s), 3)) for job, s in zip(jobs, at_s, strict=True)])


def busy_s(jobs: list[JobSpec], gpus: int) -> float:
    """How long the GPUs need for all jobs if nothing idles and each type does the same mix of work."""
    each, per_s = gpus // len(TYPES), 0.0
    for kind in TYPES:
        alone = (job.gpus * job.steps / _rates().rate(job.model, job.batch_size, kind, job.gpus) for job in jobs)
        per_s += each / sum(alone)
    return 1.0 / per_s


def cluster_of(case: Case) -> str:
    """Equal numbers of GPUs of each type, on nodes of two."""
    each = case.gpus // len(case.order) // NODE_GPUS
    if case.patterned:
        return ",".join(f"{kind}:1x{NODE_GPUS}" for _ in range(each) for kind in case.order)
    return ",".join(f"{kind}:{each}x{NODE_GPUS}" for kind in case.order)


def measured(case: Case) -> Row:
    """One run. Gangs do not pay for nodes that are far apart, because tasks do not either."""
    before_s = time.process_time()
    result = run(case)
    jct_s = np.sort(np.array(result.jct_s))
    return {
        **case._asdict(),
        "weighted_s": float(result.jct_weighted_s or 0.0),
        "least_s": result.least_weighted_jct_s,
        "jct_s": [round(float(each), 1) for each in jct_s],
        "switches": result.figures().get("switches", 0),
        "cpu_s": time.process_time() - before_s,
    }


def run(case: Case) -> fairway.Result:
    """Simulate a case. The bound is the same for all policies, and worked out for `hare` only."""
    about = {"cluster": cluster_of(case), "policy": case.policy, "switching": case.switching}
    with ExitStack() as changed:
        if case.rounds_s:
            changed.enter_context(patch("fairway.policies.hare.outline.MOST_ROUNDS", 10**6))
            changed.enter_context(patch("fairway.policies.hare.outline.PLANNED_ROUNDS", 10**9))
            changed.enter_context(patch("fairway.simulator.bound._MOST_ROUNDS", ((10**9, 10**6),)))
            changed.enter_context(patch("fairway.simulator.bound._MOST_WITH_TIME", 0))
            changed.enter_context(patch("fairway.simulator.bound._ROUND_S", case.rounds_s))
        elif case.policy != "hare":
            changed.enter_context(patch("fairway.simulator.run.least_weighted_jct_s", return_value=None))
        return fairway.simulate(drawn(case), placement="count", min_run_s=0.0, **about)
