"""The columns of the job table: one row per active job, in the order of submission, without gaps.

A prototype showed that a table of dense NumPy columns is 10 to 90 times faster than objects for each decision at the
scale of real traces (10^5 jobs, 10^4 active). All float columns share one block and all integer columns another; a
finished job leaves the table in one short move per column.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from fairway.core.arrays import Floats, Ints, frozen

# Float columns. Progress and service are anchored at the last start (or report) and continued in closed form;
# `left_s` is what is left of the run time at `ready_s`, and `left_rate` how much of it passes in a second from then
# on.
FLOATS = (
    "submitted_s",
    "weight",
    "deadline_s",
    "work",
    "progress0",
    "rate",
    "ready_s",
    "since_s",
    "attained0_s",
    "attained0_gpu_s",
    "protected_until_s",
    "restart_s",
    "regime_end",
    "tail_s",
    "best_speed",
    "left_s",
    "left_rate",
    "first_start_s",
    "throttle",
    "share",
)
(
    SUBMITTED_S,
    WEIGHT,
    DEADLINE_S,
    WORK,
    PROGRESS0,
    RATE,
    READY_S,
    SINCE_S,
    ATTAINED0_S,
    ATTAINED0_GPU_S,
    PROTECTED_UNTIL_S,
    RESTART_S,
    REGIME_END,
    TAIL_S,
    BEST_SPEED,
    LEFT_S,
    LEFT_RATE,
    FIRST_START_S,
    THROTTLE,
    SHARE,
) = range(len(FLOATS))
SPEEDS = len(FLOATS)  # the rates on each GPU type follow, one row per type

INTS = (
    "job",
    "gpus",
    "gpus_min",
    "gpus_max",
    "held",
    "gpu_type",
    "host",
    "user",
    "queue",
    "model",
    "priority",
    "batch_size",
    "launches",
    "preemptions",
)
(
    JOB,
    GPUS,
    GPUS_MIN,
    GPUS_MAX,
    HELD,
    GPU_TYPE,
    HOST,
    USER,
    QUEUE,
    MODEL,
    PRIORITY,
    BATCH_SIZE,
    LAUNCHES,
    PREEMPTIONS,
) = range(len(INTS))


class JobTable:
    """Two growing blocks of columns. The active rows are the window `start .. start + n` of each.

    New rows come at the end. When a row leaves, the shorter side of the window moves up to close the gap: jobs that
    leave are mostly among the oldest or the newest, so little moves even when thousands wait.
    """

    def __init__(self, types: int, capacity: int = 64) -> None:
        self.f: Floats = np.zeros((SPEEDS + types, capacity))
        self.i: Ints = np.zeros((len(INTS), capacity), dtype=np.int64)
        self.start = 0
        self._jobs: list[int] = []
        self._seen_f, self._seen_i = frozen(self.f.view()), frozen(self.i.view())

    @property
    def n(self) -> int:
        """How many rows there are."""
        return len(self._jobs)

    def window(self) -> tuple[Floats, Ints]:
        """The active rows of both blocks, read-only."""
        rows = slice(self.start, self.start + len(self._jobs))
        return self._seen_f[:, rows], self._seen_i[:, rows]

    def append(self, floats: list[float], ints: list[int]) -> None:
        """Add a row."""
        at = self.start + len(self._jobs)
        # The last column stays empty, so that a window is never the whole block: compiled kernels know one layout.
        if at >= self.f.shape[1] - 1:
            at = self._make_room()
        self.f[:, at] = floats
        self.i[:, at] = ints
        self._jobs.append(ints[JOB])

    def add_types(self, more: int) -> None:
        """Make room for the speeds on more GPU types. They are 0 until they are set."""
        self.f = np.concatenate([self.f, np.zeros((more, self.f.shape[1]))])
        self._seen_f = frozen(self.f.view())

    def fill(self, floats: Floats, ints: Ints) -> None:
        """Replace all rows with copies of these."""
        self._jobs = ints[JOB].tolist()
        count = len(self._jobs)
        spare = max(self.f.shape[1], 64) + count // 8
        self.f = np.concatenate([floats, np.zeros((len(floats), spare))], axis=1)
        self.i = np.concatenate([ints, np.zeros((len(ints), spare), dtype=np.int64)], axis=1)
        self._seen_f, self._seen_i = frozen(self.f.view()), frozen(self.i.view())
        self.start = 0

    def _make_room(self) -> int:
        """Move the window to the front and return its end. The blocks grow if the window fills more than half."""
        count = len(self._jobs)
        capacity = self.f.shape[1] * (2 if 2 * (count + 1) > self.f.shape[1] else 1)
        floats, ints = self.window()
        self.f = np.concatenate([floats, np.zeros((len(floats), capacity - count))], axis=1)
        self.i = np.concatenate([ints, np.zeros((len(ints), capacity - count), dtype=np.int64)], axis=1)
        self._seen_f, self._seen_i = frozen(self.f.view()), frozen(self.i.view())
        self.start = 0
        return count

    def remove(self, at: int) -> None:
        """Take out the row at a position and close the gap."""
        first, end = self.start, self.start + len(self._jobs)
        if at - first < end - at:
            source, target = slice(first, at), slice(first + 1, at + 1)
            self.start += 1
        else:
            source, target = slice(at + 1, end), slice(at, end - 1)
        if source.start != source.stop:
            self.f[:, target] = self.f[:, source]
            self.i[:, target] = self.i[:, source]
        del self._jobs[at - first]

    def position(self, job: int) -> int:
        """Where a job's row is in the blocks, or -1 where the job is not active."""
        row = bisect_left(self._jobs, job)
        return self.start + row if row < len(self._jobs) and self._jobs[row] == job else -1
