"""A brute-force simulator: time moves in small equal steps and every job is looked at in every step.

Slow and obvious. Where all times are multiples of the step it must agree with the event-driven engine exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from fairway.core.job import JobSpec


@dataclass
class Stepped:
    """One job of the reference."""

    spec: JobSpec
    number: int
    left: Fraction
    running: bool = False
    started: bool = False
    pause: Fraction = Fraction(0)
    end: Fraction | None = None


Order = Callable[[Stepped], tuple[Fraction | int, ...]]


def fifo(job: Stepped) -> tuple[Fraction | int, ...]:
    return (job.number,)


def srtf(job: Stepped) -> tuple[Fraction | int, ...]:
    """By what is left, with the restart that a stopped job must go through; at a tie who runs goes on."""
    return (job.left + job.pause, not job.running, job.number)


def run_stepped(
    jobs: Sequence[JobSpec], gpus: int, order: Order, *, step: Fraction, restart: Fraction, preempt: bool, strict: bool
) -> list[float]:
    """The completion times of all jobs."""
    all_jobs = [Stepped(spec, n, Fraction(spec.duration_s or 0).limit_denominator(1000)) for n, spec in enumerate(jobs)]
    now = Fraction(0)
    while any(job.end is None for job in all_jobs):
        _finish(all_jobs, now)
        here = [job for job in all_jobs if job.end is None and _submit(job) <= now]
        _schedule(here, gpus, order, restart, preempt, strict)
        _finish(all_jobs, now)
        while any(job.end == now for job in here if job.running):  # a job without work frees its GPUs at once
            for job in here:
                job.running = job.running and job.end is None
            here = [job for job in here if job.end is None]
            _schedule(here, gpus, order, restart, preempt, strict)
            _finish(all_jobs, now)
        for job in here:
            if job.running and job.pause > 0:
                job.pause -= step
            elif job.running:
                job.left -= step
        now += step
    return [float(job.end or 0) for job in all_jobs]


def _submit(job: Stepped) -> Fraction:
    return Fraction(job.spec.submitted_s).limit_denominator(1000)


def _finish(jobs: Sequence[Stepped], now: Fraction) -> None:
    for job in jobs:
        if job.running and job.end is None and job.left <= 0 and job.pause <= 0:
            job.end = now


def _schedule(jobs: Sequence[Stepped], gpus: int, order: Order, restart: Fraction, preempt: bool, strict: bool) -> None:
    free = gpus
    chosen: list[Stepped] = []
    fixed = [] if preempt else [job for job in jobs if job.running]
    free -= sum(job.spec.gpus for job in fixed)
    for job in sorted((job for job in jobs if job not in fixed), key=order):
        if job.spec.gpus <= free:
            chosen.append(job)
            free -= job.spec.gpus
        elif strict:
            break
    for job in jobs:
        keeps = job in fixed or job in chosen
        if job.running and not keeps:
            job.running, job.pause = False, restart
        elif keeps and not job.running:
            job.running = True
            job.pause = restart if job.started else Fraction(0)
            job.started = True
