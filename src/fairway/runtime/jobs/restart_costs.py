"""The measured cost of stopping a job and starting it again: the seconds from the request to stop to the end of its
processes, and from their next start to the first step that they report."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from statistics import median

from fairway.runtime.jobs.records import Attempt, JobRecord
from fairway.runtime.jobs.request import JobRequest

RESTART_S = 10.0
"""What a restart is taken to cost of which nothing is known."""
SUSPENDED_S = 0.1
"""The cost for a job that is suspended in place."""
REMEMBERED = 20
_TERMINATED = 143
_ALL = ("", "")

_Seen = dict[tuple[str, str], deque[float]]


class RestartCosts:
    """Medians over the stops and starts of a job itself, else of similar jobs, else of all jobs, else `unknown_s`."""

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
        return self.unknown_s if stop_s is start_s is None else (stop_s or 0.0) + (start_s or 0.0)

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
            attempt.start_s = said_s - attempt.launched_s
            _learn(self._starts, record.request, attempt.start_s)

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
    for key in _keys(request):
        known.setdefault(key, deque(maxlen=REMEMBERED)).append(seconds)


def _closest(own_s: Sequence[float], known: _Seen, request: JobRequest) -> float | None:
    """The median of a job's own figures, else of the most similar jobs that have some."""
    seen = [own_s, *(known.get(key, ()) for key in _keys(request))]
    return next((median(one_s) for one_s in seen if one_s), None)


def _keys(request: JobRequest) -> list[tuple[str, str]]:
    """What makes jobs similar, the closest first."""
    by_name = [(request.user, f"name {request.name}")] if request.name else []
    by_model = [("", f"model {request.model}")] if request.model else []
    return [*by_name, *by_model, _ALL]
