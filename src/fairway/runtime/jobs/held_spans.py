"""Who computed on which GPUs and when, as the records of jobs say. A job that is suspended or stops has no span."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from fairway.runtime.jobs.records import Attempt, JobRecord


class HeldSpan(NamedTuple):
    """A job computed on GPUs from one date to another, None if it still does. `host` is the job that it shares with."""

    gpus: tuple[int, ...]
    from_s: float
    to_s: float | None
    host: str | None

    @property
    def seconds(self) -> float:
        """How long it is; nothing while it has no end."""
        return 0.0 if self.to_s is None else self.to_s - self.from_s


def spans_of(record: JobRecord, since_s: float = -math.inf) -> Iterator[HeldSpan]:
    """The spans of a job that end after a date, in order. Any thread may ask."""
    attempts, open_s = list(record.attempts), record.since_s
    for attempt in attempts:
        if attempt.ended_s is None or attempt.ended_s > since_s:
            yield from (one for one in spans_in(attempt) if one.to_s is None or one.to_s > since_s)
    # An attempt of an earlier version is told as a whole.
    if open_s is not None and attempts and attempts[-1].spans is not None and not record.state.ended:
        yield HeldSpan(_real(attempts[-1].gpus), open_s, None, attempts[-1].host)


def spans_in(attempt: Attempt) -> Iterator[HeldSpan]:
    """The spans of one attempt that are over, or one for all of it if an earlier version started it."""
    if attempt.spans is not None:
        for from_s, to_s, *where in list(attempt.spans):
            gpus, host = where or (attempt.gpus, attempt.host)
            yield HeldSpan(_real(gpus), from_s, to_s, host)
    elif attempt.started_s is not None:
        yield HeldSpan(_real(attempt.gpus), attempt.started_s, attempt.ended_s, None)


def _real(gpus: list[int]) -> tuple[int, ...]:
    """Without GPUs that have no number yet."""
    return tuple(gpu for gpu in gpus if gpu >= 0)
