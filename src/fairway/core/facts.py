"""What is known about a job besides the columns, and what is remembered about jobs that have ended.

Few policies need these, so they are looked up on request instead of being kept as columns.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fairway.core.arrays import Floats, Ints, frozen
from fairway.core.batch import Adaptive, BatchLimits, LocalLimits, Split, Timing
from fairway.core.job import JobSpec, LossCurve
from fairway.core.prospect import Entry, Prospect
from fairway.core.queues import OpenRound, TaskTerms

REMEMBERED_JOBS = 5_000
"""How many ended jobs a state remembers."""


class Facts(NamedTuple):
    """One job. NaN, 0, () and None stand for "unknown".

    `scaling` is its steps per second on 1, 2, … GPUs. `ran_s` is how long it computed in the last round in which it
    ran, where an engine counts that by rounds. `prospect` is what its owner announced about its training; `entries` are
    the regimes that it was seen to enter. `seen_loss` is the training loss that a live job reported after
    `seen_epochs`, and `noise_scale` the gradient noise scale that it measured. `adaptive` is there for a job whose
    batch size a scheduler may choose. `tasks` is what its tasks are like; `round` is the round that it has begun, if
    it is scheduled as tasks.
    """

    skew: float = math.nan
    memory_bytes: int = 0
    scaling: tuple[float, ...] = ()
    loss: LossCurve | None = None
    steps_left: float = math.nan
    ran_s: float = math.nan
    prospect: Prospect | None = None
    entries: tuple[Entry, ...] = ()
    seen_epochs: float = math.nan
    seen_loss: float = math.nan
    noise_scale: float = math.nan
    adaptive: Adaptive | None = None
    tasks: TaskTerms | None = None
    round: OpenRound | None = None

    @property
    def split(self) -> Split | None:
        """How the job works through its batch, where a scheduler has chosen that."""
        return None if self.adaptive is None else self.adaptive.split

    def given(self, split: Split | None) -> Facts:
        """With another split, for a job that may be adapted."""
        return self if self.adaptive is None else self._replace(adaptive=self.adaptive._replace(split=split))

    def measured(
        self,
        limits: BatchLimits | None,
        timing: Timing | None,
        noise_scale: float,
        local_limits: LocalLimits = (),
    ) -> Facts:
        """With what a job says about itself. Without limits it is not adaptive, whatever it measures."""
        adaptive = self.adaptive
        if limits is not None:
            adaptive = (adaptive or Adaptive(limits))._replace(limits=limits, local_limits=local_limits)
        if timing is not None and adaptive is not None:
            adaptive = adaptive.timed(timing)
        noise = self.noise_scale if math.isnan(noise_scale) else noise_scale
        return self._replace(adaptive=adaptive, noise_scale=noise)

    @staticmethod
    def of(
        spec: JobSpec,
        scaling: tuple[float, ...],
        loss: LossCurve | None,
        steps_left: float,
        prospect: Prospect | None = None,
        tasks: TaskTerms | None = None,
    ) -> Facts:
        """What an engine and the owner say about a job."""
        skew = math.nan if spec.skew is None else spec.skew
        return Facts(skew, spec.memory_bytes, scaling, loss, steps_left, prospect=prospect, tasks=tasks)

    def plain(self) -> list[Any]:
        """The facts as JSON values."""
        prospect = None if self.prospect is None else self.prospect.plain()
        known = [self.skew, self.memory_bytes, self.scaling, self.loss, self.steps_left, self.ran_s]
        seen = [self.seen_epochs, self.seen_loss, self.noise_scale]
        more: list[Any] = [None if self.adaptive is None else self.adaptive.plain(), self.tasks]
        more.append(None if self.round is None else self.round.plain())
        while more and not more[-1]:
            more.pop()
        return [*known, prospect, [list(entry) for entry in self.entries], *seen, *more]

    @staticmethod
    def from_plain(values: list[Any]) -> Facts:
        """Read what `plain` gave."""
        skew, memory_bytes, scaling, loss, steps_left, ran_s, *rest = values
        prospect, entries, *seen = rest or (None, ())
        more = [*seen[3:], *(None, None, None)[len(seen[3:]) :]]
        return Facts(
            skew,
            memory_bytes,
            tuple(scaling),
            LossCurve(*loss) if loss else None,
            steps_left,
            ran_s,
            Prospect.from_plain(prospect) if prospect else None,
            tuple(Entry(*entry) for entry in entries),
            seen_epochs=seen[0] if seen else math.nan,
            seen_loss=seen[1] if seen else math.nan,
            noise_scale=seen[2] if seen else math.nan,
            adaptive=Adaptive.from_plain(more[0]) if more[0] else None,
            tasks=TaskTerms(more[1][0], tuple(more[1][1])) if more[1] else None,
            round=OpenRound.from_plain(more[2]) if more[2] else None,
        )


NO_FACTS = Facts()


class Finished(NamedTuple):
    """The jobs that ended most recently, the latest last: service in GPU-seconds, seconds, gang, model and owner."""

    gpu_s: Floats
    seconds: Floats
    gpus: Ints
    model: Ints
    user: Ints


class History:
    """A window over the jobs that have ended; `count` says how many there have been in all."""

    __slots__ = ("_end", "_f", "_i", "count")

    def __init__(self) -> None:
        self.count = 0
        self._end = 0
        self._f: Floats = np.zeros((2, 64))
        self._i: Ints = np.zeros((3, 64), dtype=np.int64)

    def add(self, gpu_s: float, seconds: float, gpus: int, model: int, user: int) -> None:
        """Note a job that has done its work."""
        if self._end == self._f.shape[1]:
            self._make_room()
        self._f[:, self._end] = gpu_s, seconds
        self._i[:, self._end] = gpus, model, user
        self._end += 1
        self.count += 1

    def _make_room(self) -> None:
        """Forget all but the latest jobs, and leave room for as many again."""
        keep = min(self._end, REMEMBERED_JOBS)
        size = 2 * keep
        f, i = np.zeros((2, size)), np.zeros((3, size), dtype=np.int64)
        f[:, :keep], i[:, :keep] = self._f[:, self._end - keep : self._end], self._i[:, self._end - keep : self._end]
        self._f, self._i, self._end = f, i, keep

    def latest(self) -> Finished:
        """The window, read-only."""
        rows = slice(max(0, self._end - REMEMBERED_JOBS), self._end)
        f, i = frozen(self._f[:, rows].view()), frozen(self._i[:, rows].view())
        return Finished(f[0], f[1], i[0], i[1], i[2])

    def copy(self) -> History:
        """An independent copy."""
        other = History()
        other.count, other._end = self.count, self._end
        other._f, other._i = self._f.copy(), self._i.copy()
        return other

    def plain(self) -> dict[str, Any]:
        """The history as JSON values."""
        rows = slice(max(0, self._end - REMEMBERED_JOBS), self._end)
        return {"count": self.count, "floats": self._f[:, rows].tolist(), "ints": self._i[:, rows].tolist()}

    @staticmethod
    def from_plain(data: dict[str, Any]) -> History:
        """Read what `plain` gave."""
        history = History()
        for gpu_s, seconds, gpus, model, user in zip(*data["floats"], *data["ints"], strict=True):
            history.add(gpu_s, seconds, gpus, model, user)
        history.count = data["count"]
        return history
