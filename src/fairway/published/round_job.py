"""A job in the engine of rounds: its steps in a round, the cost of its starts, and its requests for batch sizes."""

from __future__ import annotations

import math
from typing import NamedTuple

from fairway.core.job import JobSpec, Regime
from fairway.models.adaptation import AdaptationCourse
from fairway.simulator.job_engine import EngineJob

MOST_EMPTY_ROUNDS = 5
"""A job that has no steps left after a change of its batch size is dropped in the fifth round in which it runs."""
_EXACT = 1.0 + 1e-12


class RoundJob(EngineJob):
    """The truth about an active job: `done` of `work` at the start of the present round, at `rate` from then on.

    `course` is how it adapts, or None. `asked` is the batch size that it has asked for, 0 if none, and `reviewed` says
    whether that is up to date. `owes_s` is what its last start costs in the coming round. `ran_s` and `made` are the
    seconds and the steps (of any batch size) since its submission. `lost_s` is the time that it wasted in the present
    allocation, and `paid_s` the time that it computed there.
    """

    __slots__ = (
        "asked",
        "course",
        "done",
        "empty_rounds",
        "first_round",
        "last_round",
        "lost_s",
        "made",
        "most_ran_s",
        "owes_s",
        "paid_s",
        "ran_s",
        "reviewed",
        "seen_before",
        "whole",
    )

    def __init__(self, job: int, spec: JobSpec, work: float, regime: Regime, course: AdaptationCourse | None) -> None:
        super().__init__(job, spec, work, regime)
        self.course = course
        self.whole = spec.steps is not None
        self.done = 0.0
        self.made = 0.0
        self.asked = 0
        self.reviewed = course is None
        self.empty_rounds = 0
        self.first_round = 0
        self.seen_before = 0
        self.last_round = -2
        self.owes_s = 0.0
        self.ran_s = 0.0
        self.most_ran_s = math.inf
        self.lost_s = 0.0
        self.paid_s = 0.0

    @property
    def progress(self) -> float:
        """Work done, at most all of it: after a change of the batch size, more steps may be done than there are."""
        return min(self.done, self.work)

    @property
    def root(self) -> int:
        """The job that its GPUs belong to: its host, or itself."""
        return self.host if self.host >= 0 else self.job

    def turn(self, start_s: float, round_s: float) -> RoundTurn:
        """What the job does in a round that begins now."""
        left = self.work - self.done
        if not left > 0:
            return RoundTurn(self, 0.0, True, start_s)
        most = self.rate * round_s
        if self.whole:
            # The speed beside mates is a product and may have lost the last bit of a whole number of steps.
            # A job that is too slow for one step in a round does a part of one, or it would never end.
            most = float(int(most * _EXACT if self.mates else most)) or most
        steps = min(most, left)
        return RoundTurn(self, steps, steps >= left, start_s + steps / self.rate)

    def credit(self, turn: RoundTurn, number: int, since_s: float, charged_from_s: float) -> tuple[float, float]:
        """Book what the job did in a round, less the cost of its start. Returns its steps and how long it computed."""
        steps, all_left = turn.steps, turn.all_left
        ran_s = turn.finish_s - since_s
        if self.owes_s and steps and ran_s > charged_from_s:
            net_s = max(ran_s - self.owes_s, 0.0)
            steps = steps * net_s / ran_s
            if self.whole and turn.steps >= 1.0:
                steps = float(int(steps))
            self.lost_s += ran_s - net_s
            ran_s, all_left = net_s, False
        self.owes_s = 0.0
        self.made += steps
        self.ran_s += ran_s
        self.paid_s += ran_s
        self.done = max(self.work, self.done) if all_left else self.done + steps
        self.last_round = number
        self.reviewed = self.course is None
        return steps, ran_s

    def ended_s(self, turn: RoundTurn, start_s: float) -> float:
        """When the job ended in a booked round; NaN if it goes on."""
        if not turn.steps:
            self.empty_rounds += 1
            return start_s if self.empty_rounds >= MOST_EMPTY_ROUNDS or not self.work else math.nan
        return turn.finish_s if self.done >= self.work or self.ran_s > self.most_ran_s else math.nan

    def review(self) -> None:
        """Ask for the batch size that follows from the progress since the last time."""
        if not self.reviewed and self.course is not None:
            batch = self.batch_size or 0
            wanted = self.course.wanted(batch, self.done)
            self.asked, self.reviewed = (0 if wanted == batch else wanted), True


class RoundTurn(NamedTuple):
    """What a job does in a round: its steps (the rest of them, if `all_left`), and when it, or its pair, is done."""

    job: RoundJob
    steps: float
    all_left: bool
    finish_s: float
