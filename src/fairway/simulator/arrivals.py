"""Jobs that a simulated engine has still to submit, and the event with which it submits each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from zlib import crc32

from fairway.core.batch import BatchLimits
from fairway.core.event import JobSubmitted
from fairway.core.job import JobSpec, Regime
from fairway.core.queues import TaskTerms
from fairway.models.convergence import drawn_curve
from fairway.simulator.rates import Rates
from fairway.simulator.rules import Rules


class Arrivals:
    """Jobs sorted by submit time. `next_s` is when the next one arrives, on the engine's clock; infinite after all."""

    def __init__(self, jobs: Sequence[JobSpec], clock: Callable[[float], float] = float) -> None:
        self._jobs = jobs
        self._clock = clock
        self._next = 0
        self.next_s = clock(jobs[0].submitted_s) if jobs else math.inf

    def due(self, now_s: float) -> Iterator[tuple[int, JobSpec]]:
        """The jobs that have arrived by now, with their numbers."""
        while self.next_s <= now_s:
            number = self._next
            self._next += 1
            more = self._next < len(self._jobs)
            self.next_s = self._clock(self._jobs[self._next].submitted_s) if more else math.inf
            yield number, self._jobs[number]


class Announcer:
    """Makes the events of jobs that arrive. `tells` is what the policy is told beyond what every policy sees."""

    def __init__(self, rates: Rates, rules: Rules, tells: frozenset[str], seed: int) -> None:
        self._rates = rates
        self._rules = rules
        self._tells = tells
        self._seed = seed
        self._on_one_gpu: dict[str, JobSpec] = {}

    def submitted(self, now_s: float, number: int, spec: JobSpec, since_s: float = math.nan) -> JobSubmitted:
        """The event of a job that the engine submits now. `since_s` is its submission, if that was earlier."""
        rates, tells = self._rates, self._tells
        work, first = rates.work(spec), rates.regimes(spec)[0]
        limits = self.limits(spec)
        return JobSubmitted(
            now_s,
            number,
            spec if limits is None else replace(spec, gpus_min=1, gpus_max=max(limits.most_gpus, spec.gpus)),
            work,
            self.speeds(spec, first),
            self._rules.restart_s(spec),
            first.until * work,
            rates.tail_s(spec, first, work),
            rates.scaling(spec) if "scaling" in tells else (),
            (spec.loss or drawn_curve(self._seed, crc32(spec.id.encode()))) if "loss" in tells else None,
            rates.steps_left(spec, first),
            since_s,
            rates.prospect(spec) if "regimes" in tells else None,
            TaskTerms(rates.rounds(spec), rates.computes(spec, first)) if "tasks" in tells else None,
        )

    def limits(self, spec: JobSpec) -> BatchLimits | None:
        """What batch sizes the policy may choose; None if it does not ask. Such a job may have as many GPUs as fit."""
        return self._rates.limits(spec) if "goodput" in self._tells and spec.gpu_share == 1 else None

    def speeds(self, spec: JobSpec, regime: Regime) -> tuple[float, ...]:
        """The speeds by GPU type that are told: on the own gang, or on one GPU if the policy chooses gang and batch."""
        limits = self.limits(spec)
        if limits is None:
            return self._rates.speeds_in(spec, regime)
        alone = self._on_one_gpu.get(spec.id)
        if alone is None:
            alone = self._on_one_gpu[spec.id] = replace(spec, gpus=1, gpus_min=1, global_batch=limits.first)
        return self._rates.speeds_in(alone, regime)

    def scaling(self, spec: JobSpec, regime: Regime) -> tuple[float, ...]:
        """The speeds on 1, 2, … GPUs that are told when a job enters a regime; empty if they stay as they were."""
        return self._rates.scaling_in(spec, regime) if "scaling" in self._tells else ()
