"""How long a live job will run in all: what is expected, how wide that is, and where it comes from.

The first of these that says something counts: the job's own reports, its log, its owner, earlier runs of the same
command, name or model, those of the same user, its time limit, those of all users. Otherwise an hour is assumed. Only
sorted lists and their places are used, so that the same runs give the same figures on every CPU.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from fairway.runtime.jobs.records import JobRecord, Progress
from fairway.runtime.jobs.request import JobRequest

UNKNOWN_S = 3600.0
"""The run time that is assumed of a job when nothing is known about it."""
SURE = 0.8
"""How sure it is that a figure lies within the interval that is told with it."""
REMEMBERED, MORE_REMEMBERED = 20, 200
"""How many of the latest runs of a kind are remembered; and of all jobs of a user, and of all users."""
MOST_KINDS = 5000
"""How many kinds of jobs are remembered, with the latest run times of each."""
LEAST_OF_USER, LEAST_OF_ALL = 3, 10
"""How many runs there have to be before those of a user, or of all users, are better than an hour."""
LEAST_WORDS = 5
"""How many estimates of an owner have to be held against run times before they say how wide the next one is."""
LEARNT = 0.25
"""An expected run time has to change by this fraction before the state is told."""
_WORD = (0.5, 2.0)
"""Between which multiples of an owner's estimate a job ends, as long as nothing is known of that owner."""
_GUESS = (0.1, 4.0)
"""The same of a run time that is only assumed."""
_STEADY, _EARLY = 0.1, 0.5
"""How wrong a measured speed may be: once a tenth of the work is done, and at the start."""

Basis = Literal["seen", "told", "runs", "guess"]
"""What a run time is known from: the job itself, its owner, earlier runs of its kind, or nothing that is about it."""
Kind = tuple[str, str]


class RunTimeEstimate(NamedTuple):
    """How long a job runs in all, in seconds of computing: about `expected_s`, and `sure` between the other two.

    `source` says in words what it is taken from.
    """

    expected_s: float
    low_s: float
    high_s: float
    source: str
    basis: Basis
    sure: float = SURE

    def plain(self, *, rough: bool) -> dict[str, Any]:
        """As users see it; `rough`: without the interval."""
        interval = {"low_s": None, "high_s": None, "sure": None} if rough else {}
        return {name: value for name, value in self._asdict().items() if name != "basis"} | interval

    def within(self, ran_s: float, limit_s: float) -> RunTimeEstimate:
        """For a job that has run for `ran_s` and is ended at `limit_s`: it takes neither less nor more."""
        expected_s, low_s, high_s = (min(max(one_s, ran_s), limit_s) for one_s in self[:3])
        source = "its time limit" if self.basis != "seen" and self.expected_s > limit_s else self.source
        return RunTimeEstimate(expected_s, low_s, high_s, source, self.basis, self.sure)


class RunTimes:
    """The run times of jobs that have done their work, by what makes jobs similar."""

    def __init__(self) -> None:
        self._known: dict[Kind, deque[float]] = {}
        self._words: dict[str, deque[float]] = {}

    def learn(self, record: JobRecord) -> set[Kind]:
        """Remember the run time of a job that has done its work. Returns the kinds of which something else is expected
        now."""
        changed: set[Kind] = set()
        for kind in kinds_of(record.request):
            # Taken out and put in again, so that the kinds that were seen longest ago come first.
            most = REMEMBERED if kind[1] else MORE_REMEMBERED
            seen = self._known.pop(kind, None) or deque(maxlen=most)
            before_s = _median(sorted(seen)) if len(seen) >= _least(kind) else None
            seen.append(record.ran_s)
            self._known[kind] = seen
            after_s = _median(sorted(seen)) if len(seen) >= _least(kind) else None
            if after_s is not None and (before_s is None or abs(after_s - before_s) > LEARNT * before_s):
                changed.add(kind)
        while len(self._known) > MOST_KINDS:
            del self._known[next(iter(self._known))]
        if record.request.expected_s:
            words = self._words.pop(record.request.user, None) or deque(maxlen=MORE_REMEMBERED)
            words.append(record.ran_s / record.request.expected_s)
            self._words[record.request.user] = words
            if len(self._words) > MOST_KINDS:
                del self._words[next(iter(self._words))]
        return changed

    def expected_s(self, request: JobRequest, ran_s: float = 0.0) -> float:
        """How long a job that has reported nothing is expected to run in all, if it has run for `ran_s` already."""
        return self.estimate(request, ran_s).expected_s

    def estimate(self, request: JobRequest, ran_s: float = 0.0) -> RunTimeEstimate:
        """The same, with how wide that is and where it comes from."""
        limit_s = request.limit_s or math.inf
        return self._unlimited(request, ran_s).within(ran_s, limit_s)

    def of(self, record: JobRecord, ran_s: float) -> RunTimeEstimate:
        """What is expected of a job, which has run for `ran_s`, from its own reports if there are any."""
        seen = _from_progress(record.progress, record.request, ran_s)
        if seen is None:
            return self.estimate(record.request, ran_s)
        return seen.within(ran_s, record.request.limit_s or math.inf)

    def _unlimited(self, request: JobRequest, ran_s: float) -> RunTimeEstimate:
        if request.expected_s is not None:
            return self._from_owner(request.user, request.expected_s, ran_s)
        limit_s = request.limit_s or math.inf
        for kind in kinds_of(request):
            known = sorted(self._known.get(kind, ()))
            if kind == _ALL and limit_s <= UNKNOWN_S:
                break
            if len(known) >= _least(kind):
                return _from_runs(known, ran_s, _words_of(kind, len(known)), "runs" if kind[1] else "guess")
        if limit_s <= UNKNOWN_S:
            return RunTimeEstimate(limit_s, _GUESS[0] * limit_s, limit_s, "its time limit", "guess")
        if ran_s >= UNKNOWN_S:
            return _overdue(ran_s, "nothing; it is expected to run as long again", "guess")
        low_s, high_s = (factor * UNKNOWN_S for factor in _GUESS)
        return RunTimeEstimate(UNKNOWN_S, low_s, high_s, "nothing; an hour is assumed", "guess")

    def _from_owner(self, user: str, expected_s: float, ran_s: float) -> RunTimeEstimate:
        source, known = "its owner's estimate", sorted(self._words.get(user, ()))
        if ran_s > expected_s:
            return _overdue(ran_s, f"{source}, which it has passed", "told")
        if len(known) < LEAST_WORDS:
            return RunTimeEstimate(expected_s, _WORD[0] * expected_s, _WORD[1] * expected_s, source, "told")
        low, high = between(known)
        low, high = min(low, 1.0), max(high, 1.0)
        return RunTimeEstimate(expected_s, low * expected_s, high * expected_s, source, "told")


def kinds_of(request: JobRequest) -> list[Kind]:
    """What makes jobs similar, the closest first. The tasks of an array have one command."""
    kinds = [(request.user, f"command {request.cwd} {' '.join(request.command)}")]
    kinds += [(request.user, f"name {request.name}")] if request.name else []
    kinds += [("", f"model {request.model}")] if request.model else []
    return [*kinds, (request.user, ""), _ALL]


_ALL: Kind = ("", "")


def _least(kind: Kind) -> int:
    return 1 if kind[1] else LEAST_OF_USER if kind[0] else LEAST_OF_ALL


def _words_of(kind: Kind, runs: int) -> str:
    many = f"{runs} earlier run{'' if runs == 1 else 's'}"
    if kind[1]:
        return f"{many} of this {kind[1].partition(' ')[0]}"
    return f"{many} of other jobs of its owner" if kind[0] else f"{many} of all users' jobs"


def _median(known: Sequence[float]) -> float:
    """The middle one of some run times in order, at least a second."""
    return max(known[len(known) // 2], 1.0)


def between(known: Sequence[float], sure: float = SURE) -> tuple[float, float]:
    """An interval in which the next figure lies, `sure` if it comes like those that are `known`, in ascending order.

    Of n + 1 figures that come alike, each place in their order is as likely for the last one. So it lies between the
    k-th and the (n + 1 - k)-th with a probability of 1 - 2k/(n + 1). Few figures say too little for that; then the
    interval is wider than all of them.
    """
    runs = len(known)
    place = math.floor((1.0 - sure) / 2.0 * (runs + 1) + 1e-9)
    if place >= 1:
        return known[place - 1], known[runs - place]
    beyond = 1.0 + 2.0 / runs
    return known[0] / beyond, known[-1] * beyond


def _from_runs(known: Sequence[float], ran_s: float, source: str, basis: Basis) -> RunTimeEstimate:
    """From earlier runs, in ascending order. A job that has run for some time is none of the shorter ones."""
    longer = [one_s for one_s in known if one_s > ran_s] if ran_s > 0.0 else known
    if not longer:
        return _overdue(ran_s, f"{source}; it has run longer than all of them", basis)
    low_s, high_s = between(longer)
    expected_s = _median(longer)
    return RunTimeEstimate(expected_s, min(low_s, expected_s), max(high_s, expected_s), source, basis)


def _overdue(ran_s: float, source: str, basis: Basis) -> RunTimeEstimate:
    """A job that has run longer than expected is expected to run as long again."""
    return RunTimeEstimate(2.0 * ran_s, 1.1 * ran_s, 5.0 * ran_s, source, basis)


def _from_progress(progress: Progress, request: JobRequest, ran_s: float) -> RunTimeEstimate | None:
    """From the steps that a job has done, and how fast; None if that is not known."""
    steps = progress.steps or request.steps or 0.0
    speed = progress.steps_per_s or max(progress.speeds.values(), default=0.0)
    if not steps or not speed:
        return None
    left_s = max(steps - progress.step, 0.0) / speed
    wrong = 1.0 + max(_STEADY, _EARLY - (_EARLY - _STEADY) * 10.0 * progress.step / steps)
    source = f"its {source_of(progress)}, at {progress.unit} {progress.step:,.0f} of {steps:,.0f}"
    return RunTimeEstimate(ran_s + left_s, ran_s + left_s / wrong, ran_s + left_s * wrong, source, "seen")


def source_of(progress: Progress) -> str:
    """Where the progress of a job is known from, in words."""
    return progress.source or "own reports"
