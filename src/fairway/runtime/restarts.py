"""What it costs to stop a job and start it again, as it was seen: from the request to stop to the end of its processes,
and from their next start to the first thing that they report."""

from __future__ import annotations

from collections import deque
from statistics import median

from fairway.runtime.records import JobRecord
from fairway.runtime.request import JobRequest

UNKNOWN_S = 10.0
SUSPENDED_S = 0.1
"""Of a job that stays in memory."""
REMEMBERED = 20
_ALL = ("", "")


class RestartCosts:
    """Medians over the latest stops and starts of jobs that are alike, else of all jobs, else `unknown_s`."""

    def __init__(self, unknown_s: float = UNKNOWN_S) -> None:
        self.unknown_s = unknown_s
        self._stops: dict[tuple[str, str], deque[float]] = {}
        self._starts: dict[tuple[str, str], deque[float]] = {}
        self._asked_s: dict[int, float] = {}
        self._reported: dict[int, int] = {}

    def expected_s(self, request: JobRequest) -> float:
        """What a stop and restart of a job is expected to cost."""
        if request.preempt == "suspend":
            return SUSPENDED_S
        for key in _keys(request):
            if key in self._stops or key in self._starts:
                return _middle(self._stops.get(key)) + _middle(self._starts.get(key))
        return self.unknown_s

    def asked(self, record: JobRecord, date_s: float) -> None:
        """A job was asked to stop."""
        self._asked_s[record.number] = date_s

    def ended(self, record: JobRecord) -> None:
        """An attempt is over."""
        self._reported.pop(record.number, None)
        asked_s, attempt = self._asked_s.pop(record.number, None), record.attempt
        if asked_s is not None and attempt is not None and attempt.ended_s is not None and attempt.cause == "request":
            self._learn(self._stops, record.request, max(attempt.ended_s - asked_s, 0.0))

    def reported(self, record: JobRecord) -> None:
        """A job has said something; the first time in an attempt that tells how long its start took."""
        attempt, said_s = record.attempt, record.progress.reported_s
        if attempt is None or said_s is None or self._reported.get(record.number) == attempt.number:
            return
        self._reported[record.number] = attempt.number
        if said_s >= attempt.launched_s:
            self._learn(self._starts, record.request, said_s - attempt.launched_s)

    def _learn(self, known: dict[tuple[str, str], deque[float]], request: JobRequest, seconds: float) -> None:
        for key in _keys(request):
            known.setdefault(key, deque(maxlen=REMEMBERED)).append(seconds)


def _keys(request: JobRequest) -> list[tuple[str, str]]:
    """What jobs are alike by, the closest first."""
    by_name = [(request.user, f"name {request.name}")] if request.name else []
    by_model = [("", f"model {request.model}")] if request.model else []
    return [*by_name, *by_model, _ALL]


def _middle(seen_s: deque[float] | None) -> float:
    return median(seen_s) if seen_s else 0.0
