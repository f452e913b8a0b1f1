"""The job table as a policy sees it: read-only columns, and what follows from them at one instant."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairway.core import columns as c
from fairway.core import kernels
from fairway.core.arrays import Bools, Floats, Ints


class JobView(NamedTuple):
    """One row as a readable object, for policies that prefer to look at one job at a time."""

    row: int
    id: str
    user: str
    queue: str
    model: str
    gpus: int
    gpus_min: int
    gpus_max: int
    held: int
    weight: float
    submitted_s: float
    deadline_s: float
    attained_s: float
    attained_gpu_s: float
    progress: float


def _float_column(number: int, doc: str) -> property:
    def get(self: TableView) -> Floats:
        column: Floats = self.floats[number]
        return column

    return property(get, doc=doc)


def _int_column(number: int, doc: str) -> property:
    def get(self: TableView) -> Ints:
        column: Ints = self.ints[number]
        return column

    return property(get, doc=doc)


class TableView:
    """The active jobs as columns with one entry per job, in the order of submission.

    `floats` and `ints` are the blocks whose rows are the columns (see `core.columns`). What follows from them is
    computed when it is first needed.
    """

    __slots__ = (
        "_attained_gpu_s",
        "_attained_s",
        "_progress",
        "_protected_rows",
        "_running",
        "_running_rows",
        "floats",
        "ints",
        "now_s",
    )

    def __init__(self, floats: Floats, ints: Ints, now_s: float) -> None:
        self.floats = floats
        self.ints = ints
        self.now_s = now_s
        self._running: Bools | None = None
        self._running_rows: Ints | None = None
        self._protected_rows: Ints | None = None
        self._progress: Floats | None = None
        self._attained_s: Floats | None = None
        self._attained_gpu_s: Floats | None = None

    submitted_s = _float_column(c.SUBMITTED_S, "When each job was submitted.")
    weight = _float_column(c.WEIGHT, "Each job's weight in shares.")
    deadline_s = _float_column(c.DEADLINE_S, "Deadlines; infinite where there is none.")
    rate = _float_column(c.RATE, "Work per second that each job makes now; 0 while it waits.")
    since_s = _float_column(c.SINCE_S, "Since when each running job has held its present GPUs.")
    restart_s = _float_column(c.RESTART_S, "What a stop and restart of each job costs.")
    protected_until_s = _float_column(c.PROTECTED_UNTIL_S, "Until when a running job may not be stopped.")
    first_start_s = _float_column(c.FIRST_START_S, "When each job was first started; infinite before.")
    throttle = _float_column(c.THROTTLE, "What part of the time each running job may compute; 1 is all of it.")
    share = _float_column(c.SHARE, "What part of one GPU each job asks for; 1 for jobs that ask for whole GPUs.")
    idle_since_s = _float_column(c.READY_S, "Of a waiting job: since when it has held no GPUs.")
    best_speed = _float_column(c.BEST_SPEED, "Each job's rate on its own gang on the GPU type that suits it best.")
    jobs = _int_column(c.JOB, "Job numbers, rising: the order of submission.")
    gpus = _int_column(c.GPUS, "The gang that each job asks for.")
    gpus_min = _int_column(c.GPUS_MIN, "The fewest GPUs that each job can use.")
    gpus_max = _int_column(c.GPUS_MAX, "The most GPUs that each job can use.")
    held = _int_column(c.HELD, "How many GPUs each job holds now; 0 while it waits.")
    gpu_type = _int_column(c.GPU_TYPE, "The type of the GPUs that each job holds, or held last; -1 before.")
    host = _int_column(c.HOST, "The number of the job whose GPUs a job shares as a guest, or -1.")
    user = _int_column(c.USER, "Code of the owner; see `names.users`.")
    queue = _int_column(c.QUEUE, "Code of the queue; see `names.queues`.")
    model = _int_column(c.MODEL, "Code of the model; see `names.models`.")
    priority = _int_column(c.PRIORITY, "The priority that the owner gave; larger is more urgent.")
    batch_size = _int_column(c.BATCH_SIZE, "The batch size seen last; 0 where unknown.")
    launches = _int_column(c.LAUNCHES, "How often each job has been started.")
    preemptions = _int_column(c.PREEMPTIONS, "How often each job's GPUs were taken away.")

    def __len__(self) -> int:
        return int(self.ints.shape[1])

    @property
    def speeds(self) -> Floats:
        """The rate of each job on its own gang, one row per GPU type; 0 where it cannot run."""
        return self.floats[c.SPEEDS :]

    @property
    def running(self) -> Bools:
        """Which jobs hold GPUs."""
        if self._running is None:
            self._running = self.ints[c.HELD] > 0
        return self._running

    @property
    def running_rows(self) -> Ints:
        """The rows that hold GPUs."""
        if self._running_rows is None:
            self._running_rows = self.running.nonzero()[0]
        return self._running_rows

    @property
    def attained_s(self) -> Floats:
        """How long each job has held GPUs so far."""
        if self._attained_s is None:
            self._attained_s = self.floats[c.ATTAINED0_S] + (self.now_s - self.floats[c.SINCE_S]) * self.running
        return self._attained_s

    @property
    def attained_gpu_s(self) -> Floats:
        """How many GPU-seconds each job has held so far: the service of Tiresias' 2D age. A share counts as such."""
        if self._attained_gpu_s is None:
            self._attained_gpu_s = kernels.attained(self.floats, self.ints, self.now_s)
        return self._attained_gpu_s

    @property
    def progress(self) -> Floats:
        """Work done so far, in the units of the job (seconds on its gang, or steps)."""
        if self._progress is None:
            f = self.floats
            done = f[c.PROGRESS0] + f[c.RATE] * np.maximum(self.now_s - f[c.READY_S], 0.0)
            self._progress = np.minimum(done, f[c.REGIME_END])
        return self._progress

    @property
    def protected_rows(self) -> Ints:
        """Running jobs that were started so recently that no policy may stop or resize them."""
        if self._protected_rows is None:
            rows = self.running_rows
            self._protected_rows = rows[self.floats[c.PROTECTED_UNTIL_S, rows] > self.now_s]
        return self._protected_rows
