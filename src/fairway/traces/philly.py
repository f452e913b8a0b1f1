"""Microsoft's Philly log: the flat table of the Pollux artifact, and the original job log in JSON.

The table (`timestamp,duration,num_gpus,gpu_time,cluster`) has no ids and is not sorted by time. The original log lists
every attempt of a job; retries cost GPU time as well, so the attempts' durations are added up.
"""

from __future__ import annotations

import json
from typing import Any

from fairway.core.errors import InputError
from fairway.traces.fields import NOTHING, Jobs, Parsed, csv_table, parse_time, shown

PHILLY_COLUMNS = ("timestamp", "duration", "num_gpus")


def read_philly(text: str, path: str) -> Parsed:
    """Rows become jobs `philly-0`, `philly-1`, ... in file order; the virtual cluster is the queue."""
    jobs = Jobs(path)
    for index, row in enumerate(csv_table(text, path, PHILLY_COLUMNS)):
        jobs.add(
            row.line,
            id=f"philly-{index}",
            submitted_s=row.time("timestamp"),
            gpus=row.gpus("num_gpus"),
            duration_s=row.number("duration"),
            queue=row.text("cluster"),
        )
    return jobs.finish(from_zero=True)


def read_philly_json(text: str, path: str) -> Parsed:
    """The original log: a list of jobs with their attempts. Jobs without a complete run on a GPU are skipped."""
    try:
        entries = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"this is not valid JSON: {error.msg}", path=path, line=error.lineno) from None
    except (ValueError, RecursionError):
        raise InputError("this is not valid JSON: a number is too long or the nesting too deep", path=path) from None
    if not isinstance(entries, list):
        raise InputError("expected a JSON list of jobs", path=path)
    jobs = Jobs(path)
    for index, entry in enumerate(entries):
        _Entry(entry, index, path).add_to(jobs)
    return jobs.finish(from_zero=True)


class _Entry:
    """One job of the original log. A parsed JSON list has no line numbers, so errors name the job's index."""

    def __init__(self, entry: Any, index: int, path: str) -> None:
        self.index = index
        self.path = path
        if not isinstance(entry, dict):
            raise self.error("expected an object")
        self.entry = entry

    def error(self, message: str) -> InputError:
        return InputError(f"job {self.index}: {message}", path=self.path)

    def add_to(self, jobs: Jobs) -> None:
        job_id = self.entry.get("jobid")
        if not isinstance(job_id, str) or not job_id:
            raise self.error(f"jobid {shown(job_id)} is not a text")
        if job_id in jobs:
            raise self.error(f"duplicate job id {shown(job_id)}")
        submitted_s = self._time(self.entry, "submitted_time")
        gpus, duration_s, problem = self._work()
        if submitted_s is None:
            problem = "no submit time"
        if problem:
            jobs.skip(problem)
            return
        about = {key: self._text(key) for key in ("user", "vc", "status")}
        jobs.add(
            None,
            id=job_id,
            submitted_s=submitted_s,
            gpus=gpus,
            duration_s=duration_s,
            user=about["user"],
            queue=about["vc"],
            status=about["status"],
        )

    def _work(self) -> tuple[int, float, str]:
        """GPUs of the largest attempt, seconds of all attempts, and why the job cannot be used (or an empty text)."""
        attempts = self.entry.get("attempts") or []
        if not isinstance(attempts, list) or not all(isinstance(attempt, dict) for attempt in attempts):
            raise self.error("attempts is not a list of objects")
        if not attempts:
            return 0, 0.0, "no attempt"
        gpus = max(self._gpus(attempt) for attempt in attempts)
        if gpus == 0:
            return 0, 0.0, "no GPU"
        duration_s, ended = 0.0, False
        for attempt in attempts:
            start_s, end_s = self._time(attempt, "start_time"), self._time(attempt, "end_time")
            ended = start_s is not None and end_s is not None
            if start_s is not None and end_s is not None:
                if end_s < start_s:
                    raise self.error(f"an attempt ends at {attempt['end_time']}, before it starts")
                duration_s += end_s - start_s
        return gpus, duration_s, "" if ended else "no end"

    def _gpus(self, attempt: dict[str, Any]) -> int:
        detail = attempt.get("detail") or []
        try:
            return sum(len(node.get("gpus") or ()) for node in detail)
        except (AttributeError, TypeError):
            raise self.error("detail is not a list of nodes with their gpus") from None

    def _time(self, where: dict[str, Any], key: str) -> float | None:
        text = where.get(key)
        if text is None or (isinstance(text, str) and text.strip().lower() in NOTHING):
            return None
        value = parse_time(text) if isinstance(text, str) else None
        if value is None:
            raise self.error(f"{key} {shown(text)} is not a time like 2017-10-09 07:01:55")
        return value

    def _text(self, key: str) -> str:
        value = self.entry.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.error(f"{key} {shown(value)} is not a text")
        return value
