"""What is expected of every job: the remaining run time, by forecast, on the GPUs that it shall run on."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Floats, Ints
from fairway.core.prospect import Training
from fairway.core.snapshot import Snapshot
from fairway.models.forecast import Method, forecast

_UNTOLD_S = 3600.0
"""The run time of a job about which nothing is known, before any job has ended."""
_SLOWEST, _FASTEST = 0.1, 10.0
"""A job's measured pace is kept within these bounds."""
_SHORTEST_S = 1.0
_STAYS = 0.8
"""A running job stays with its GPU type unless it would be done on another one in this part of the time."""


class JobOutlook(NamedTuple):
    """One entry per row. `kinds` is the GPU type that a row shall run on, -1 if there is none.

    `epochs` and `done` count epochs, in all and so far. `ran_s` is how long the epochs so far take on that type without
    interruption. `left_s` is the expected run time from now on, `longest_s` the run time if the slowest announced batch
    size goes on to the end. `epoch_s` is the mean duration of an epoch so far. `paces` are measured speeds relative to
    the announced ones.
    """

    kinds: Ints
    epochs: Floats
    done: Floats
    ran_s: Floats
    left_s: Floats
    longest_s: Floats
    epoch_s: Floats
    paces: dict[str, float]

    def of(self, rows: Ints) -> JobOutlook:
        """The outlook of some rows."""
        parts = {name: getattr(self, name)[rows] for name in self._fields if name != "paces"}
        return JobOutlook(**parts, paces={})

    @property
    def total_s(self) -> Floats:
        """The expected run time of all epochs."""
        total_s: Floats = self.ran_s + self.left_s
        return total_s


def look(snapshot: Snapshot, method: Method, known_paces: dict[str, Any]) -> JobOutlook:
    """Forecast every job. Earlier measured paces are remembered for jobs that wait."""
    speeds = snapshot.speeds
    best = speeds.argmax(axis=0)
    paces: dict[str, float] = {}
    usual_s = _usual_s(snapshot)
    rows = [
        _row(snapshot, row, int(best[row]), method, known_paces, paces) or _untold(snapshot, row, usual_s)
        for row in range(len(snapshot))
    ]
    epochs, done, ran_s, left_s, longest_s = np.array(rows, dtype=np.float64).reshape(len(snapshot), 5).T
    kinds = np.where(speeds.max(axis=0) > 0, best, -1)
    if len(snapshot.capacity) > 1:
        kinds = _homes(snapshot, left_s)
        slower = speeds.max(axis=0) / np.maximum(speeds[kinds, np.arange(len(snapshot))], 1e-300)
        slower = np.where(kinds >= 0, slower, 1.0)
        ran_s, left_s, longest_s = ran_s * slower, left_s * slower, longest_s * slower
    per_epoch_s = (ran_s + left_s) / np.maximum(epochs, 1e-9)
    mean_s = np.where(done >= 1.0, ran_s / np.maximum(done, 1.0), per_epoch_s)
    return JobOutlook(kinds, epochs, done, ran_s, np.maximum(left_s, _SHORTEST_S), longest_s, mean_s, paces)


def _row(
    snapshot: Snapshot, row: int, kind: int, method: Method, known: dict[str, Any], paces: dict[str, float]
) -> tuple[float, float, float, float, float] | None:
    """Epochs, epochs done, their run time, the run time left and its longest value, on the type best for the job.

    None if its owner has not announced enough.
    """
    training = snapshot.training(row)
    if training is None or not training.stages or not all(stage.speeds[kind] > 0 for stage in training.stages):
        return None
    epoch_s = [1.0 / stage.speeds[kind] for stage in training.stages]
    job = str(int(snapshot.jobs[row]))
    pace = _pace(snapshot, row, training) or float(known.get(job, 1.0))
    if pace != 1.0:
        paces[job] = pace
        epoch_s = [one / pace for one in epoch_s]
    expected = forecast(training, epoch_s, method)
    by_batch = {stage.batch_size: one for stage, one in zip(training.stages, epoch_s, strict=True)}
    ran_s = math.fsum(spell.epochs * by_batch.get(spell.batch_size, expected.epoch_s) for spell in training.spells)
    return training.epochs, training.done, ran_s, expected.remaining_s, expected.longest_s


def _pace(snapshot: Snapshot, row: int, training: Training) -> float:
    """How fast a running job is, relative to what was announced for its batch size; 0 if nothing is measured."""
    if not training.speed > 0:
        return 0.0
    kind, batch = int(snapshot.gpu_type[row]), training.spells[-1].batch_size
    announced = next((stage.speeds[kind] for stage in training.stages if stage.batch_size == batch), 0.0)
    if not announced > 0:
        return 0.0
    pace = min(max(training.speed / announced, _SLOWEST), _FASTEST)
    return 1.0 if abs(pace - 1.0) < 1e-6 else pace


def _usual_s(snapshot: Snapshot) -> float:
    """How long jobs usually run: the median of those that ended last."""
    return float(np.median(snapshot.finished.seconds)) if snapshot.finished_count else _UNTOLD_S


def _untold(snapshot: Snapshot, row: int, usual_s: float) -> tuple[float, float, float, float, float]:
    """A job about which nothing is known may be anywhere in its life: it is expected to go on for as long as it has
    run, and at least for half of what others took."""
    ran_s = float(snapshot.attained_s[row])
    left_s = max(ran_s, usual_s / 2, _SHORTEST_S)
    return 100.0, 100.0 * ran_s / (ran_s + left_s), ran_s, left_s, left_s


def _homes(snapshot: Snapshot, left_s: Floats) -> Ints:
    """A GPU type for every job, the longest first, so that all types are busy for about the same time."""
    capacity = snapshot.capacity.astype(np.float64)
    speeds, gangs = snapshot.speeds, snapshot.gpus
    busy_s = np.zeros(len(capacity))
    homes = np.full(len(snapshot), -1, dtype=np.int64)
    best = speeds.max(axis=0)
    for row in portable.order(-portable.rounded(left_s * gangs)).tolist():
        usable = (speeds[:, row] > 0) & (capacity >= gangs[row])
        if not usable.any():
            continue
        lasts_s = left_s[row] * best[row] / np.where(usable, speeds[:, row], 1.0)
        busy = busy_s + lasts_s * gangs[row] / np.maximum(capacity, 1.0)
        ends_s = np.where(usable, np.maximum(busy, lasts_s), np.inf)
        # To the microsecond, so that equal ends tie whatever the order of their sums.
        kind, now = int(np.argmin(np.round(ends_s, 6))), int(snapshot.gpu_type[row])
        if snapshot.held[row] and usable[now] and ends_s[kind] > _STAYS * ends_s[now]:
            kind = now
        homes[row], busy_s[kind] = kind, busy[kind]
    return homes
