"""Jobs on the same GPUs: which jobs share them, and what that costs each. Every simulated engine uses it.

Jobs that a policy puts together slow each other down as the profile's pair rates say. Jobs that ask for shares of a
GPU, and for no more than the whole of it together, are different: each gets at least its share.

* A job whose work is a duration keeps its speed. The duration is the time on its share.
* A job whose work is steps has its speed on a whole GPU from a profile. It keeps min(1, s / S · max(1, E)) of that.
  s is its share and S the sum of all shares on the GPU, so no time is left idle. E is what the jobs do together by
  their pair rates, in speeds of one alone; all gain alike from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, TypeVar

import numpy as np

from fairway.core.cluster import Cluster
from fairway.core.job import JobSpec
from fairway.core.sharing import WHOLE, heirs, thousandths
from fairway.simulator.rates import Rates


class SeatedJob:
    """What sharing needs to know of an active job.

    `mates` are the jobs with which it shares GPUs, by number. `host` is the job whose guest it is, or -1. `factor` is
    what it keeps of its speed beside them, `throttle` the part of the time in which it may compute.
    """

    __slots__ = ("factor", "gpus", "host", "job", "kind", "mates", "spec", "throttle")

    def __init__(self, job: int, spec: JobSpec) -> None:
        self.job = job
        self.spec = spec
        self.gpus: tuple[int, ...] = ()
        self.kind = -1
        self.host = -1
        self.mates: dict[int, Self] = {}
        self.factor = 1.0
        self.throttle = 1.0

    @property
    def batch_size(self) -> int | None:
        """The batch size now."""
        raise NotImplementedError


Seated = TypeVar("Seated", bound=SeatedJob)


def total_share(jobs: Sequence[SeatedJob]) -> float:
    """What shares of one GPU jobs ask for together; more than 1 if any of them asks for whole GPUs."""
    if any(job.spec.gpu_share >= 1 for job in jobs):
        return float(len(jobs))
    return int(thousandths(np.array([job.spec.gpu_share for job in jobs])).sum()) / WHOLE


class Sharing:
    """The laws of sharing on one cluster, with the pair rates of its profile."""

    def __init__(self, cluster: Cluster, rates: Rates) -> None:
        self.cluster = cluster
        self.rates = rates

    def seat(self, guest: Seated, host: Seated) -> bool:
        """Put a job on the GPUs of its host, beside the guests that are there already. False if not all fit."""
        wanted = set(guest.gpus)
        others = [job for job in (host, *host.mates.values()) if not wanted.isdisjoint(job.gpus)]
        if not (wanted <= set(host.gpus) and self._fit(guest, others)):
            return False
        for job in others:
            guest.mates[job.job] = job
            job.mates[guest.job] = guest
        guest.factor = self.factor(guest)
        return True

    def _fit(self, guest: Seated, others: list[Seated]) -> bool:
        """Whether a guest has the memory that it needs beside the others, and makes some progress."""
        if total_share((guest, *others)) <= 1:
            return True
        memory = guest.spec.memory_bytes + sum(job.spec.memory_bytes for job in others)
        if len(others) > 1 and memory > self.cluster.types[guest.kind].memory_bytes > 0:
            return False
        return all(min(self.pair_factors(guest, job)) > 0 for job in others)

    def pair_factors(self, a: Seated, b: Seated) -> tuple[float, float]:
        """What each of two jobs keeps of its speed beside the other. The order of the two does not matter."""
        if a.job < b.job:
            return self.pair_factors(b, a)[::-1]
        return self.rates.pair_factors(a.spec, b.spec, (a.batch_size, b.batch_size), a.kind)

    def factor(self, job: Seated) -> float:
        """What a job keeps of its speed beside its mates. Their delays add up on each GPU; the slowest GPU counts."""
        if not job.mates:
            return 1.0
        shares = total_share((job, *job.mates.values()))
        if shares > 1:
            return self._packed_factor(job)
        if job.spec.steps is None:
            return 1.0
        return min(job.spec.gpu_share / shares * max(self._together(job), 1.0), 1.0)

    def _together(self, job: Seated) -> float:
        """How much a job and its mates do together, in speeds of one alone; 0 where the pair rates do not know."""
        jobs = (job, *job.mates.values())
        pairs = [self.pair_factors(a, b) for at, a in enumerate(jobs) for b in jobs[:at]]
        return sum(map(self._packed_factor, jobs)) if all(min(pair) > 0 for pair in pairs) else 0.0

    def _packed_factor(self, job: Seated) -> float:
        """What a job keeps of its speed beside mates that a policy has packed with it."""
        delay = dict.fromkeys(job.gpus, 0.0)
        for mate in job.mates.values():
            keeps = self.pair_factors(job, mate)[0]
            for gpu in mate.gpus:
                if gpu in delay:
                    delay[gpu] += mate.throttle * (1.0 / keeps - 1.0)
        return job.throttle / (1.0 + max(delay.values()))

    def part(self, job: Seated) -> list[Seated]:
        """A job leaves the GPUs that it shares. Returns the jobs that stay, whose speed changes."""
        mates, job.mates, job.host = job.mates, {}, -1
        hosts = heirs({mate.job: mate.gpus for mate in mates.values() if mate.host == job.job})
        for mate in mates.values():
            del mate.mates[job.job]
            mate.host = hosts.get(mate.job, mate.host)
            if mate.host < 0:
                mate.throttle = 1.0
        return list(mates.values())

    def losers(self, job: Seated) -> list[Seated]:
        """The jobs that have to go if a job no longer fits at its new batch size: its mates, or itself if a guest."""
        if total_share((job, *job.mates.values())) <= 1:
            return []
        unfit = [mate for mate in job.mates.values() if not min(self.pair_factors(job, mate)) > 0]
        losers = [mate for mate in unfit if job.host < 0 or job.job < mate.job]
        return losers if len(losers) == len(unfit) else [job]
