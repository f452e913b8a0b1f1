"""What jobs report over time: a few hundred points of each, the older ones thinned evenly.

The points of jobs that have not ended are in memory. The journal gets them rarely while a job runs, and when it ends.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator
from typing import NamedTuple

from fairway.runtime.jobs.records import JobRecord
from fairway.runtime.jobs.store import JobStore

MOST_POINTS = 256
STORE_LEAST_S, STORE_MOST_S, STORE_PART = 10.0, 600.0, 0.1
"""How often a course is stored: after a part of its length, within these limits. After a crash the rest is lost."""
_FIELDS = 6


class CoursePoint(NamedTuple):
    """What a job had reported at a date by the scheduler's clock. What it has not is None."""

    date_s: float
    step: float
    loss: float | None
    steps_per_s: float | None
    batch_size: int | None
    gpus: int


class JobCourse:
    """The points of one job, as numbers of four bytes: dates are counted from the first one."""

    __slots__ = ("_every_s", "_first_s", "_points", "stored_s")

    def __init__(self, points: bytes = b"") -> None:
        self._first_s = math.nan
        self._points = array("f")
        self._every_s = 0.0
        self.stored_s = -math.inf
        if len(points) > 8:
            (self._first_s,) = array("d", points[:8])
            self._points.frombytes(points[8 : 8 + (len(points) - 8) // (4 * _FIELDS) * 4 * _FIELDS])
            if len(self) > 1:
                self._every_s = self._points[-_FIELDS] / len(self)

    def __len__(self) -> int:
        return len(self._points) // _FIELDS

    @property
    def length_s(self) -> float:
        """The time between its first and its last point."""
        return self._points[-_FIELDS] if self._points else 0.0

    def add(self, point: CoursePoint) -> None:
        """Add a point, at the latest date so far. One that is too close to the one before the last replaces the last.

        So the last point always says how things are now.
        """
        if not self._points:
            self._first_s = point.date_s
        points, after_s = self._points, max(point.date_s - self._first_s, self.length_s)
        if len(points) > _FIELDS and after_s - points[-2 * _FIELDS] < self._every_s:
            del points[-_FIELDS:]
        points.extend((after_s, *(math.nan if one is None else one for one in point[1:])))
        if len(self) >= MOST_POINTS:
            self._thin()

    def _thin(self) -> None:
        """Leave out every second point, but not the last one."""
        kept, before = array("f"), self._points
        for at in range(0, len(before) - _FIELDS, 2 * _FIELDS):
            kept.extend(before[at : at + _FIELDS])
        kept.extend(before[-_FIELDS:])
        self._every_s = before[-_FIELDS] / (len(kept) // _FIELDS)
        # A new array: another thread may be reading the old one.
        self._points = kept

    def bytes(self) -> bytes:
        """What the journal keeps."""
        return array("d", [self._first_s]).tobytes() + self._points.tobytes() if self._points else b""

    def points(self) -> Iterator[CoursePoint]:
        """All points, in order. Any thread may ask."""
        first_s, values = self._first_s, self._points[:]
        for at in range(0, len(values) // _FIELDS * _FIELDS, _FIELDS):
            after_s, step, loss, speed, batch, gpus = values[at : at + _FIELDS]
            size = None if math.isnan(batch) else int(batch)
            yield CoursePoint(first_s + after_s, step, _known(loss), _known(speed), size, int(gpus))


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


class JobCourses:
    """The courses of all jobs that have not ended. `stored` reads what an earlier scheduler has stored of a job."""

    def __init__(self, store: JobStore, stored: Callable[[int], bytes] = lambda number: b"") -> None:
        self._store = store
        self._stored = stored
        self._first_new = store.next_number
        self._courses: dict[int, JobCourse] = {}

    def add(self, record: JobRecord, date_s: float) -> None:
        """A job has reported: keep what is known of it now."""
        course = self._courses.get(record.number)
        if course is None:
            known = self._stored(record.number) if record.number < self._first_new else b""
            course = self._courses[record.number] = JobCourse(known)
        progress, attempt = record.progress, record.attempt
        gpus = 0 if attempt is None else len(attempt.gpus)
        told = progress.loss, progress.steps_per_s, progress.batch_size
        course.add(CoursePoint(date_s, progress.step, *told, gpus))
        if date_s >= course.stored_s + min(max(STORE_PART * course.length_s, STORE_LEAST_S), STORE_MOST_S):
            self._keep(record.number, course, date_s)

    def end(self, record: JobRecord) -> None:
        """A job has ended: what it reported is stored, and leaves the memory."""
        course = self._courses.pop(record.number, None)
        if course is not None:
            self._keep(record.number, course, course.stored_s)

    def keep_all(self) -> None:
        """Store all courses: the scheduler stops."""
        for number, course in self._courses.items():
            self._keep(number, course, course.stored_s)

    def of(self, number: int) -> JobCourse | None:
        """The course of a job, if it is in memory. Any thread may ask."""
        return self._courses.get(number)

    def _keep(self, number: int, course: JobCourse, date_s: float) -> None:
        course.stored_s = date_s
        self._store.keep_course(number, course.bytes())
